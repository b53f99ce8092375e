"""Outputs in S3, Google's or Azure's store: each object is there whole or not at all. Every request is retried."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from shardmill.errors import OutputError, UsageError
from shardmill.storage.addresses import scheme_of, shown
from shardmill.storage.objects import Conflict, Objects, check_address
from shardmill.storage.retrying import Patience, Refused, Retries, Transient, patiently

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az")

ROOM = 48 << 20
"""Bytes of memory that an upload or a download takes at the most."""

_PART = 8 << 20
_PARTS = 10_000  # in one upload, at the most; S3's own limit
LARGEST_OBJECT = _PARTS * ROOM // 2
"""Bytes of an object: so large that two of its parts fit in ROOM."""

# An output is not lost because a store is away for two minutes: so many tries that the time is what ends them.
_PATIENCE = {"tries": 16, "retry_seconds": 120.0, "pause": 0.2, "longest_pause": 20.0, "timeout": 30.0}

Version = dict[str, str]
"""What tells one state of an object from the next."""


def is_url(out: object) -> bool:
    """Whether an output is an object store's; UsageError for a URL that is none."""
    scheme = scheme_of(str(out))
    if scheme and scheme not in SCHEMES:
        raise UsageError(f"nothing can be written to `{scheme}://`", hint="a folder, or a URL of s3://, gs:// or az://")
    if scheme:
        check_address(str(out))
    return bool(scheme)


