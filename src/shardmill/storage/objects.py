"""Object stores: the client for sources and outputs, listings, and sources read by ranges. One call is one attempt.

Calls within `Objects.translated_errors` raise:

Transient                  the call may succeed later
FileNotFoundError          there is no such object
Conflict                   the object is not in the state that was asked for
SourceError, OutputError   the store refuses, and will again; says what to do
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar

from shardmill.errors import OutputError, SourceError, UsageError
from shardmill.extras import needs
from shardmill.storage.names import BUCKETS, host_of, public_url, scheme_of
from shardmill.storage.pool import RequestPool
from shardmill.storage.retrying import RetryPolicy, Transient, Unreachable, seems_changed
from shardmill.storage.s3 import S3Account
from shardmill.storage.source import PackedRows, Source
from shardmill.storage.store_errors import NO_BUCKET, SETTINGS, ErrorType, code_in, error_for

T = TypeVar("T")

# Retries by the library itself, within operations of many requests: a listing of many pages, an upload of many parts.
# If we repeated the whole operation for each failure, it would never end where one request in a hundred fails.
_LIBRARY_RETRIES, _LIBRARY_SECONDS = 8, 120
_CONNECT_SECONDS = 10.0


class Conflict(Exception):
    """The object is not in the state that was asked for."""


class ListedObject(NamedTuple):
    """One file of a list."""

    path: str
    """In its bucket, or in its repository."""
    size: int
    version: str


class Objects:
    """The objects below one URL of a bucket, by their names from there on. Any thread may use it."""

    def __init__(self, url: str, policy: RetryPolicy, pool: RequestPool, error: ErrorType = SourceError) -> None:
        """`url`: a bucket, or a folder in one, checked by `check_address`. `pool`: makes the requests of listings.

        `error`: raised if the store refuses a call. Raise it when there are no credentials, UsageError when a library
        is missing.
        """
        self.url, self._policy, self._pool, self._error = url, policy, pool, error
        scheme = scheme_of(url)
        self._kind = BUCKETS[scheme]
        purpose = f"writing to {scheme}://" if error is OutputError else f"{scheme}:// sources"
        self._stores = needs("obstore.store", self._kind, purpose)
        self._errors = needs("obstore.exceptions", self._kind, purpose)
        self._account = S3Account(url, error, purpose) if self._kind == "s3" else None
        self._settings = self._account.settings() if self._account else {}
        self._clients: dict[tuple[bool, bool], Any] = {}
        self.client()

    def client(self, *, many: bool = False, sending: bool = False) -> Any:
        """The library's client. `many`: for calls of many requests. `sending`: for calls with a large body."""
        key = many, sending
        if key not in self._clients:
            policy = self._policy
            options = {
                "timeout": timedelta(seconds=policy.retry_seconds),
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, policy.timeout)),
                # An endpoint of http:// is used only when somebody has set one.
                "allow_http": True,
            }
            if not sending:  # nothing is read while a body is sent, so it would limit the time to send all of it
                options["read_timeout"] = timedelta(seconds=policy.timeout)
            retry = {
                "max_retries": min(_LIBRARY_RETRIES, policy.tries - 1) if many else 0,
                "retry_timeout": timedelta(seconds=min(_LIBRARY_SECONDS, policy.retry_seconds)),
                "backoff": {
                    "init_backoff": timedelta(seconds=policy.pause),
                    "max_backoff": timedelta(seconds=policy.longest_pause),
                },
            }
            try:
                from_url = self._stores.from_url
                self._clients[key] = from_url(self.url, client_options=options, retry_config=retry, **self._settings)
            except (self._errors.BaseError, ValueError):
                # No request was made yet, so a setting is wrong. The library's message may contain a key.
                hint = f"check {SETTINGS[self._kind]}"
                raise self._error("the settings for the store do not suffice", place=self.url, hint=hint) from None
        return self._clients[key]

    def entries(self, folder: str) -> Iterator[Any]:
        """Yield the library's description of each object anywhere below a folder.

        Raise Transient when a list repeats itself, has no end or has lost its end. The library takes any XML for a page
        of a list, and one without objects for the last page. So an end counts only if another list, in which the last
        object is found, has nothing after it. Azure's pages have a form that the library checks.
        """
        last = ""
        for round in count(1):
            before = last
            for key, entry in self._entries_after(folder, before):
                yield entry
                last = key
            # Where nothing was found, it is asked for once more.
            if self._kind == "azure" or (last == before and (last or round > 1)):
                return

    def _entries_after(self, folder: str, after: str) -> Iterator[tuple[str, Any]]:
        """Yield the objects below a folder, with their keys, after the one with this key, which must be listed too."""
        found, first, last = not after, "", ""
        pages = self.client(many=True).list(folder or None, offset=_shortly_before(after) or None, chunk_size=1000)
        while page := self._in_time(lambda: next(pages, ()), folder):
            for entry in page:
                path = entry["path"]
                # `NAME/`, an empty object that marks a folder, is listed as `NAME`.
                key = path if path > last or entry["size"] else f"{path}/"
                # All but Azure's list their keys in ascending order.
                if key == first if self._kind == "azure" else key <= last:
                    raise self._unsound("the store's list names an object twice", path)
                first, last = first or key, key
                if found:
                    yield key, entry
                found = found or after in (key, path)
        if not found:
            raise self._unsound("the store's list has lost an object", after)

    def _unsound(self, message: str, path: str) -> Transient:
        hint = "run the same command again when the store is well"
        return Transient(message, tries=3, error=self._error(message, place=f"{self.url}/{path}", hint=hint))

    def _in_time(self, call: Callable[[], T], folder: str) -> T:
        """Return what a call for a list gives; raise Transient when it takes too long.

        A list of empty pages has no end, and the library follows them within one call, so the limits for single
        requests do not suffice.
        """
        seconds = self._policy.retry_seconds
        try:
            return self._pool.wait(self._pool.submit(call, f"{self.url}/{folder}", seconds))
        except Unreachable:
            raise Transient(f"the store's list does not end within {seconds:,.0f} s") from None

    @contextmanager
    def translated_errors(self, name: str) -> Iterator[None]:
        """Turn the library's errors into those that the module's docstring lists. `name`: an object or folder."""
        errors = self._errors
        try:
            yield
        except (errors.PreconditionError, errors.AlreadyExistsError):
            raise Conflict from None
        except (errors.BaseError, OSError, ValueError) as error:
            # An empty response to HEAD does not say whether the object or the bucket is missing.
            if isinstance(error, FileNotFoundError) and code_in(str(error)) not in NO_BUCKET:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
            place = f"{self.url}/{name}".rstrip("/")
            raise error_for(str(error), place, self._error, self._policy.timeout) from None

    def find(self, path: str) -> ListedObject | None:
        """Return the object at a path, or None."""
        try:
            with self.translated_errors(path):
                return _listed(self.client().head(path))
        except FileNotFoundError:
            return None

    def list(self, folder: str, wanted: Callable[[str], Any]) -> PackedRows:
        """Return the wanted objects anywhere below a folder, each as a ListedObject: all, or an error."""
        below = f"{folder}/" if folder else ""
        with self.translated_errors(folder):
            listed = (_listed(entry) for entry in self.entries(folder) if entry["path"].startswith(below))
            return PackedRows(one for one in listed if wanted(one.path) and not _may_mark_folder(one))

    def fetch(self, source: Source, start: int, end: int) -> bytes:
        """Return the bytes of a range of a source; raise SourceError when it is not as it was found."""
        found = ListedObject(path_in_bucket(source.path), source.size or 0, source.version)
        try:
            with self.translated_errors(found.path):
                return self.read_range(found, start, end)
        except Conflict:
            raise seems_changed(source) from None

    def read_range(self, found: ListedObject, start: int, end: int) -> bytes:
        """Return the bytes of a range of an object; raise Conflict when it is not the one that was found."""
        options: dict[str, Any] = {"range": (start, end)}
        if found.version and not found.version.startswith("W/"):
            options["if_match"] = f'"{found.version}"'
        got = self.client().get(found.path, options=options)
        if _listed(got.meta)[1:] != found[1:]:
            raise Conflict
        data = bytes(got.bytes())
        if len(data) < end - start:
            raise Transient(f"{scheme_of(self.url)} gave {len(data):,} of {end - start:,} bytes")
        if len(data) > end - start:
            raise Conflict
        return data


def _may_mark_folder(one: ListedObject) -> bool:
    """Whether it may only mark a folder: an empty object `NAME/`, which the library lists as `NAME`."""
    return not one.size and "." not in one.path.rpartition("/")[2]


def _shortly_before(key: str) -> str:
    """A path that comes before a key, with few others between them; empty: there is none."""
    before = key.rstrip("/")[:-1]
    folder, _, name = before.rpartition("/")
    return folder if name in ("", ".", "..") else before


def _listed(meta: Any) -> ListedObject:
    version = (meta.get("e_tag") or "").strip('"') or meta["last_modified"].isoformat()
    return ListedObject(meta["path"], int(meta["size"]), version)


def path_in_bucket(url: str) -> str:
    return url.partition("://")[2].partition("/")[2].strip("/")


def check_address(url: str) -> None:
    """Raise UsageError for a URL that names no bucket, or that holds a secret, which is not repeated."""
    if public_url(url) != url:
        raise UsageError(
            "keys do not belong into a URL",
            place=public_url(url),
            hint="set them where the store's own tools look: environment variables or files",
        )
    if not host_of(url):
        raise UsageError("the address names no bucket", place=url, hint=f"write `{scheme_of(url)}://BUCKET/PATH`")
