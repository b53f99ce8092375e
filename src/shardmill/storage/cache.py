"""Remote files that are kept on disk for later runs (`--cache`): each is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.storage.feeds import Scanner
from shardmill.storage.files import PARTIAL, write_whole, writing_to
from shardmill.storage.names import path_in
from shardmill.storage.remote_file import RemoteFile
from shardmill.storage.source import Source
from shardmill.storage.web import NoRanges

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetcher
    from shardmill.storage.pool import Fetch

_BLOCK = 1 << 20
_ABANDONED_SECONDS = 24 * 3600  # without a byte written: no run is at work on such a file
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
        with writing_to(self._folder):
            if not (path.exists() and path.stat().st_size == source.size):
                path.parent.mkdir(parents=True, exist_ok=True)
                _remove_abandoned(path.parent)
                # Two runs may fetch the same file at the same time; the last one replaces it with the same bytes.
                try:
                    write_whole(path, _blocks(source, fetcher), shared=True)
                except NoRanges:
                    whole = fetcher.web.whole
                    fetcher.retry(lambda: write_whole(path, whole(source), shared=True), source.name)
            status = path.stat()
        return source._replace(path=str(path), size=status.st_size, version=str(status.st_mtime_ns))


def _remove_abandoned(folder: Path) -> None:
    """Remove what runs have left that were killed while they fetched."""
    for partial in folder.glob(f"*{PARTIAL}"):
        with suppress(FileNotFoundError):  # its run has ended meanwhile
            if time.time() - partial.stat().st_mtime > _ABANDONED_SECONDS:
                partial.unlink()


def _blocks(source: Source, fetcher: Fetcher) -> Iterator[bytes]:
    feed = RemoteFile(fetcher, source)
    try:
        scanner = Scanner(feed)
        while block := scanner.next(_BLOCK):
            yield block
    finally:
        feed.close()
