"""Files in object stores, through the fsspec filesystem of each. Nothing is tried again here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

from shardmill.errors import SourceError
from shardmill.extras import needs
from shardmill.storage.addresses import BUCKETS, scheme_of
from shardmill.storage.feeds import changed
from shardmill.storage.retrying import Patience, Transient
from shardmill.storage.source import Source

_LOOK = {
    "s3": "credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID …), bucket, region and AWS_ENDPOINT_URL",
    "gcs": "credentials (`gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS) and bucket",
    "azure": "credentials (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_CONNECTION_STRING …) and container",
}


_FRESH = {"skip_instance_cache": True, "use_listings_cache": False}


class BucketStore:
    """One kind of object store. Any thread may call it."""

    def __init__(self, scheme: str, patience: Patience) -> None:
        self._kind = BUCKETS[scheme]
        self._patience = patience
        timeout, what = patience.timeout, f"{scheme}:// sources"
        if self._kind == "s3":
            # The client's own retries would multiply with ours.
            config = {"connect_timeout": timeout, "read_timeout": timeout, "retries": {"total_max_attempts": 1}}
            self._fs: Any = needs("s3fs", "s3", what).S3FileSystem(config_kwargs=config, **_FRESH)
            self._fs.retries = 1
        elif self._kind == "gcs":
            self._fs = needs("gcsfs", "gcs", what).GCSFileSystem(requests_timeout=timeout, **_FRESH)
        else:
            self._fs = needs("adlfs", "azure", what).AzureBlobFileSystem(read_timeout=timeout, **_FRESH)

    def list(self, url: str, depth: int | None) -> dict[str, dict[str, Any]]:
        """Every file below a URL, or the one that it names, as fsspec describes them; by name."""
        found: dict[str, dict[str, Any]] = self._call(url, lambda: self._fs.find(url, maxdepth=depth, detail=True))
        return found

    def size_and_version(self, info: dict[str, Any]) -> tuple[int, str]:
        """As a listing or a look at one object tells; the version is whatever the store tells versions apart by."""
        names = ("generation", "ETag", "etag", "last_modified", "LastModified")
        version = next((info[name] for name in names if info.get(name)), "")
        return int(info["size"]), str(version).strip('"')

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> bytes:
        """The bytes of a range; Transient when it may go better another time."""
        read = self._s3_range if self._kind == "s3" else self._any_range
        data: bytes = self._call(source.path, lambda: read(source, start, end), source)
        if len(data) < end - start:
            raise Transient(f"{scheme_of(source.path)} gave {len(data):,} of {end - start:,} bytes")
        if len(data) > end - start:
            raise changed(source)
        if time.monotonic() > deadline:
            raise Transient(f"{scheme_of(source.path)} is too slow")
        return data

    def stream(self, source: Source, write: Callable[[bytes], object], deadline: float) -> None:
        raise SourceError("the store gives no parts of the file", place=source.name)

    def check(self, source: Source) -> None:
        """SourceError when the object is not the one that was found; S3 has compared with each range."""
        if self._kind != "s3":
            info = self._call(source.path, lambda: self._fs.info(source.path, refresh=True), source)
            if self.size_and_version(info) != (source.size, source.version):
                raise changed(source)

    def _any_range(self, source: Source, start: int, end: int) -> bytes:
        data: bytes = self._fs.cat_file(source.path, start=start, end=end)
        return data

    def _s3_range(self, source: Source, start: int, end: int) -> bytes:
        import fsspec.asyn

        bucket, key, _ = self._fs.split_path(source.path)
        matching = {"IfMatch": f'"{source.version}"'} if source.version else {}
        answer = self._fs.call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **matching)
        body = answer["Body"]
        try:
            data: bytes = fsspec.asyn.sync(self._fs.loop, body.read, timeout=self._patience.retry_seconds)
        finally:
            body.close()
        return data

    def _call(self, url: str, call: Callable[[], Any], source: Source | None = None) -> Any:
        """What the filesystem answers, with its errors told apart: what may pass, and what will not."""
        try:
            return call()
        except (SourceError, Transient):
            raise
        except Exception as error:  # noqa: BLE001 - each library has its own classes, and they share no base
            self._refuse(url, error, source)

    def _refuse(self, url: str, error: Exception, source: Source | None) -> NoReturn:
        status = _status(error)
        name = type(error).__name__
        store = scheme_of(url)
        if status == 412 or "pre-conditions" in str(error):
            raise changed(source or Source(url, url, None, "")) from None
        hint = f"check {_LOOK[self._kind]}"
        if isinstance(error, FileNotFoundError) or status == 404:
            raise SourceError("the source is not there", place=url, hint=hint) from None
        if isinstance(error, PermissionError) or status in (400, 401, 403) or "Credential" in name:
            reason = f"{status}" if status else name
            raise SourceError(f"the store refuses to give the source ({reason})", place=url, hint=hint) from None
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)) or "Timeout" in name:
            raise Transient(f"no answer from {store} for {self._patience.timeout:g} s") from None
        if status is not None and status < 500 and status not in (408, 425, 429):
            raise SourceError(f"the store answers {status}", place=url, hint=hint) from None
        raise Transient(f"{status} from {store}" if status else f"the connection to {store} failed ({name})") from None


def _status(error: BaseException | None) -> int | None:
    """The status of the answer that an error tells of, wherever its library keeps it."""
    seen = 0
    while error is not None and seen < 8:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            told = (getattr(error, name, None) for name in ("status", "status_code", "code"))
            found = next((one for one in told if isinstance(one, int)), None)
        if isinstance(found, int) and 100 <= found < 600:
            return found
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None
