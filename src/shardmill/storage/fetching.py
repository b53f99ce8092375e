"""Bytes of remote sources for a whole run: the threads that fetch them, a window of bytes read ahead, and their feed.

Every request is made by one of a few daemon threads. Waiting threads check regularly whether the run has ended, so
that a silent server never delays its end.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from shardmill.errors import SourceError
from shardmill.storage.feeds import CONTEXT, STREAM_BLOCK, RandomAccess, StreamFeed
from shardmill.storage.names import BUCKETS, format_of, host_of, scheme_of
from shardmill.storage.objects import Bucket
from shardmill.storage.retrying import STOP_CHECK, Patience, Retries, check_running, patiently
from shardmill.storage.source import SMALL, Source
from shardmill.storage.web import WebStore

if TYPE_CHECKING:
    from shardmill.storage.cache import Cache

# All of the window is requested at once when the reader is fast: with 200 ms for an answer and 16 MB of it, 16 pieces
# on 16 connections give 80 MB/s, where 8 connections with pieces of half the size gave 30.
CONNECTIONS = 16
LITTLE_WINDOW = 8 << 20
# Files up to this size are fetched whole when they are opened.
WHOLE = 1 << 20
FOOTER = 1 << 16
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 18, 4 << 20
_LARGEST_FOOTER = 16 << 20
_OPEN_AHEAD = 8  # files whose first bytes are fetched before their turn, at the most
_FOOTERS_AHEAD = 2
# Seconds that a reader waits for room in the window when no piece is being fetched, before it fetches for itself.
_PATIENCE = 1.0
Bytes = bytes | bytearray
T = TypeVar("T")


@dataclass(slots=True)
class Fetch(Generic[T]):
    """A call that one of the threads makes, in most cases for so many bytes."""

    call: Callable[[], T] | None
    size: int
    done: bool = False
    got: T | None = None
    error: BaseException | None = None


class Fetcher:
    """Fetches for a run. Leaving it as a context ends all waits; it needs no context where nothing is waited for."""

    def __init__(
        self,
        sources: Sequence[Source] = (),
        window: int = LITTLE_WINDOW,
        patience: Patience | None = None,
        cache: Cache | None = None,
        retries: Retries | None = None,
    ) -> None:
        """`sources`: in the order in which they will be opened. `window`: bytes that may be held or requested."""
        self.cache = cache
        self.patience = patience or Patience.from_environment()
        self.retries = retries or Retries()
        self.stopped = threading.Event()
        self.changed = threading.Condition()
        """Guards the state of this module; re-entrant; notified when a fetch is done or bytes are free."""
        self.spare = window // 4
        """Bytes that are free for the first bytes of sources, and for footers."""
        self.free = window - self.spare
        """Bytes of the window that are free for pieces."""
        self.piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, self.free // CONNECTIONS))
        self.advance: list[Callable[[], None]] = []
        """Called, with the lock held, when bytes became free: each may ask for more."""
        self._sources, self._next = sources, 0
        self._opened: dict[str, RemoteFeed] = {}  # ahead of their turn
        self._buckets: dict[str, Bucket] = {}
        self._connecting = threading.Lock()
        self._waiting: deque[Fetch[Any]] = deque()
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
        return WebStore(self.patience)

    def bucket(self, url: str) -> Bucket:
        """Return the client for a URL in an object store; raise UsageError where the library is missing."""
        bucket = f"{scheme_of(url)}://{host_of(url)}"
        with self._connecting:
            if bucket not in self._buckets:
                self._buckets[bucket] = Bucket(bucket, self.patience)
            return self._buckets[bucket]

    def patiently(self, call: Callable[[float], T], place: str) -> T:
        """Return what `call(deadline)` returns, retried."""
        return patiently(call, place, self.patience, self.retries, self.stopped)

    def ask(self, call: Callable[[], T], place: str) -> T:
        """Return what a call returns, retried, within the time for all attempts: libraries may wait for ever."""
        seconds = self.patience.retry_seconds + self.patience.timeout
        fetch = self.begin(lambda: self.patiently(lambda _: call(), place), urgent=True)
        return self.wait(fetch, seconds, place)

    def read(self, source: Source, start: int, end: int) -> Bytes:
        """Return the bytes of a range, before those that are fetched ahead."""
        return self.wait(self.begin_range(source, start, end, urgent=True)) if start < end else b""

    def begin_range(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch[Bytes]:
        """Begin to fetch a range."""
        return self.begin(lambda: self._range(source, start, end), end - start, urgent)

    def begin(self, call: Callable[[], T], size: int = 0, urgent: bool = False) -> Fetch[T]:
        """Let a thread make a call, which may return so many bytes."""
        fetch = Fetch(call, size)
        with self.changed:
            if urgent:
                self._waiting.appendleft(fetch)
            else:
                self._waiting.append(fetch)
            if not self._idle and len(self._threads) < CONNECTIONS:
                thread = threading.Thread(target=self._work, name="shardmill-fetcher", daemon=True)
                self._threads.append(thread)
                thread.start()
            self.changed.notify_all()
        return fetch

    def wait(self, fetch: Fetch[T], seconds: float = math.inf, place: str | None = None) -> T:
        """Return what a fetch gives or raise its error; raise SourceError after so many seconds."""
        until = time.monotonic() + seconds
        with self.changed:
            while not fetch.done:
                check_running(self.stopped)
                if time.monotonic() > until:
                    raise SourceError(f"no answer for {seconds:,.0f} s", place=place)
                self.changed.wait(STOP_CHECK)
        if fetch.error is not None:
            raise fetch.error
        return cast(T, fetch.got)

    def open(self, source: Source) -> RemoteFeed:
        """Return the feed of a source, and open the next ones ahead while there is room for their first bytes."""
        with self.changed:
            feed = self._opened.pop(source.path, None) or RemoteFeed(self, source)
            for number, following in enumerate(self.following(source, _OPEN_AHEAD if self.cache is None else 0)):
                # The footers of large parquet files are megabytes, so fewer of these.
                if self.spare <= 0 or (_is_parquet(following) and number >= _FOOTERS_AHEAD):
                    break
                if following.remote and following.size is not None and following.path not in self._opened:
                    self._opened[following.path] = RemoteFeed(self, following)
        return feed

    def following(self, source: Source, count: int) -> Sequence[Source]:
        """Return the sources that will be opened after this one."""
        with self.changed:
            index = next((i for i in range(self._next, len(self._sources)) if self._sources[i] == source), None)
            if index is None:  # it is read a second time
                return ()
            self._next = index
            return self._sources[index + 1 : index + 1 + count]

    def give_back(self, size: int) -> None:
        """Add bytes to the window that are free again."""
        with self.changed:
            self.free += size
            for advance in list(self.advance):
                advance()
            self.changed.notify_all()

    def _work(self) -> None:
        while True:
            with self.changed:
                self._idle += 1
                while not self._waiting and not self.stopped.is_set():
                    self.changed.wait(STOP_CHECK)
                self._idle -= 1
                if self.stopped.is_set():
                    return
                fetch = self._waiting.popleft()
            assert fetch.call is not None
            try:
                fetch.got = fetch.call()
            except BaseException as why:  # noqa: BLE001 - raised where it is waited for
                fetch.error = why
            with self.changed:
                fetch.done, fetch.call = True, None
                self.changed.notify_all()
            del fetch  # its bytes belong to the thread that waits for them

    def _range(self, source: Source, start: int, end: int) -> Bytes:
        if start >= end:
            return b""
        place = f"{source.name}, byte {start:,}"

        def fetch(deadline: float) -> Bytes:
            store = self.bucket(source.path) if scheme_of(source.path) in BUCKETS else self.web
            return store.fetch(source, start, end, deadline)

        return self.patiently(fetch, place)

    def footer(self, source: Source) -> Bytes:
        """Return the last bytes of a parquet file: all of its footer, whose length is eight bytes before the end."""
        size = source.size or 0
        last = self._range(source, max(0, size - FOOTER), size)
        length = int.from_bytes(last[-8:-4], "little") + 8
        if len(last) < length < min(size, _LARGEST_FOOTER):
            return bytes(self._range(source, size - length, size - len(last))) + bytes(last)
        return last


def _is_parquet(source: Source) -> bool:
    return (format_of(source.path) or source.input_format) == "parquet"


class ReadAhead:
    """Spans of a source, in pieces that are fetched before they are read, in order, as far as the window allows.

    Several threads may read different pieces. A piece is freed when it was read to its end.
    """

    def __init__(self, fetcher: Fetcher, source: Source, spans: Sequence[tuple[int, int]]) -> None:
        """`spans`: where they begin and end, in ascending order."""
        self._fetcher, self._source, self._spans = fetcher, source, spans
        self._pieces: dict[int, Fetch[Bytes]] = {}
        """Those that are held or requested, by their first byte."""
        self._reached = 0
        """All before was requested."""
        self._closed = False
        with fetcher.changed:
            fetcher.advance.append(self._advance)
            self._advance()

    def read(self, start: int, end: int, keep: bool = False) -> Bytes:
        """Return the bytes of a range. `keep`: they will be read again, so nothing is freed or waited for."""
        parts: list[Bytes | memoryview] = []
        while start < end:
            first, stop = self._piece_from(start) or (end, end)
            fetch = self._fetch(first, keep) if first <= start else None
            upto = min(end, stop if first <= start else first)
            if fetch is None:  # between two spans, or not in the window
                parts.append(self._fetcher.read(self._source, start, upto))
            else:
                data = self._fetcher.wait(fetch)
                whole = start == first and upto == stop
                parts.append(data if whole else memoryview(data)[start - first : upto - first])
                if upto == stop and not keep:
                    self._free(first, stop)
            start = upto
        return parts[0] if len(parts) == 1 and isinstance(parts[0], (bytes, bytearray)) else b"".join(parts)

    def release(self, start: int, end: int) -> None:
        """Free the pieces that begin in this range."""
        at = start
        while (piece := self._piece_from(at)) and piece[0] < end:
            at = piece[1]
            if piece[0] >= start:
                self._free(*piece)

    def close(self) -> None:
        """Free everything; what is read from now on is fetched for itself."""
        with self._fetcher.changed:
            if not self._closed:
                self._closed = True
                self._fetcher.advance.remove(self._advance)
                held = sum(fetch.size for fetch in self._pieces.values())
                self._pieces.clear()
                self._fetcher.give_back(held)

    def _piece_from(self, offset: int) -> tuple[int, int] | None:
        """Where the piece begins and ends that holds a byte, or else the next one; None behind the last."""
        number = bisect_right(self._spans, offset, key=itemgetter(1))
        if number == len(self._spans):
            return None
        begin, end = self._spans[number]
        size = self._fetcher.piece
        first = begin + max(0, offset - begin) // size * size
        return first, min(end, first + size)

    def _fetch(self, first: int, keep: bool) -> Fetch[Bytes] | None:
        """The fetch of a piece; None when it was freed, or when the window has no room for it for some time."""
        waited = time.monotonic()
        with self._fetcher.changed:
            while first not in self._pieces:
                if first < self._reached or keep or self._closed:
                    return None
                check_running(self._fetcher.stopped)
                if any(not fetch.done for fetch in self._pieces.values()):
                    waited = time.monotonic()
                elif time.monotonic() - waited > _PATIENCE:
                    return None
                self._fetcher.changed.wait(STOP_CHECK)
            return self._pieces[first]

    def _free(self, first: int, stop: int) -> None:
        with self._fetcher.changed:
            if self._piece_from(self._reached) == (first, stop):
                # It was read without the window's help; to fetch it again would be for nothing.
                self._reached = stop
            fetch = self._pieces.pop(first, None)
            self._fetcher.give_back(fetch.size if fetch is not None else 0)
            if not self._pieces and self._piece_from(self._reached) is None:
                self.close()

    def _advance(self) -> None:
        """Request the next pieces while there is room, and one at least. The lock is held."""
        fetcher = self._fetcher
        while not self._closed and (piece := self._piece_from(self._reached)):
            start, end = piece
            if end - start > fetcher.free and self._pieces:
                return
            self._pieces[start] = fetcher.begin_range(self._source, start, end)
            fetcher.free -= end - start
            self._reached = end


class RemoteFeed(RandomAccess):
    """A remote source of known size, read forward from any offset through the window, or by ranges.

    Its first bytes (all, if it is small) and the footer of a parquet file are requested when it is opened.
    """

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        self._fetcher, self._source = fetcher, source
        self.size = self._whole_size = size = source.size or 0
        self._ahead: ReadAhead | None = None
        self._forward = StreamFeed(source.name, self._blocks(0))
        end = size if size <= WHOLE else SMALL
        self._first = fetcher.begin_range(source, 0, end)
        self._last = None
        if end < size and _is_parquet(source):
            self._last = fetcher.begin(lambda: fetcher.footer(source), FOOTER)
        self._held = self._first.size + (self._last.size if self._last else 0)
        with fetcher.changed:
            fetcher.spare -= self._held

    @cached_property
    def _head(self) -> Bytes:
        return self._fetcher.wait(self._first)

    @cached_property
    def _tail(self) -> Bytes:
        fetcher = self._fetcher
        last = self._last or fetcher.begin(lambda: fetcher.footer(self._source), FOOTER, urgent=True)
        return fetcher.wait(last)

    def peek(self, offset: int, n: int) -> bytes:
        return self._forward.peek(offset, max(0, min(n, self.size - offset)))

    def drop(self, offset: int) -> None:
        begin = max(0, offset - CONTEXT)
        if self._forward.reached < begin <= self.size:
            self.expect(())
            self._forward = StreamFeed(self._source.name, self._blocks(begin), begin=begin)
        self._forward.drop(offset)

    def close(self) -> None:
        self.expect(())
        with self._fetcher.changed:
            self._fetcher.spare += self._held
            self._held = 0

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        spans = [(start, end) for start, end in spans if start < end]
        # Where spans do not ascend, they cannot be bisected: then each read fetches for itself.
        if spans and all(one[1] <= other[0] for one, other in pairwise(spans)):
            self._ahead = ReadAhead(self._fetcher, self._source, spans)

    def read(self, start: int, end: int, keep: bool = False) -> Bytes:
        if end <= len(self._head):
            return self._head[start:end]
        begin = self._whole_size - len(self._tail)
        if start >= begin:
            return self._tail[start - begin : end - begin]
        if self._ahead is not None:
            return self._ahead.read(start, end, keep)
        return self._fetcher.read(self._source, start, end)

    def release(self, start: int, end: int) -> None:
        if self._ahead is not None:
            self._ahead.release(start, end)

    def _blocks(self, start: int) -> Generator[bytes]:
        if start < len(self._head):
            yield bytes(self._head[start:])
            start = len(self._head)
        while start < self._whole_size:
            if self._ahead is None:
                self._ahead = ReadAhead(self._fetcher, self._source, [(start, self._whole_size)])
            end = min(start + STREAM_BLOCK, self._whole_size)
            yield bytes(self._ahead.read(start, end))
            start = end
