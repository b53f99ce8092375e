"""Remote files kept on disk for later runs, where that is asked for: each whole, or not there at all."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shardmill.errors import OutputError, SourceError
from shardmill.storage.addresses import path_in
from shardmill.storage.fetching import RemoteFeed
from shardmill.storage.files import PARTIAL
from shardmill.storage.retrying import STOP_CHECK, patiently
from shardmill.storage.source import Source
from shardmill.storage.web import NoRanges, WebStore

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetcher

_BLOCK = 1 << 20


class Cache:
    """A folder of files, each under a name made of its source's name and version. Several runs may share it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._begun: dict[str, Future[Source]] = {}
        self._lock = threading.Lock()

    def local(self, source: Source, fetcher: Fetcher) -> Source:
        """The same source on this machine, fetched if need be; the one after it is begun."""
        fetching = self._begin(source, fetcher)
        following = fetcher.following(source)
        if following is not None:
            self._begin(following, fetcher)
        while not fetching.done():
            if fetcher.stopped.is_set():
                raise SourceError("the run has ended")
            wait([fetching], timeout=STOP_CHECK)
        with self._lock:
            self._begun.pop(source.path, None)
        return fetching.result(0)

    def path(self, source: Source) -> Path:
        key = hashlib.sha256(f"{source.name}\n{source.size}\n{source.version}".encode()).hexdigest()[:24]
        return self._folder / key / (os.path.basename(path_in(source.path)) or "file")

    def _begin(self, source: Source, fetcher: Fetcher) -> Future[Source]:
        with self._lock:
            if source.path not in self._begun:
                future: Future[Source] = Future()
                self._begun[source.path] = future
                threading.Thread(
                    target=self._fetch, args=(source, fetcher, future), name="shardmill-cache", daemon=True
                ).start()
            return self._begun[source.path]

    def _fetch(self, source: Source, fetcher: Fetcher, future: Future[Source]) -> None:
        try:
            path = self.path(source)
            if not (path.exists() and path.stat().st_size == source.size):
                self._store(source, fetcher, path)
            status = path.stat()
            future.set_result(source._replace(path=str(path), size=status.st_size, version=str(status.st_mtime_ns)))
        except OSError as error:
            future.set_exception(OutputError(f"the cache cannot be written: {error.strerror}", place=str(self._folder)))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the file
            future.set_exception(error)

    def _store(self, source: Source, fetcher: Fetcher, path: Path) -> None:
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
            web = fetcher.store(source)
            assert isinstance(web, WebStore)  # nobody else gives a file whole or not at all
            web.stream(source, file.write, deadline)

        patiently(whole, source.name, fetcher.patience, fetcher.retries, fetcher.stopped)
    finally:
        feed.close()
