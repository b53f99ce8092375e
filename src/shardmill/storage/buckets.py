"""Sources in object stores, by ranges, each answer checked to be of the object that was found. One call is one try."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from shardmill.errors import SourceError
from shardmill.storage.addresses import host_of, scheme_of
from shardmill.storage.objects import Conflict, Objects, check_address
from shardmill.storage.retrying import Patience, Refused, Transient
from shardmill.storage.source import Source, changed


class ListedObject(NamedTuple):
    """One object of a list."""

    path: str
    """In its bucket."""
    size: int
    version: str


class BucketStore:
    """The buckets of one kind of object store. Any thread may call it."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._buckets: dict[str, Objects] = {}
        self._lock = threading.Lock()

    def find(self, url: str) -> ListedObject | None:
        """The object that a URL names; None when there is none."""
        with self._asking(url) as (objects, path):
            try:
                with objects.asking():
                    return _listed(objects.library.head(objects.store(), path))
            except FileNotFoundError:
                return None

    def list(self, url: str, wanted: Callable[[str], Any], *, deep: bool) -> list[ListedObject]:
        """The wanted objects in a folder, or anywhere below it; read to the end of the list, or an error."""
        with self._asking(url) as (objects, folder), objects.asking():
            below = f"{folder}/" if folder else ""
            listed = objects.entries(folder, deep=deep)
            found = [_listed(entry) for entry in listed if entry["path"].startswith(below)]
        folders = {one.path.rpartition("/")[0] for one in found}
        return [one for one in found if wanted(one.path) and not self._is_marker(one, folders, url)]

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> bytes:
        """The bytes of a range; Transient when it may go better another time."""
        with self._asking(source.path) as (objects, path):
            options: dict[str, Any] = {"range": (start, end)}
            if source.version and not source.version.startswith("W/"):
                options["if_match"] = f'"{source.version}"'
            try:
                with objects.asking():
                    got = objects.library.get(objects.store(), path, options=options)
                    if _listed(got.meta)[1:] != (source.size, source.version):
                        raise changed(source)
                    data = bytes(got.bytes())
            except Conflict:
                raise changed(source) from None
        if len(data) < end - start:
            raise Transient(f"{scheme_of(source.path)} gave {len(data):,} of {end - start:,} bytes")
        if len(data) > end - start:
            raise changed(source)
        if time.monotonic() > deadline:
            raise Transient(f"{scheme_of(source.path)} is too slow")
        return data

    def _is_marker(self, one: ListedObject, folders: set[str], url: str) -> bool:
        """Whether it only stands for a folder: an empty object `NAME/`, which the library shows as `NAME`."""
        if one.size or "." in one.path.rpartition("/")[2]:
            return False
        return one.path in folders or self.find(f"{scheme_of(url)}://{host_of(url)}/{one.path}") is None

    @contextmanager
    def _asking(self, url: str) -> Iterator[tuple[Objects, str]]:
        """The client for a URL and the path in its bucket; what the store refuses becomes a SourceError."""
        try:
            bucket = f"{scheme_of(url)}://{host_of(url)}"
            with self._lock:
                if bucket not in self._buckets:
                    check_address(url)
                    self._buckets[bucket] = Objects(bucket, self._patience, writing=False)
            yield self._buckets[bucket], url.partition("://")[2].partition("/")[2].strip("/")
        except Transient as why:
            why.reason = f"{why.reason} from {scheme_of(url)}"
            if isinstance(why.error, Refused):
                why.error = SourceError(why.error.message, place=url, hint=why.error.hint)
            raise
        except Refused as why:
            raise SourceError(why.message, place=url, hint=why.hint) from None
        except FileNotFoundError:
            raise SourceError("the source is not there", place=url, hint="check its name") from None


def _listed(meta: Any) -> ListedObject:
    version = (meta.get("e_tag") or "").strip('"') or meta["last_modified"].isoformat()
    return ListedObject(meta["path"], int(meta["size"]), version)
