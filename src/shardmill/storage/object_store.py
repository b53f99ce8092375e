"""Outputs in object stores: each object is there whole or not at all. Every request is retried."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shardmill.errors import OutputError, UsageError
from shardmill.storage.files import file_blocks
from shardmill.storage.names import public_url, scheme_of
from shardmill.storage.objects import Conflict, Objects, check_address
from shardmill.storage.pool import RequestPool
from shardmill.storage.retrying import Retries, RetryPolicy, Transient, retry
from shardmill.storage.stores import FolderStore, Store

T = TypeVar("T")

ROOM = 48 << 20
"""Bytes of memory that an upload or a download takes at the most."""

_PART = 8 << 20
_PARTS = 10_000  # in one upload, at the most; S3's own limit
LARGEST_OBJECT = _PARTS * ROOM // 2
"""The largest object in bytes: two of its parts must fit in ROOM."""

# A store may be unreachable for two minutes: there are so many attempts that only the time ends them.
_PATIENCE = {"tries": 16, "retry_seconds": 120.0, "pause": 0.2, "longest_pause": 20.0, "timeout": 30.0}

Version = dict[str, str]
"""Identifies one version of an object: its ETag, and its version if the store has one."""


def is_url(out: object) -> bool:
    """Whether an output is in an object store; raise UsageError for any other URL."""
    scheme = scheme_of(str(out))
    if scheme and scheme not in ("s3", "gs", "az"):
        raise UsageError(f"nothing can be written to `{scheme}://`", hint="a folder, or a URL of s3://, gs:// or az://")
    if scheme:
        check_address(str(out))
    return bool(scheme)


def open_store(named: str | os.PathLike[str]) -> Store:
    """Return the store at a folder or a URL; raise UsageError for a URL that cannot be written to."""
    return ObjectStore(os.fspath(named)) if is_url(named) else FolderStore(Path(named))


class ObjectStore(Objects, Store):
    """The objects of an output below one URL."""

    def __init__(self, url: str) -> None:
        """Raise UsageError when the URL is wrong or a library missing, OutputError when there are no credentials."""
        check_address(url)
        scheme, _, path = url.partition("://")
        if re.search(r"[?#]|//", path):
            raise UsageError(f"`{public_url(url)}` is not the URL of a folder", hint=f"write {scheme}://BUCKET/FOLDER")
        bucket, _, prefix = path.rstrip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self.last_progress = time.monotonic()
        """When the store last answered, or took a block of an upload."""
        self.retries = Retries()
        whole = f"{scheme.lower()}://{bucket}/{prefix}".rstrip("/")
        super().__init__(whole, RetryPolicy.from_environment(**_PATIENCE), RequestPool(1), OutputError)

    def read(self, name: str) -> bytes | None:
        found = self.read_version(name)
        return None if found is None else found[0]

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        """Return a small object and its version, or None when there is none."""

        def get() -> tuple[bytes, Version]:
            got = self.client().get(name)
            return bytes(got.bytes()), _version(got.meta)

        return self._request_or_none(name, get)

    def section(self, name: str, start: int, end: int) -> bytes:
        return self._request(name, lambda: bytes(self.client().get_range(name, start=start, end=end)))

    def version(self, name: str) -> Version | None:
        """Return the version of an object, or None when there is none."""
        return self._request_or_none(name, lambda: _version(self.client().head(name)))

    def size(self, name: str) -> int:
        return self._request(name, lambda: int(self.client().head(name)["size"]))

    def create(self, name: str, data: bytes) -> bool:
        return self.compare_and_swap(name, data, None) is not None

    def compare_and_swap(self, name: str, data: bytes, before: Version | None) -> Version | None:
        """Replace version `before` (None: nothing) of a small object; return None when there is another version.

        `data` must differ from everything that others may write: if it is there, this call wrote it, and only the
        response was lost.
        """

        def put() -> Version | None:
            failed: Transient
            try:
                with self.translated_errors(name):
                    return _version(self.client().put(name, data, mode=before or "create"))
            except Transient as error:
                failed = error
            except (Conflict, FileNotFoundError):
                # A store that is busy with another request for the same object answers so too.
                message = "the store does not replace an object by its version"
                unable = OutputError(f"{message}, which two runs need to keep apart", place=self.url)
                failed = Transient(message, tries=3, error=unable)
            found = self.read_version(name)
            if found and found[0] == data:
                return found[1]
            if (found[1] if found else None) != before:
                return None
            raise failed

        return self._request(name, put)

    def upload(self, name: str, blocks: Callable[[], Iterable[bytes]], size: int) -> None:
        """Write an object of any size. It appears when it is whole; a failed upload leaves nothing."""
        if size <= _PART:
            data = b"".join(blocks())
            self._request(name, lambda: self.client(sending=True).put(name, data, use_multipart=False))
            return
        part = max(_PART, -(-size // _PARTS))
        check_size(name, size, self.url)
        store = self.client(many=True, sending=True)
        several = {"use_multipart": True, "chunk_size": part, "max_concurrency": max(1, ROOM // part - 1)}

        def send() -> None:
            try:
                store.put(name, self._counted(blocks()), **several)
            except FileNotFoundError as error:
                # The response to its completion was lost, and it was completed twice; or somebody aborted it.
                if "NoSuchUpload" not in str(error):
                    raise
                raise Transient("the store does not know the upload") from None

        self._request(name, send)

    def upload_file(
        self,
        name: str,
        path: Path,
        start: int = 0,
        end: int | None = None,
        sent: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Write an object with the bytes of a file between two offsets. `sent`: called with the size of each block."""
        end = path.stat().st_size if end is None else end

        def blocks() -> Iterator[bytes]:
            for block in file_blocks(path, start, end):
                sent(len(block))
                yield block

        self.upload(name, blocks, end - start)

    def take(self, folder: Path, names: Mapping[str, str], sent: Callable[[int], None] | None = None) -> None:
        for file, name in names.items():
            self.upload_file(name, folder / file, sent=sent or (lambda size: None))

    def download(self, name: str) -> Iterator[bytes]:
        """Yield an object in blocks; raise FileNotFoundError, or OutputError when it is replaced meanwhile."""
        found = self._request(name, lambda: self.find(name))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        for start in range(0, found.size, _PART):
            yield self._request(name, partial(self.read_range, found, start, min(found.size, start + _PART)))

    def list_folders(self, folders: Iterable[str]) -> dict[str, int]:
        wanted = set(folders)
        return {name: size for name, size in self.list_tree("") if name.rpartition("/")[0] in wanted}

    def list_tree(self, folder: str) -> list[tuple[str, int]]:
        def listed() -> list[tuple[str, int]]:
            return [(entry["path"], entry["size"]) for entry in self.entries(folder)]

        return self._request(folder, listed)

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        for start in range(0, len(names), 1000):
            some = names[start : start + 1000]
            try:
                self._request(some[0], partial(self.client().delete, some))
            except FileNotFoundError:
                # Some stores answer so if one of them does not exist, and do not delete the others.
                for name in some:
                    self._request_or_none(name, partial(self.client().delete, name))

    def delete_tree(self, folder: str) -> None:
        self.delete(name for name, _ in self.list_tree(folder))

    def abort_uploads(self, ours: Callable[[str], bool]) -> None:
        """Abort uploads that a killed run has left open. Only S3 can list them; other stores delete them in time."""
        account = self._account
        if account is not None:
            self._request("", lambda: account.abort_uploads(self._prefix, ours, self._policy.timeout))

    def _counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.last_progress = time.monotonic()
            yield block

    def _request_or_none(self, name: str, call: Callable[[], T]) -> T | None:
        """Return what a call gives, or None when the object is not there."""
        try:
            return self._request(name, call)
        except FileNotFoundError:
            return None

    def _request(self, name: str, call: Callable[[], T]) -> T:
        """Return what a call gives, retried; raise FileNotFoundError or an OutputError that names the object."""
        place = f"{self.url}/{name}".rstrip("/")

        def ask() -> T:
            with self.translated_errors(name):
                return call()

        try:
            answer = retry(ask, place, self._policy, self.retries, threading.Event(), _request_failed)
        except Conflict:
            raise OutputError("the object was replaced while it was read", place=place) from None
        self.last_progress = time.monotonic()
        return answer


def check_size(name: str, size: int, url: str) -> None:
    """Raise OutputError when an object would be too large to be uploaded in parts that fit in memory."""
    if size > LARGEST_OBJECT:
        raise OutputError(
            f"`{name}` would have {size:,} bytes, and one object may have {LARGEST_OBJECT:,}",
            place=url,
            hint="choose a format with shards, such as `-f shards`",
        )


def _request_failed(error: Transient, tries: int, place: str) -> OutputError:
    return OutputError(
        f"the request to the store failed: {error.reason} ({tries} attempt{'s' if tries != 1 else ''})",
        place=place,
        hint="run the same command again when the store can be reached",
    )


def _version(meta: Any) -> Version:
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
