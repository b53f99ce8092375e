"""A remote source read by ranges, several of them ahead of whoever reads: as a feed, and as a file for pyarrow."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType

from shardmill.errors import SourceError
from shardmill.storage.feeds import CONTEXT, StreamFeed
from shardmill.storage.fetching import Bytes, Fetch, Fetcher
from shardmill.storage.source import Source

_TICK = 0.2  # seconds
# Seconds that a reader waits for its turn in the window when nothing is on its way, before it fetches for itself.
_PATIENCE = 1.0


class ReadAhead:
    """Pieces of a source in the order in which they will be read, fetched before that, as far as the window allows.

    Several readers may be at work on different pieces. A piece is let go when it was read to its end.
    """

    def __init__(self, fetcher: Fetcher, source: Source, starts: Sequence[int], end_of: Callable[[int], int]) -> None:
        self._fetcher, self._source = fetcher, source
        self._starts, self._end_of = starts, end_of
        self._next = 0
        self._pieces: dict[int, Fetch] = {}
        self._closed = False
        with fetcher.changed:
            fetcher.advance.append(self._advance)
            self._advance()

    def read(self, start: int, end: int, keep: bool = False) -> Bytes:
        """The bytes of a range. `keep`: they will be read again, so nothing is let go or waited for."""
        parts: list[Bytes | memoryview] = []
        while start < end:
            number = bisect_right(self._starts, start) - 1
            stop = self._end_of(number) if number >= 0 else 0
            if start >= stop:  # before the first piece, or between two
                after = self._starts[number + 1] if number + 1 < len(self._starts) else end
                upto = min(end, max(after, start + 1))
                parts.append(self._fetcher.read(self._source, start, upto))
            else:
                upto = min(end, stop)
                fetch = self._piece(number, keep)
                if fetch is None:
                    parts.append(self._fetcher.read(self._source, start, upto))
                else:
                    first = self._starts[number]
                    data = self._fetcher.wait(fetch)
                    whole = start == first and upto == stop
                    parts.append(data if whole else memoryview(data)[start - first : upto - first])
                    if upto == stop and not keep:
                        self._let_go(number)
            start = upto
        return parts[0] if len(parts) == 1 and isinstance(parts[0], (bytes, bytearray)) else b"".join(parts)

    def release(self, start: int, end: int) -> None:
        """Nobody will read these bytes any more."""
        first = max(0, bisect_right(self._starts, start) - 1)
        for number in range(first, len(self._starts)):
            if self._starts[number] >= end:
                break
            if self._starts[number] >= start:
                self._let_go(number)

    def close(self) -> None:
        """Let go of everything; what is read from now on is fetched for itself."""
        with self._fetcher.changed:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fetcher.advance.remove(self._advance)
            held = sum(fetch.size for fetch in self._pieces.values())
            self._pieces.clear()
            self._fetcher.let_go(held)

    def _piece(self, number: int, keep: bool) -> Fetch | None:
        """The fetch of a piece; None when the reader has to fetch for itself: it is gone, or its turn does not come."""
        waited = time.monotonic()
        with self._fetcher.changed:
            while True:
                if number in self._pieces:
                    return self._pieces[number]
                if number < self._next or keep or self._closed:
                    return None
                if self._fetcher.stopped.is_set():
                    raise SourceError("the run has ended")
                if any(not fetch.done for fetch in self._pieces.values()):
                    waited = time.monotonic()
                elif time.monotonic() - waited > _PATIENCE:
                    return None
                self._fetcher.changed.wait(_TICK)

    def _let_go(self, number: int) -> None:
        with self._fetcher.changed:
            if number >= self._next:
                # It was read without the window's help; to fetch it again would be for nothing.
                self._next = number + 1 if number == self._next else self._next
            fetch = self._pieces.pop(number, None)
            self._fetcher.let_go(fetch.size if fetch is not None else 0)
            if not self._pieces and self._next >= len(self._starts):
                self._close()

    def _advance(self) -> None:
        """Ask for the next pieces, while there is room; one is always on its way. The lock is held."""
        fetcher = self._fetcher
        while not self._closed and self._next < len(self._starts):
            start = self._starts[self._next]
            size = self._end_of(self._next) - start
            if size > fetcher.free and self._pieces:
                return
            self._pieces[self._next] = fetcher.begin(self._source, start, start + size)
            fetcher.free -= size
            self._next += 1


class RemotePull:
    """A remote source pulled from its start, or from any other place."""

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        self._fetcher, self._source = fetcher, source
        self._size = source.size or 0
        self._head: Bytes | None = None
        self._ahead: ReadAhead | None = None
        self._offset = self._begin = 0

    def head(self) -> Bytes:
        if self._head is None:
            self._head = self._fetcher.head(self._source)
        return self._head

    def read(self, n: int) -> bytes:
        n = min(n, self._size - self._offset)
        if n <= 0:
            return b""
        head = self.head()
        if self._offset < len(head):
            block = bytes(head[self._offset : self._offset + n])
        else:
            if self._ahead is None:
                self._begin = self._offset
                piece, size = self._fetcher.piece, self._size
                starts = range(self._begin, size, piece)
                self._ahead = ReadAhead(
                    self._fetcher, self._source, starts, lambda number: min(size, starts[number] + piece)
                )
            # Not across a piece's end, so that what is read is let go.
            inside = self._fetcher.piece - (self._offset - self._begin) % self._fetcher.piece
            block = bytes(self._ahead.read(self._offset, self._offset + min(n, inside)))
        self._offset += len(block)
        return block

    def seek(self, offset: int) -> None:
        self._stop()
        self._offset = offset

    def stored(self) -> int:
        return self._offset

    def close(self) -> None:
        self._stop()
        self._fetcher.close(self._source)

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class RemoteFeed(StreamFeed):
    """A remote source of known size: read forward like a stream, but it can begin anywhere and be opened again."""

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        assert source.size is not None
        self.size = source.size
        self._remote = RemotePull(fetcher, source)
        self._fetcher, self._source = fetcher, source
        super().__init__(self._remote, source.name)

    def peek(self, offset: int, n: int) -> bytes:
        return super().peek(offset, max(0, min(n, self.size - offset)))

    def drop(self, offset: int) -> None:
        keep = max(0, offset - CONTEXT)
        if self._end < keep <= self.size:
            self._blocks.clear()
            self._base = self._end = keep
            self._ended = False
            self._remote.seek(keep)
        super().drop(offset)

    def end_by(self, limit: int) -> int | None:
        return self.size if self.size <= limit else None

    def stored(self, offset: int) -> int:
        return offset

    def ranges(self) -> Ranges:
        """The same source to be entered anywhere."""
        return Ranges(self._fetcher, self._source, self._remote.head(), self._fetcher.tail(self._source))


class Ranges:
    """A remote file that is entered anywhere: its head and tail are there, what lies between is read ahead."""

    def __init__(self, fetcher: Fetcher, source: Source, head: Bytes, tail: Bytes) -> None:
        self._fetcher, self._source = fetcher, source
        self.size = source.size or 0
        self._head, self._tail = head, tail
        self._ahead: ReadAhead | None = None

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """These spans will be read, in this order and once each; begin to fetch them."""
        piece = self._fetcher.piece
        cut = [(at, min(end, at + piece)) for start, end in spans for at in range(start, end, piece)]
        # Where spans do not ascend, nothing can be found among them by halves: then each read fetches for itself.
        if cut and all(one[1] <= other[0] for one, other in pairwise(cut)):
            starts, ends = zip(*cut, strict=True)
            self._ahead = ReadAhead(self._fetcher, self._source, starts, ends.__getitem__)

    def read(self, start: int, end: int, keep: bool = False) -> Bytes:
        if end <= len(self._head):
            return self._head[start:end]
        if start >= self.size - len(self._tail):
            begin = self.size - len(self._tail)
            return self._tail[start - begin : end - begin]
        if self._ahead is not None:
            return self._ahead.read(start, end, keep)
        return self._fetcher.read(self._source, start, end)

    def release(self, start: int, end: int) -> None:
        if self._ahead is not None:
            self._ahead.release(start, end)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


class RangeFile:
    """A reader's own view of a remote file, as pyarrow wants a file. `span`: what it will read, let go when it ends."""

    def __init__(self, ranges: Ranges, span: tuple[int, int] | None = None) -> None:
        self._ranges, self._span = ranges, span
        self._offset = 0
        self.closed = False

    def __enter__(self) -> RangeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, n: int = -1) -> bytes:
        end = self._ranges.size if n < 0 else min(self._ranges.size, self._offset + n)
        block = self._ranges.read(self._offset, end, keep=self._span is None) if end > self._offset else b""
        self._offset += len(block)
        return bytes(block)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._offset = offset + (0, self._offset, self._ranges.size)[whence]
        return self._offset

    def tell(self) -> int:
        return self._offset

    def size(self) -> int:
        return self._ranges.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing to write."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._span is not None:
                self._ranges.release(*self._span)
