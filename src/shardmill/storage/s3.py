"""What Amazon's own library knows of S3: credentials wherever they are kept, and uploads that were left open."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from shardmill.extras import needs
from shardmill.storage.retrying import Refused, Transient

_FRESH = timedelta(minutes=5)  # for how long the store may use credentials before it asks again


class S3Account:
    """Who we are for S3: the environment, AWS_PROFILE, ~/.aws, roles of a machine, single sign-on."""

    def __init__(self, bucket: str, who: str) -> None:
        """`who` needs it, should the library be missing."""
        self._bucket = bucket
        self._errors = needs("botocore.exceptions", "s3", who)
        self._config = needs("botocore.config", "s3", who).Config
        self._session = needs("botocore.session", "s3", who).get_session()
        self._profile = self._ask(self._session.get_scoped_config)

    def settings(self) -> dict[str, Any]:
        """For the store's client; Refused when there are no credentials anywhere."""
        settings: dict[str, Any] = {}
        if self._region:
            settings["region"] = self._region
        if self._endpoint:
            settings["endpoint"] = self._endpoint
        if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
            return settings
        return {**settings, "credential_provider": self._provider()}

    def _provider(self) -> Callable[[], dict[str, Any]]:
        credentials = self._ask(self._session.get_credentials)
        if credentials is None:
            raise Refused(
                "no credentials for S3 were found",
                "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
                "for a public bucket AWS_SKIP_SIGNATURE=true",
            )

        def provide() -> dict[str, Any]:
            now = self._ask(credentials.get_frozen_credentials)
            return {
                "access_key_id": now.access_key,
                "secret_access_key": now.secret_key,
                "token": now.token,
                "expires_at": datetime.now(timezone.utc) + _FRESH,
            }

        provide()  # an error here is told as it is; the store's library would wrap it
        return provide

    def abort_uploads(self, prefix: str, ours: Callable[[str], bool], timeout: float) -> None:
        """End open uploads below a prefix; a name from the prefix on is passed to `ours`. One try.

        A store that does not know such lists has none to end.
        """
        config = self._config(
            connect_timeout=min(10.0, timeout), read_timeout=timeout, retries={"total_max_attempts": 1}
        )
        client = self._ask(
            lambda: self._session.create_client(
                "s3", region_name=self._region or "us-east-1", endpoint_url=self._endpoint, config=config
            )
        )
        try:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix):
                for upload in page.get("Uploads", ()):
                    key, number = upload["Key"], upload["UploadId"]
                    if key.startswith(prefix) and ours(key[len(prefix) :]):
                        client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=number)
        except self._errors.ClientError as why:
            status = why.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 or status in (408, 429):
                raise Transient(str(status)) from None
            # Not allowed to list uploads, or a store without them: what is left there costs space, and nothing else.
            return
        except self._errors.BotoCoreError as why:
            raise Transient(f"no connection ({type(why).__name__})") from None
        finally:
            client.close()

    @property
    def _region(self) -> str | None:
        found: str | None = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        return found

    @property
    def _endpoint(self) -> str | None:
        named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return named or os.environ.get("AWS_ENDPOINT") or self._profile.get("endpoint_url")

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._errors.BotoCoreError as why:
            # Its own words name profiles and files, never keys.
            raise Refused(f"no credentials for S3: {why}", "check AWS_PROFILE and the files in ~/.aws") from None
