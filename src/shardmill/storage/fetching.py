"""The requests of a run to servers, and what it reads ahead of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from shardmill.errors import SourceError
from shardmill.storage.feeds import Feed, FileFeed, StreamFeed, pipe_blocks
from shardmill.storage.names import BUCKETS, host_of, scheme_of
from shardmill.storage.objects import Objects
from shardmill.storage.pool import Fetch, RequestPool
from shardmill.storage.remote_file import Bytes, RemoteFile, Window
from shardmill.storage.retrying import Retries, RetryPolicy, retry
from shardmill.storage.source import SMALL, Source
from shardmill.storage.web import WebStore

if TYPE_CHECKING:
    from shardmill.storage.cache import Cache

# The whole window is requested at once if the reader is fast: with a latency of 200 ms and a window of 16 MB, 16 pieces
# on 16 connections gave 80 MB/s; 8 connections with pieces of half the size gave 30.
CONNECTIONS = 16
SMALL_WINDOW = 8 << 20
# Files up to this size are fetched whole when they are opened.
WHOLE = 1 << 20
_OPEN_AHEAD = 8  # the most files that are opened ahead of their turn
T = TypeVar("T")


class Fetcher:
    """Makes the requests of a run. Leaving the context ends all waits."""

    def __init__(
        self,
        sources: Sequence[Source] = (),
        window: int = SMALL_WINDOW,
        policy: RetryPolicy | None = None,
        cache: Cache | None = None,
        retries: Retries | None = None,
        footer_bytes: Callable[[Source], int] = lambda source: 0,
    ) -> None:
        """`sources`: in the order in which they will be opened. `window`: bytes that may be held or requested ahead.

        `footer_bytes`: how many bytes at the end of a source are read first.
        """
        self.cache = cache
        self.policy = policy or RetryPolicy.from_environment()
        self.retries = retries or Retries()
        self._pool = RequestPool(CONNECTIONS, self._close)
        self.stopped, self.wait = self._pool.stopped, self._pool.wait
        self._for_heads = window // 4
        """Bytes of the window for the first bytes of sources."""
        self.window = Window(window - self._for_heads, CONNECTIONS)
        self._sources, self._footer_bytes = sources, footer_bytes
        self._opened: dict[str, RemoteFile] = {}  # ahead of their turn
        self._web: WebStore | None = None
        self._buckets: dict[str, Objects] = {}
        self._connecting = threading.Lock()

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    def _close(self) -> None:
        if self._web is not None:
            self._web.close()

    @property
    def web(self) -> WebStore:
        """The client for web servers and the hub."""
        with self._connecting:
            self._web = self._web or WebStore(self.policy, self.stopped)
            return self._web

    def bucket(self, url: str) -> Objects:
        """Return the client for a URL in an object store; raise UsageError where the library is missing."""
        bucket = f"{scheme_of(url)}://{host_of(url)}"
        with self._connecting:
            if bucket not in self._buckets:
                self._buckets[bucket] = Objects(bucket, self.policy, self._pool)
            return self._buckets[bucket]

    def retry(self, call: Callable[[], T], place: str) -> T:
        """Return what a call returns, retried."""
        try:
            return retry(call, place, self.policy, self.retries, self.stopped)
        except FileNotFoundError:
            raise SourceError("the source is not there", place=place, hint="check its name") from None

    def request(self, call: Callable[[], T], place: str) -> T:
        """Return what a call returns, retried, within the time for a request."""
        return self.wait(self.submit(call, place, urgent=True))

    def submit(self, call: Callable[[], T], place: str, requests: int = 1, urgent: bool = False) -> Fetch[T]:
        """Begin a call, which is retried. `requests`: how many it makes, one after the other."""
        # The last attempt may begin just before the time for all of them is over.
        seconds = requests * (self.policy.retry_seconds + self.policy.timeout)
        return self._pool.submit(lambda: self.retry(call, place), place, seconds, urgent)

    def read(self, source: Source, start: int, end: int) -> Bytes:
        """Return the bytes of a range; the request is made before those that wait."""
        return self.wait(self.submit_range(source, start, end, urgent=True))

    def submit_range(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch[Bytes]:
        """Begin to fetch a range."""
        place = f"{source.name}, byte {start:,}"
        return self.submit(lambda: self.fetch(source, start, end), place, urgent=urgent)

    def fetch(self, source: Source, start: int, end: int) -> Bytes:
        """Return the bytes of a range, in one attempt; raise Transient where another may succeed."""
        if start >= end:
            return b""
        store = self.bucket(source.path) if scheme_of(source.path) in BUCKETS else self.web
        return store.fetch(source, start, end)

    def open(self, source: Source, index: int | None = None) -> RemoteFile:
        """Return a source as a file, and open those after `index` ahead while there is room for their first bytes."""
        file = self._opened.pop(source.path, None) or RemoteFile(self, source)
        room = self._for_heads - self._edges(source)
        for later in self.sources_after(index, _OPEN_AHEAD) if self.cache is None else ():
            room -= self._edges(later)
            if room <= 0:
                break
            if later.remote and later.size is not None and later.path not in self._opened:
                self._opened[later.path] = RemoteFile(self, later)
        return file

    def edge_spans(self, source: Source) -> list[tuple[int, int]]:
        """Return what is read first of a source: its beginning, and its footer if it has one."""
        size = source.size or 0
        if size <= WHOLE:
            return [(0, size)]
        footer = self._footer_bytes(source)
        return [(0, SMALL), (size - footer, size)] if footer else [(0, SMALL)]

    def _edges(self, source: Source) -> int:
        """Bytes that are fetched when a source is opened."""
        return sum(end - start for start, end in self.edge_spans(source))

    def sources_after(self, index: int | None, count: int) -> Sequence[Source]:
        """Return the sources that will be opened after one."""
        return () if index is None else self._sources[index + 1 : index + 1 + count]


def open_feed(source: Source, fetcher: Fetcher | None = None, index: int | None = None) -> Feed:
    """Return the bytes of a source as they are stored; a remote one needs a fetcher, and `index` as in its `open`."""
    if source.size is None:
        return StreamFeed(source.name, pipe_blocks(source, fetcher.stopped if fetcher else None))
    if source.remote:
        assert fetcher is not None
        return fetcher.open(source, index)
    return FileFeed(source, fetcher.stopped if fetcher else None)
