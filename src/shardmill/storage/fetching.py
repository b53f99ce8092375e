"""Reads remote sources: threads that make the requests, a window of bytes that are read ahead, and the feed.

Every request is made by one of a few daemon threads. Waiting threads check regularly whether the run has ended, so
that a silent server never delays its end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill.errors import SourceError
from shardmill.storage.feeds import CONTEXT, STREAM_BLOCK, RandomAccess, StreamFeed
from shardmill.storage.names import BUCKETS, format_of, host_of, scheme_of
from shardmill.storage.objects import Objects
from shardmill.storage.retrying import STOP_CHECK, Retries, RetryPolicy, Unreachable, check_running, retry
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
FOOTER = 1 << 16
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 18, 4 << 20
_LARGEST_FOOTER = 16 << 20
_OPEN_AHEAD = 8  # the most files that are opened ahead of their turn
_FOOTERS_AHEAD = 2
Bytes = bytes | bytearray
T = TypeVar("T")


class Fetch(Future[T]):
    """The result of a call that one of the threads makes."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long the call may take."""
        super().__init__()
        self.seconds, self.until = seconds, math.inf
        """`until`: when it has to be done; known when a thread has begun with it."""


class Fetcher:
    """Makes the requests of a run. Leaving the context ends all waits."""

    def __init__(
        self,
        sources: Sequence[Source] = (),
        window: int = SMALL_WINDOW,
        policy: RetryPolicy | None = None,
        cache: Cache | None = None,
        retries: Retries | None = None,
    ) -> None:
        """`sources`: in the order in which they will be opened. `window`: bytes that may be held or requested ahead."""
        self.cache = cache
        self.policy = policy or RetryPolicy.from_environment()
        self.retries = retries or Retries()
        self.stopped = threading.Event()
        self.changed = threading.Condition()
        """Guards the state of this module; re-entrant; notified when a request has to be made."""
        self._for_heads = window // 4
        """Bytes of the window for the first bytes of sources."""
        self.free = window - self._for_heads
        """Bytes of the window that are free for pieces."""
        self.piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, self.free // CONNECTIONS))
        self.expecting: set[RemoteFeed] = set()
        """Feeds that request more when bytes become free."""
        self._sources, self._next = sources, 0
        self._opened: dict[str, RemoteFeed] = {}  # ahead of their turn
        self._buckets: dict[str, Objects] = {}
        self._connecting = threading.Lock()
        self._waiting: deque[tuple[Fetch[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with self.changed:
            self._waiting.clear()
            self._opened.clear()
            self.changed.notify_all()

    @cached_property
    def web(self) -> WebStore:
        """The client for web servers and the hub; raises UsageError where the library is missing."""
        return WebStore(self.policy)

    def bucket(self, url: str) -> Objects:
        """Return the client for a URL in an object store; raise UsageError where the library is missing."""
        bucket = f"{scheme_of(url)}://{host_of(url)}"
        with self._connecting:
            if bucket not in self._buckets:
                self._buckets[bucket] = Objects(bucket, self.policy)
            return self._buckets[bucket]

    def retry(self, call: Callable[[float], T], place: str) -> T:
        """Return what `call(deadline)` returns, retried."""
        try:
            return retry(call, place, self.policy, self.retries, self.stopped)
        except FileNotFoundError:
            raise SourceError("the source is not there", place=place, hint="check its name") from None

    def request(self, call: Callable[[], T], place: str) -> T:
        """Return what a call returns, retried, within the time for all attempts: libraries may wait for ever."""
        return self.wait(self.submit(lambda: self.retry(lambda _: call(), place), urgent=True, requests=1), place)

    def read(self, source: Source, start: int, end: int) -> Bytes:
        """Return the bytes of a range; the request is made before those that wait."""
        return self.wait(self.submit_range(source, start, end, urgent=True), source.name)

    def submit_range(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch[Bytes]:
        """Begin to fetch a range."""
        return self.submit(lambda: self._range(source, start, end), urgent, requests=1)

    def submit(self, call: Callable[[], T], urgent: bool = False, requests: float = math.inf) -> Fetch[T]:
        """Let a thread make a call. `urgent`: before waiting calls. `requests`: the number it makes in sequence."""
        # A request ends by itself in that time, unless the head of its answer comes byte by byte.
        fetch: Fetch[T] = Fetch(requests * (self.policy.retry_seconds + self.policy.timeout))
        with self.changed:
            self._waiting.insert(0 if urgent else len(self._waiting), (fetch, call))
            if not self._idle and len(self._threads) < CONNECTIONS:
                thread = threading.Thread(target=self._work, name="shardmill-fetcher", daemon=True)
                self._threads.append(thread)
                thread.start()
            self.changed.notify_all()
        return fetch

    def wait(self, fetch: Fetch[T], place: str) -> T:
        """Return the result of a fetch or raise its error; raise Unreachable when it takes too long."""
        until = time.monotonic() + fetch.seconds  # if all threads are busy for so long
        while not wait_for([fetch], STOP_CHECK).done:
            check_running(self.stopped)
            if time.monotonic() > (fetch.until if fetch.until < math.inf else until):
                message = f"cannot read the source: no complete answer for {fetch.seconds:,.0f} s"
                raise Unreachable(message, place=place, hint="run the same command again when the server is well")
        return fetch.result()

    def open(self, source: Source) -> RemoteFeed:
        """Return the feed of a source, and open the next ones ahead while there is room for their first bytes."""
        with self.changed:
            feed = self._opened.pop(source.path, None) or RemoteFeed(self, source)
            room = self._for_heads - _head_size(source)
            for number, later in enumerate(self.next_sources(source, _OPEN_AHEAD if self.cache is None else 0)):
                # The footers of large parquet files are megabytes, so fewer of these.
                if room <= 0 or (_is_parquet(later) and number >= _FOOTERS_AHEAD):
                    break
                room -= _head_size(later)
                if later.remote and later.size is not None and later.path not in self._opened:
                    self._opened[later.path] = RemoteFeed(self, later)
        return feed

    def next_sources(self, source: Source, count: int) -> Sequence[Source]:
        """Return the sources that will be opened after this one."""
        with self.changed:
            index = next((i for i in range(self._next, len(self._sources)) if self._sources[i] == source), None)
            if index is None:  # it is being read a second time
                return ()
            self._next = index
            return self._sources[index + 1 : index + 1 + count]

    def release(self, size: int) -> None:
        """Return bytes to the window, and let feeds request more."""
        with self.changed:
            self.free += size
            for feed in list(self.expecting):
                feed.advance()

    def _work(self) -> None:
        while True:
            with self.changed:
                self._idle += 1
                while not self._waiting and not self.stopped.is_set():
                    self.changed.wait(STOP_CHECK)
                self._idle -= 1
                if self.stopped.is_set():
                    return
                fetch, call = self._waiting.popleft()
                fetch.until = time.monotonic() + fetch.seconds
            try:
                fetch.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                fetch.set_exception(error)
            del fetch, call  # or this thread would keep its bytes in memory

    def _range(self, source: Source, start: int, end: int) -> Bytes:
        if start >= end:
            return b""
        place = f"{source.name}, byte {start:,}"

        def fetch(deadline: float) -> Bytes:
            store = self.bucket(source.path) if scheme_of(source.path) in BUCKETS else self.web
            return store.fetch(source, start, end, deadline)

        return self.retry(fetch, place)

    def footer(self, source: Source) -> Bytes:
        """Return the last bytes of a parquet file, with its whole footer. Its length is eight bytes before the end."""
        size = source.size or 0
        last = self._range(source, max(0, size - FOOTER), size)
        length = int.from_bytes(last[-8:-4], "little") + 8
        if len(last) < length < min(size, _LARGEST_FOOTER):
            return bytes(self._range(source, size - length, size - len(last))) + bytes(last)
        return last


def _head_size(source: Source) -> int:
    """Bytes that are fetched when a source is opened."""
    size = source.size or 0
    return size if size <= WHOLE else SMALL


def _is_parquet(source: Source) -> bool:
    return (format_of(source.path) or source.input_format) == "parquet"


class RemoteFeed(RandomAccess):
    """A remote source of known size, read forward from any offset, or by ranges.

    Its first bytes (all, if it is small) and the footer of a parquet file are requested when it is opened. What
    `expect` announces is requested in pieces, in order, as far as the window allows.
    """

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        self._fetcher, self._source = fetcher, source
        self.size = self._whole_size = size = source.size or 0
        self._forward = StreamFeed(source.name, self._blocks(0))
        self._coming: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        """The piece that will be requested next."""
        self._pieces: deque[tuple[int, int, Fetch[Bytes]]] = deque()
        """The pieces that are held or requested, each with its start and end."""
        self._released = 0
        end = _head_size(source)
        self._first = fetcher.submit_range(source, 0, end)
        self._last = None
        if end < size and _is_parquet(source):
            self._last = fetcher.submit(lambda: fetcher.footer(source), requests=2)

    @cached_property
    def _head(self) -> Bytes:
        return self._fetcher.wait(self._first, self._source.name)

    @cached_property
    def _tail(self) -> Bytes:
        fetcher = self._fetcher
        last = self._last or fetcher.submit(lambda: fetcher.footer(self._source), urgent=True, requests=2)
        return fetcher.wait(last, self._source.name)

    def peek(self, offset: int, n: int) -> bytes:
        return self._forward.peek(offset, max(0, min(n, self.size - offset)))

    def drop(self, offset: int) -> None:
        begin = max(0, offset - CONTEXT)
        if self._forward.reached < begin <= self.size:
            self._forward = StreamFeed(self._source.name, self._blocks(begin), begin=begin)
        self._forward.drop(offset)

    def close(self) -> None:
        self.expect(())

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        spans = [(start, end) for start, end in spans if start < end]
        if any(other[0] < one[1] for one, other in pairwise(spans)):
            spans = []  # they do not ascend, so each read fetches for itself
        with self._fetcher.changed:
            self._next = None
            self.release(self._whole_size)
            self._released = 0
            self._coming = _divided(spans, self._fetcher.piece)
            self._next = next(self._coming, None)
            self._fetcher.expecting.add(self)
            self.advance()

    def read(self, start: int, end: int) -> Bytes:
        if end <= len(self._head):
            return self._head[start:end]
        begin = self._whole_size - len(self._tail)
        if start >= begin:
            return self._tail[start - begin : end - begin]
        return self._read(start, end)

    def _read(self, start: int, end: int) -> Bytes:
        """Return the bytes of a range from the pieces that were requested, and fetch what is not among them."""
        parts: list[Bytes | memoryview] = []
        while start < end:
            with self._fetcher.changed:
                first, stop, fetch = next((piece for piece in self._pieces if piece[1] > start), (end, end, None))
            if fetch is None or start < first:
                stop_at = min(end, first)
                parts.append(self._fetcher.read(self._source, start, stop_at))
            else:
                stop_at = min(end, stop)
                data = self._fetcher.wait(fetch, self._source.name)
                parts.append(
                    data if stop_at - start == len(data) else memoryview(data)[start - first : stop_at - first]
                )
            start = stop_at
        return parts[0] if len(parts) == 1 and isinstance(parts[0], (bytes, bytearray)) else b"".join(parts)

    def release(self, end: int) -> None:
        with self._fetcher.changed:
            self._released = end
            freed = 0
            while self._pieces and self._pieces[0][1] <= end:
                start, stop, _ = self._pieces.popleft()
                freed += stop - start
            self._fetcher.release(freed)

    def advance(self) -> None:
        """Request the next pieces while there is room, and one at least. The lock is held."""
        while self._next is not None:
            start, end = self._next
            if end > self._released:
                if end - start > self._fetcher.free and self._pieces:
                    return
                self._pieces.append((start, end, self._fetcher.submit_range(self._source, start, end)))
                self._fetcher.free -= end - start
            self._next = next(self._coming, None)
        self._fetcher.expecting.discard(self)

    def _blocks(self, start: int) -> Generator[bytes]:
        if start < len(self._head):
            yield bytes(self._head[start:])
            start = len(self._head)
        rest = [(start, self._whole_size)]
        self.expect(rest)
        for begin, stop in _divided(rest, self._fetcher.piece):
            for at, end in _divided([(begin, stop)], STREAM_BLOCK):
                block = bytes(self._read(at, end))
                self.release(end)
                yield block


def _divided(spans: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of pieces of at most `size` bytes."""
    for begin, end in spans:
        for start in range(begin, end, size):
            yield start, min(end, start + size)
