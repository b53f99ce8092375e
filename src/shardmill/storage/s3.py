"""What we need Amazon's own library for: finding credentials, and aborting uploads that were left open."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from shardmill.errors import OutputError, SourceError
from shardmill.extras import needs
from shardmill.storage.names import host_of
from shardmill.storage.retrying import Transient

_FRESH = timedelta(minutes=5)  # after this time the client asks for the credentials again


class S3Account:
    """Credentials for S3, from the environment, AWS_PROFILE, ~/.aws, the role of a machine, or single sign-on."""

    def __init__(self, url: str, error: type[SourceError] | type[OutputError], purpose: str) -> None:
        """`error`: raised when there are no credentials. `purpose`: named in the error if the library is missing."""
        self._url, self._error = url, error
        self._errors = needs("botocore.exceptions", "s3", purpose)
        self._config = needs("botocore.config", "s3", purpose).Config
        self._session = needs("botocore.session", "s3", purpose).get_session()
        profile = self._call(self._session.get_scoped_config)
        self._region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        self._endpoint = next(filter(None, map(os.environ.get, names)), None) or profile.get("endpoint_url")

    def settings(self) -> dict[str, Any]:
        """Return the settings for the store's client; raise the error when there are no credentials."""
        values = {"region": self._region, "endpoint": self._endpoint}
        settings: dict[str, Any] = {name: value for name, value in values.items() if value}
        if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in ("1", "true"):
            settings["credential_provider"] = self._provider()
        return settings

    def _provider(self) -> Callable[[], dict[str, Any]]:
        credentials = self._call(self._session.get_credentials)
        if credentials is None:
            raise self._error(
                "no credentials for S3 were found",
                place=self._url,
                hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
                "for a public bucket AWS_SKIP_SIGNATURE=true",
            )

        def provide() -> dict[str, Any]:
            now = self._call(credentials.get_frozen_credentials)
            return {
                "access_key_id": now.access_key,
                "secret_access_key": now.secret_key,
                "token": now.token,
                "expires_at": datetime.now(UTC) + _FRESH,
            }

        provide()  # an error here is raised as it is; the store's library would wrap it
        return provide

    def abort_uploads(self, prefix: str, is_ours: Callable[[str], bool], timeout: float) -> None:
        """Abort open uploads below a prefix for whose names, from the prefix on, `is_ours` is true. One attempt.

        A store that cannot list uploads has none to abort.
        """
        config = self._config(
            connect_timeout=min(10.0, timeout), read_timeout=timeout, retries={"total_max_attempts": 1}
        )
        options = {"region_name": self._region or "us-east-1", "endpoint_url": self._endpoint, "config": config}
        client = self._call(lambda: self._session.create_client("s3", **options))
        bucket = host_of(self._url)
        try:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
                for upload in page.get("Uploads", ()):
                    key, number = upload["Key"], upload["UploadId"]
                    if key.startswith(prefix) and is_ours(key[len(prefix) :]):
                        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=number)
        except self._errors.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 or status in (408, 429):
                raise Transient(str(status)) from None
            # We may not list uploads, or the store has none: what is left there costs space, and nothing else.
            return
        except self._errors.BotoCoreError as error:
            raise Transient(f"no connection ({type(error).__name__})") from None
        finally:
            client.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._errors.BotoCoreError as error:
            # Its message names profiles and files, never keys.
            message, hint = f"no credentials for S3: {error}", "check AWS_PROFILE and the files in ~/.aws"
            raise self._error(message, place=self._url, hint=hint) from None
