"""Remote files that are kept on disk for later runs (`--cache`): each is there whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shardmill.errors import OutputError
from shardmill.storage.feeds import Scanner
from shardmill.storage.files import PARTIAL
from shardmill.storage.names import path_in
from shardmill.storage.remote_file import RemoteFile
from shardmill.storage.source import Source
from shardmill.storage.web import NoRanges

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetcher
    from shardmill.storage.pool import Fetch

_BLOCK = 1 << 20
_SLOWEST = 1 << 20  # bytes that come in the time for one request, or a file comes too slowly


class Cache:
    """A folder of files, each named by a hash of its source's name, size and version. Several runs may share it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._fetches: dict[str, Fetch[Source]] = {}

    def local(self, source: Source, index: int, fetcher: Fetcher) -> Source:
        """Return the source as a local file, fetched if necessary, and begin to fetch the next. For one thread."""
        fetch = self._start(source, fetcher)
        for following in fetcher.sources_after(index, 1):
            if following.remote:
                self._start(following, fetcher)
        found = fetcher.wait(fetch)
        del self._fetches[source.path]
        return found

    def _start(self, source: Source, fetcher: Fetcher) -> Fetch[Source]:
        if source.path not in self._fetches:
            requests = 1 + (source.size or 0) // _SLOWEST
            self._fetches[source.path] = fetcher.submit(lambda: self._fetch(source, fetcher), source.name, requests)
        return self._fetches[source.path]

    def _fetch(self, source: Source, fetcher: Fetcher) -> Source:
        key = hashlib.sha256(f"{source.name}\n{source.size}\n{source.version}".encode()).hexdigest()[:24]
        path = self._folder / key / (os.path.basename(path_in(source.path)) or "file")
        try:
            if not (path.exists() and path.stat().st_size == source.size):
                _store(source, fetcher, path)
            status = path.stat()
        except OSError as error:
            raise OutputError(f"the cache cannot be written: {error.strerror}", place=str(self._folder)) from error
        return source._replace(path=str(path), size=status.st_size, version=str(status.st_mtime_ns))


def _store(source: Source, fetcher: Fetcher, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"*{PARTIAL}"):
        _remove_unlocked(left)
    # Two runs may fetch the same file at the same time; the last one to finish replaces it with the same bytes.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    try:
        with _locked(partial) as file:
            _copy(source, fetcher, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _lock(file: BinaryIO) -> bool:
    """Whether a file could be locked, until it is closed or its process ends; False on a disk without locks too."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _locked(partial: Path) -> BinaryIO:
    """A new file, locked before another run could take it for one that was left."""
    while True:
        file = open(partial, "wb")  # noqa: SIM115 - the caller closes it
        _lock(file)
        if partial.exists():
            return file
        file.close()


def _remove_unlocked(partial: Path) -> None:
    """Remove what a run has left that was killed while it fetched."""
    try:
        with open(partial, "rb") as file:
            if _lock(file):
                partial.unlink()
    except FileNotFoundError:  # its run has ended, or another one was faster
        return


def _copy(source: Source, fetcher: Fetcher, file: BinaryIO) -> None:
    feed = RemoteFile(fetcher, source)
    scanner = Scanner(feed)
    try:
        while block := scanner.next(_BLOCK):
            file.write(block)
    except NoRanges:

        def whole() -> None:
            file.seek(0)
            file.truncate()
            file.writelines(fetcher.web.stream(source, 0, source.size or 0))

        fetcher.retry(whole, source.name)
    finally:
        feed.close()
