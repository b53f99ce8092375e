"""The client of object stores, for sources and outputs alike: one call is one try, and what went wrong is told apart.

Transient            it may go better another time
FileNotFoundError    there is no such object
Conflict             the object is not in the state that was asked for
Refused              it will not go better by itself; says what to do
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from shardmill.errors import UsageError
from shardmill.extras import needs
from shardmill.storage.addresses import BUCKETS, host_of, scheme_of, shown
from shardmill.storage.retrying import Patience, Refused, Transient
from shardmill.storage.s3 import S3Account

# Tries that the library makes by itself, in requests of which we see only the sum: a list of many pages, an upload of
# many parts. To begin those anew for each failure would never end where one request in a hundred fails.
_LIBRARY_RETRIES, _LIBRARY_SECONDS = 8, 120
_CONNECT_SECONDS = 10.0
_PASSING = ("408", "409", "425", "429")
_PASSING_CODES = (
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ServerBusy",
    "OperationTimedOut",
)
_LOOK = {
    "s3": "credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID …), bucket, region and AWS_ENDPOINT_URL",
    "gcs": "credentials (`gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS) and bucket",
    "azure": "credentials (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY …) and container",
}
_WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed")


class Conflict(Exception):
    """The object is not in the state that was asked for."""


class Objects:
    """The objects below one URL of a bucket, by their names from there on. Any thread may use it.

    `url`: a bucket, or a folder in one, checked by `check_address`.
    """

    def __init__(self, url: str, patience: Patience, *, writing: bool) -> None:
        """UsageError when the library is missing, Refused when there are no credentials."""
        scheme = scheme_of(url)
        extra, who = BUCKETS[scheme], f"writing to {scheme}://" if writing else f"{scheme}:// sources"
        self.library = needs("obstore", extra, who)
        self._errors = needs("obstore.exceptions", extra, who)
        self._stores = needs("obstore.store", extra, who)
        self._url, self._patience, self._writing = url, patience, writing
        self._bucket, self._kind = host_of(url), extra
        self.account = S3Account(self._bucket, who) if extra == "s3" else None
        self._settings = self.account.settings() if self.account else {}
        self._made: dict[tuple[bool, bool], Any] = {}
        self.store()

    def store(self, *, many: bool = False, sending: bool = False) -> Any:
        """The library's store. `many`: for calls that are many requests. `sending`: for calls with a large body."""
        key = many, sending
        if key not in self._made:
            # While a body is sent nothing is read, so the limit for silence would be one for the whole of it.
            silence = {} if sending else {"read_timeout": timedelta(seconds=self._patience.timeout)}
            client = {
                "timeout": timedelta(seconds=self._patience.retry_seconds),
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, self._patience.timeout)),
                # An endpoint of http:// is used only when somebody has set one.
                "allow_http": True,
                **silence,
            }
            retry = {
                "max_retries": min(_LIBRARY_RETRIES, self._patience.tries - 1) if many else 0,
                "retry_timeout": timedelta(seconds=min(_LIBRARY_SECONDS, self._patience.retry_seconds)),
                "backoff": {
                    "init_backoff": timedelta(seconds=self._patience.pause),
                    "max_backoff": timedelta(seconds=self._patience.longest_pause),
                },
            }
            try:
                made = self._stores.from_url(self._url, client_options=client, retry_config=retry, **self._settings)
            except (self._errors.BaseError, ValueError):
                # Nothing was asked yet: it is a setting, and the library's own words may repeat it.
                raise Refused("the settings for the store do not suffice", f"check {_LOOK[self._kind]}") from None
            self._made[key] = made
        return self._made[key]

    def entries(self, folder: str, *, deep: bool) -> Iterator[Any]:
        """What the library says of each object directly in a folder, or anywhere below it."""
        store = self.store(many=True)
        if not deep:
            yield from self.library.list_with_delimiter(store, folder or None)["objects"]
            return
        for page in self.library.list(store, folder or None, chunk_size=1000):
            yield from page

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around calls of the library: its errors become those of this module."""
        try:
            yield
        except (self._errors.PreconditionError, self._errors.AlreadyExistsError) as why:
            raise Conflict(_code(str(why))) from None
        except (self._errors.BaseError, OSError, ValueError) as why:
            said = str(why)
            # An empty answer to a HEAD does not say whether it is the bucket that is missing.
            if isinstance(why, FileNotFoundError) and _code(said) not in ("NoSuchBucket", "ContainerNotFound"):
                raise FileNotFoundError from None
            raise told(said, self._bucket, self._kind, self._patience.timeout, writing=self._writing) from None


def check_address(url: str) -> None:
    """UsageError for a URL that names no bucket, or that holds a secret, which is not repeated."""
    if shown(url) != url:
        raise UsageError(
            "keys do not belong into a URL",
            place=shown(url),
            hint="set them where the store's own tools look: environment variables or files",
        )
    if not host_of(url):
        raise UsageError("the address names no bucket", place=url, hint=f"write `{scheme_of(url)}://BUCKET/PATH`")


def told(said: str, bucket: str, kind: str, timeout: float, *, writing: bool) -> Transient | Refused:
    """What a person is told. The library's own words are left out: they may hold keys and signed requests."""
    code = _code(said)
    found = re.search(r"status code: (\d{3})(?: ([A-Z][\w ]+))?", said)
    status = found[1] if found else ""
    words = f" ({code or status})" if code or status else ""
    where = f"check {_LOOK[kind]}"
    lower = said.partition("\n\nDebug source")[0].lower()
    if code in ("NoSuchBucket", "ContainerNotFound") or (status == "404" and not code):
        return Refused(f"there is no bucket `{bucket}`", "create it, or correct its name" if writing else where)
    if code in _WRONG_KEYS:
        return Refused(f"the store does not accept the credentials{words}", where)
    if code in _PASSING_CODES or status in _PASSING or status[:1] == "5":
        return Transient(" ".join(dict.fromkeys(part for part in (status, code) if part)) or "no answer")
    if code == "AccessDenied" or status == "403":
        verbs = "list, read, write and delete" if writing else "list and read"
        return Refused(f"the store does not allow it{words}", f"the credentials must allow to {verbs}; {where}")
    if status == "401" or "credential" in lower or "metadata.google" in lower or "169.254" in lower:
        return Refused(f"the store wants credentials{words}", where)
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or status == "301":
        return Refused(f"the bucket `{bucket}` is in another region{words}", "set AWS_REGION to the bucket's own")
    if "invalid path" in lower or "parsing path" in lower:
        return Refused(
            "the name of an object is not one of a file: it has an empty part, or one that is `.` or `..`",
            "rename it, or name the others by a pattern in another folder",
        )
    if "non-partial response" in lower:
        error = Refused("the store gives no parts of an object", "copy it to this machine first")
        return Transient("the store gave the whole object in place of a part", tries=3, error=error)
    if status:
        return Refused(f"the store answers {status}{words if code else ''}", None)
    if "TimedOut" in said or "timed out" in lower:
        return Transient(f"no answer for {timeout:g} s")
    return Transient("the connection was cut" if "body" in lower else "no connection")


def _code(said: str) -> str:
    found = re.search(r"<Code>(\w+)</Code>", said)
    return found[1] if found else ""
