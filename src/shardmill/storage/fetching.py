"""Reads remote sources: the window of bytes that are read ahead, the file that is read, and the run's requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardmill.errors import SourceError
from shardmill.storage.feeds import CONTEXT, Feed, FileFeed, RandomAccess, StreamFeed, pipe_blocks
from shardmill.storage.names import BUCKETS, host_of, scheme_of
from shardmill.storage.objects import Objects
from shardmill.storage.pool import Fetch, RequestPool
from shardmill.storage.retrying import Retries, RetryPolicy, retry
from shardmill.storage.source import SMALL, Source, changed_error
from shardmill.storage.web import WebStore

if TYPE_CHECKING:
    from shardmill.storage.cache import Cache

# The whole window is requested at once if the reader is fast: with a latency of 200 ms and a window of 16 MB, 16 pieces
# on 16 connections gave 80 MB/s; 8 connections with pieces of half the size gave 30.
CONNECTIONS = 16
SMALL_WINDOW = 8 << 20
# Files up to this size are fetched whole when they are opened.
WHOLE = 1 << 20
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 18, 4 << 20
_OPEN_AHEAD = 8  # the most files that are opened ahead of their turn
Bytes = bytes | bytearray
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
        # A request ends by itself in that time, unless the head of its answer comes byte by byte.
        self.pool = RequestPool(CONNECTIONS, self.policy.retry_seconds + self.policy.timeout, self._close)
        self.stopped = self.pool.stopped
        self._for_heads = window // 4
        """Bytes of the window for the first bytes of sources."""
        self.window = Window(window - self._for_heads)
        self._sources, self._footer_bytes = sources, footer_bytes
        self._opened: dict[str, RemoteFile] = {}  # ahead of their turn
        self._web: WebStore | None = None
        self._buckets: dict[str, Objects] = {}
        self._connecting = threading.Lock()

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.stop()

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
                self._buckets[bucket] = Objects(bucket, self.policy)
            return self._buckets[bucket]

    def retry(self, call: Callable[[], T], place: str) -> T:
        """Return what a call returns, retried."""
        try:
            return retry(call, place, self.policy, self.retries, self.stopped)
        except FileNotFoundError:
            raise SourceError("the source is not there", place=place, hint="check its name") from None

    def request(self, call: Callable[[], T], place: str, requests: float = 1) -> T:
        """Return what a call returns, retried, within the time for its requests."""
        return self.pool.wait(self.submit(call, place, urgent=True, requests=requests), place)

    def submit(self, call: Callable[[], T], place: str, urgent: bool = False, requests: float = 1) -> Fetch[T]:
        """Begin a call, which is retried."""
        return self.pool.submit(lambda: self.retry(call, place), urgent, requests)

    def read(self, source: Source, start: int, end: int) -> Bytes:
        """Return the bytes of a range; the request is made before those that wait."""
        return self.pool.wait(self.submit_range(source, start, end, urgent=True), source.name)

    def submit_range(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch[Bytes]:
        """Begin to fetch a range."""

        def fetch() -> Bytes:
            store = self.bucket(source.path) if scheme_of(source.path) in BUCKETS else self.web
            return store.fetch(source, start, end)

        return self.submit(fetch if start < end else bytes, f"{source.name}, byte {start:,}", urgent)

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


class Window:
    """The bytes that all files together may hold or request ahead."""

    def __init__(self, size: int) -> None:
        self.lock = threading.RLock()
        """Guards the window, and what its files have requested."""
        self.free = size
        self.piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, size // CONNECTIONS))
        """Bytes of one request."""
        self._waiting: dict[RemoteFile, None] = {}

    def take(self, size: int, file: RemoteFile, *, first: bool) -> bool:
        """Whether there is room for a request, which is always so for a file's `first`; if not, it is told later."""
        if size > self.free and not first:
            self._waiting[file] = None
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        """Return bytes to the window, and let files request more."""
        with self.lock:
            self.free += size
            waiting, self._waiting = list(self._waiting), {}
            for file in waiting:
                file.advance()


class _Piece(NamedTuple):
    start: int
    end: int
    fetch: Fetch[Bytes]


class RemoteFile(RandomAccess):
    """A remote source of known size, read by ranges.

    Its first bytes (all, if it is small) are requested when it is opened, and its last ones if its format wants them
    first. What `expect` announces is requested in pieces, in order, as far as the window allows.
    """

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        self._fetcher, self._window, self._source = fetcher, fetcher.window, source
        self.size = source.size or 0
        self._edges = [_Piece(*span, fetcher.submit_range(source, *span)) for span in fetcher.edge_spans(source)]
        self._pieces: deque[_Piece] = deque()
        """What is held or requested of the expected spans."""
        self._coming: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        """The piece that will be requested next."""
        self._released = 0
        self._announced = False

    def read(self, start: int, end: int) -> bytes:
        end = min(end, self.size)
        parts: list[Bytes | memoryview] = []
        while start < end:
            with self._window.lock:
                known = [piece for piece in (*self._edges, *self._pieces) if piece.end > start]
            first, stop, fetch = min(known, key=itemgetter(0), default=(end, end, None))
            if fetch is None or start < first:
                stop = min(end, first)
                parts.append(self._fetcher.read(self._source, start, stop))
            else:
                stop = min(end, stop)
                data = self._fetcher.pool.wait(fetch, self._source.name)
                parts.append(memoryview(data)[start - first : stop - first])
            start = stop
        return b"".join(parts)

    def drop(self, offset: int) -> None:
        if offset > self.size:
            raise changed_error(self._source)
        begin = max(0, offset - CONTEXT)
        if not self._announced:
            self.expect([(max(begin, self._edges[0].end), self.size)])
        self.release(begin)

    def close(self) -> None:
        self.expect(())

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        spans = [(start, end) for start, end in spans if start < end]
        if any(other[0] < one[1] for one, other in pairwise(spans)):
            spans = []  # they do not ascend, so each read fetches for itself
        with self._window.lock:
            self._announced = True
            self._next = None
            self.release(self.size)
            self._released = 0
            self._coming = _divided(spans, self._window.piece)
            self._next = next(self._coming, None)
            self.advance()

    def release(self, end: int) -> None:
        with self._window.lock:
            self._released = end
            while self._pieces and self._pieces[0].end <= end:
                start, stop, fetch = self._pieces.popleft()
                # One that is under way takes memory until it is done.
                fetch.cancel()
                fetch.add_done_callback(lambda _, size=stop - start: self._window.give_back(size))  # type: ignore[misc]

    def advance(self) -> None:
        """Request the next pieces while there is room, and one at least. The window's lock is held."""
        while self._next is not None:
            start, end = self._next
            if end > self._released:
                if not self._window.take(end - start, self, first=not self._pieces):
                    return
                self._pieces.append(_Piece(start, end, self._fetcher.submit_range(self._source, start, end)))
            self._next = next(self._coming, None)


def _divided(spans: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of pieces of at most `size` bytes."""
    for begin, end in spans:
        for start in range(begin, end, size):
            yield start, min(end, start + size)
