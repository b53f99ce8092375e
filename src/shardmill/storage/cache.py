"""Remote files kept on disk for later runs, where that is asked for: each whole, or not there at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shardmill.errors import OutputError
from shardmill.storage.fetching import RemoteFeed
from shardmill.storage.files import PARTIAL
from shardmill.storage.names import path_in
from shardmill.storage.source import Source
from shardmill.storage.web import NoRanges

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetch, Fetcher

_BLOCK = 1 << 20


class Cache:
    """A folder of files, each under a name made of its source's name and version. Several runs may share it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._begun: dict[str, Fetch[Source]] = {}

    def local(self, source: Source, fetcher: Fetcher) -> Source:
        """Return the source on this machine, fetched if need be, and begin with the next. For one thread."""
        fetch = self._begin(source, fetcher)
        for following in fetcher.following(source, 1):
            if following.remote:
                self._begin(following, fetcher)
        found = fetcher.wait(fetch)
        del self._begun[source.path]
        return found

    def _begin(self, source: Source, fetcher: Fetcher) -> Fetch[Source]:
        if source.path not in self._begun:
            self._begun[source.path] = fetcher.begin(lambda: self._fetch(source, fetcher))
        return self._begun[source.path]

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
    # Two runs may fetch the same file at once; the last one to finish replaces the same bytes by the same bytes.
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with open(partial, "wb") as file:
            _copy(source, fetcher, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: Source, fetcher: Fetcher, file: BinaryIO) -> None:
    feed = RemoteFeed(fetcher, source)
    try:
        while block := feed.read_on(_BLOCK):
            file.write(block)
    except NoRanges:

        def whole(deadline: float) -> None:
            file.seek(0)
            file.truncate()
            fetcher.web.stream(source, file.write, deadline)

        fetcher.patiently(whole, source.name)
    finally:
        feed.close()
