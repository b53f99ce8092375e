"""A remote source that is read by ranges, and the window of bytes that all of them together read ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from shardmill.storage.feeds import CONTEXT, RandomAccess
from shardmill.storage.source import Source, changed_error

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetcher
    from shardmill.storage.pool import Fetch

_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 18, 4 << 20
Bytes = bytes | bytearray


class Window:
    """The bytes that all files together may hold or request ahead."""

    def __init__(self, size: int, connections: int) -> None:
        """`connections`: requests that may be under way at once."""
        self.lock = threading.RLock()
        """Guards the window, and what its files have requested."""
        self.free = size
        self.piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, size // connections))
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

    Its edges, which will be read first, are requested when it is opened. What `expect` announces is requested in
    pieces, in order, as far as the window allows.
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
                data = self._fetcher.wait(fetch)
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