class ObjectStore:
    """The objects below one URL, by their names from there on. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """UsageError when the URL or the library is missing, OutputError when there are no credentials."""
        check_address(url)
        scheme, _, path = url.partition("://")
        bucket, _, prefix = path.partition("/")
        prefix = prefix.strip("/")
        if re.search(r"[?#]|//", path):
            raise UsageError(f"`{shown(url)}` is not the URL of a folder", hint=f"write {scheme}://BUCKET/FOLDER")
        self.url = f"{scheme.lower()}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._prefix = f"{prefix}/" if prefix else ""
        self.progressed = time.monotonic()
        """When the store last did something for us."""
        self.retries = Retries()
        self._patience = Patience.from_environment(**_PATIENCE)
        try:
            self._objects = Objects(self.url, self._patience, writing=True)
        except Refused as why:
            raise OutputError(why.message, place=self.url, hint=why.hint) from None
        self._library = self._objects.library

    def read(self, name: str) -> tuple[bytes, Version] | None:
        """A small object and its version; None when there is none."""

        def get() -> tuple[bytes, Version]:
            got = self._library.get(self._objects.store(), name)
            return bytes(got.bytes()), _version(got.meta)

        return self._found(name, get)

    def section(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object; FileNotFoundError when it is not there."""
        return self._ask(
            name, lambda: bytes(self._library.get_range(self._objects.store(), name, start=start, end=end))
        )

    def version(self, name: str) -> Version | None:
        """That of an object; None when there is none."""
        return self._found(name, lambda: _version(self._library.head(self._objects.store(), name)))

    def size(self, name: str) -> int:
        """Bytes of an object; FileNotFoundError when there is none."""
        size = self._found(name, lambda: int(self._library.head(self._objects.store(), name)["size"]))
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return size

    def put(self, name: str, data: bytes) -> None:
        """A small object, whatever stood there."""
        store = self._objects.store(sending=True)
        self._ask(name, lambda: self._library.put(store, name, data, use_multipart=False))

    def exchange(self, name: str, data: bytes, before: Version | None) -> Version | None:
        """A small object in the place of the version `before` (None: of nothing); None when another one stands there.

        `data` must differ from all that others may write: when it stands there, it was this call that wrote it, and
        only the answer was lost.
        """

        def put() -> Version | None:
            failed: Exception
            try:
                with self._objects.asking():
                    return _version(self._library.put(self._objects.store(), name, data, mode=before or "create"))
            except Transient as why:
                failed = why
            except (Conflict, FileNotFoundError):
                # Also said by a store that is busy with another request for the same object.
                failed = Transient(
                    "the store does not replace an object by its version", tries=3, error=_unable(self.url)
                )
            found = self.read(name)
            if found and found[0] == data:
                return found[1]
            if (found[1] if found else None) != before:
                return None
            raise failed

        return self._ask(name, put)

    def upload(self, name: str, blocks: Callable[[], Iterable[bytes]], size: int) -> None:
        """An object of any size, which is there when all of it is: nothing remains of an upload that fails."""
        if size <= _PART:
            self.put(name, b"".join(blocks()))
            return
        part = max(_PART, -(-size // _PARTS))
        check_size(name, size, self.url)
        store = self._objects.store(many=True, sending=True)

        def send() -> None:
            try:
                self._library.put(
                    store,
                    name,
                    self._counted(blocks()),
                    use_multipart=True,
                    chunk_size=part,
                    max_concurrency=max(1, ROOM // part - 1),
                )
            except FileNotFoundError as why:
                # Said when its end was asked for twice, since the first answer was lost; or when somebody aborted it.
                if "NoSuchUpload" not in str(why):
                    raise
                raise Transient("the store does not know the upload") from None

        self._ask(name, send)

    def download(self, name: str) -> Iterator[bytes]:
        """An object in blocks of about a megabyte; OutputError when it is not there, or was replaced meanwhile."""
        at, size = 0, None
        version: Version = {}
        stream: Iterator[Any] | None = None

        def block() -> bytes:
            nonlocal stream, size, version
            try:
                if stream is None:
                    options: dict[str, Any] = {"range": {"offset": at}} if at else {}
                    if at and "e_tag" in version:
                        options["if_match"] = version["e_tag"]
                    got = self._library.get(self._objects.store(), name, options=options)
                    if at == 0:
                        size, version = int(got.meta["size"]), _version(got.meta)
                    elif _version(got.meta) != version:
                        raise Conflict
                    stream = iter(got.stream(min_chunk_size=1 << 20))
                return bytes(next(stream, b""))
            except BaseException:
                stream = None
                raise

        while size is None or at < size:
            got = self._ask(name, block)
            if not got and size:
                raise OutputError("the object is shorter than it should be", place=f"{self.url}/{name}")
            at += len(got)
            yield got

    def beside(self, folders: Iterable[str]) -> dict[str, int]:
        """The objects directly in these folders (the URL's own is ``""``), with their sizes."""
        return {name: size for folder in folders for name, size in self._list(folder, deep=False)}

    def below(self, folder: str) -> list[tuple[str, int]]:
        """The objects anywhere below a folder, with their sizes."""
        return self._list(f"{folder}/", deep=True)

    def _list(self, folder: str, *, deep: bool) -> list[tuple[str, int]]:
        def listed() -> list[tuple[str, int]]:
            return [(entry["path"], entry["size"]) for entry in self._objects.entries(folder, deep=deep)]

        return self._ask(folder.rstrip("/"), listed)

    def delete(self, names: Iterable[str]) -> None:
        """As if they had never been; one that is not there is no error."""
        names = list(names)
        store = self._objects.store()
        for start in range(0, len(names), 1000):
            some = names[start : start + 1000]
            try:
                self._ask(some[0], partial(self._library.delete, store, some))
            except FileNotFoundError:
                # Said by stores that know no other answer, which leave the rest undone.
                for name in some:
                    self._found(name, partial(self._library.delete, store, name))

    def abort_uploads(self, ours: Callable[[str], bool]) -> None:
        """End uploads that a killed run has left open. Only S3 lets us list them; elsewhere they end by themselves."""
        account = self._objects.account
        if account is not None:
            self._ask("", lambda: account.abort_uploads(self._prefix, ours, self._patience.timeout))

    def _counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.progressed = time.monotonic()
            yield block

    def _found(self, name: str, call: Callable[[], T]) -> T | None:
        """What a call gives; None when the object is not there."""
        try:
            return self._ask(name, call)
        except FileNotFoundError:
            return None

    def _ask(self, name: str, call: Callable[[], T]) -> T:
        """What a call gives, retried; OutputError that names the object when the store refuses it.

        FileNotFoundError when the object is not there.
        """
        place = f"{self.url}/{name}".rstrip("/")

        def ask(_: float) -> T:
            with self._objects.asking():
                return call()

        try:
            answer = patiently(ask, place, self._patience, self.retries, threading.Event(), _not_done)
        except Refused as why:
            raise OutputError(why.message, place=place, hint=why.hint) from None
        except Conflict:
            raise OutputError("the object was replaced while it was read", place=place) from None
        self.progressed = time.monotonic()
        return answer


def check_size(name: str, size: int, url: str) -> None:
    """OutputError when an object would be too large to be sent in parts that fit in memory."""
    if size > LARGEST_OBJECT:
        raise OutputError(
            f"`{name}` would have {size:,} bytes, and one object may have {LARGEST_OBJECT:,}",
            place=url,
            hint="choose a format with shards, such as `-f shards`",
        )


def _not_done(trouble: Transient, tries: int, place: str) -> OutputError:
    return OutputError(
        f"the store did not do it: {trouble.reason}, tried {tries} times",
        place=place,
        hint="run the same command again when the store can be reached",
    )


def _unable(url: str) -> OutputError:
    return OutputError(
        "the store does not replace an object by its version, which two runs need to keep apart", place=url
    )


def _version(meta: Any) -> Version:
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
