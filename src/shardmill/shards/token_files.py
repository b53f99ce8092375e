"""A sequence of tokens in many files, of which only a few are open at a time; and where its documents are."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill.errors import DamageError
from shardmill.storage import CACHE_BLOCK, AnyPath, RemotePath, RemoteRanges, open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPEN = 56  # files at a time; with the memory maps 64, and macOS allows a process 256
_MAPS = 8
_BLOCK = 1 << 16  # tokens that are searched at once, or more if there would be more than _BLOCKS blocks
_BLOCKS = 1 << 16
_ROWS_AHEAD = 1 << 18  # tokens of rows that a loader asks for at once where files are remote


@dataclass(frozen=True)
class TokenFile:
    """A file that holds `tokens` tokens after a header of `head` bytes."""

    path: AnyPath
    tokens: int
    header_bytes: int = 0


class TokenFiles:
    """Tokens across files, by their position in the whole. Threads may share it."""

    contiguous = True
    """The tokens of a file are side by side, after a header."""

    @property
    def memory_bytes(self) -> int:
        """What reading takes, beside the tokens that are asked for and buffers of a few megabytes."""
        return 0

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        self.files, self.dtype = list(files), dtype.newbyteorder("<")
        self._sizes = np.array([file.tokens for file in files], np.int64)
        self._borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])
        self.starts = self._borders.tolist()
        # A file that leaves a cache stays open for those who still read it.
        known, stored = self.files, self.dtype  # no reference to self, so that files are closed when it is deleted
        self.opened = lru_cache(_OPEN)(lambda i: open_file(known[i].path))
        self._map = lru_cache(_MAPS)(lambda i: _map(known[i], stored))
        remote = [file.path.folder for file in self.files if isinstance(file.path, RemotePath)]
        self.ahead_tokens = _ROWS_AHEAD if remote else 0
        """Tokens of rows that a loader should ask for at once; 0: one batch is as fast."""
        self._cached = not remote or len(self) * self.dtype.itemsize <= remote[0].cache.limit

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self) -> Any:
        return type(self), (self.files, self.dtype)  # another process opens its own

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill a contiguous array with the tokens from `start` on; nothing else stays in memory."""
        i = bisect_right(self.starts, start) - 1
        done = 0
        while done < len(out):
            within = start + done - self.starts[i]
            count = min(len(out) - done, self.files[i].tokens - within)
            if count:
                self.fill(i, within, out[done : done + count])
            done += count
            i += 1

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some tokens."""
        out = np.empty(max(0, stop - start), self.dtype)
        self.read_into(start, out)
        return out

    def read_rows(self, starts: NDArray[np.int64], size: int) -> NDArray[Any]:
        """Return a copy of rows of `size` tokens that begin at these places."""
        rows = np.empty((len(starts), size), self.dtype)
        if self.ahead_tokens and not self._is_scattered(starts):
            self.gather(starts, np.full(len(starts), size), np.arange(len(starts)) * size, rows.reshape(-1))
            return rows
        for row, start in zip(rows, starts.tolist(), strict=True):
            if self.ahead_tokens and (where := self._within_a_file(start, size)):
                i, begin, end = where
                row[:] = np.frombuffer(self._remote(i).row(begin, end), self.dtype)
            else:
                self.read_into(start, row)
        return rows

    def expect_rows(self, starts: NDArray[np.int64], size: int) -> None:
        """Begin to fetch rows that will be read soon, where files are remote."""
        if not self.ahead_tokens or not len(starts):
            return
        if self._is_scattered(starts):
            for start in starts.tolist():
                if where := self._within_a_file(start, size):
                    self._remote(where[0]).request(*where[1:])
            return
        files = np.searchsorted(self._borders, starts, side="right") - 1
        for i in np.unique(files).tolist():
            at = (starts[files == i] - self._borders[i]) * self.dtype.itemsize + self.files[i].header_bytes
            self._remote(i).expect(at)

    def _is_scattered(self, starts: NDArray[np.int64]) -> bool:
        """Whether rows are better fetched alone: there is one in a block, and the cache cannot keep all blocks."""
        blocks = starts * self.dtype.itemsize // CACHE_BLOCK
        return self.contiguous and not self._cached and len(np.unique(blocks)) * 2 > len(blocks)

    def _within_a_file(self, start: int, size: int) -> tuple[int, int, int] | None:
        """The file of a row, and where it begins and ends there in bytes; None: it crosses a border."""
        i, width = bisect_right(self.starts, start) - 1, self.dtype.itemsize
        if start + size > self.starts[i + 1]:
            return None
        begin = self.files[i].header_bytes + (start - self.starts[i]) * width
        return i, begin, begin + size * width

    def _remote(self, i: int) -> RemoteRanges:
        file = self.opened(i)
        assert isinstance(file, RemoteRanges)
        return file

    def gather(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
    ) -> None:
        """Read many stretches of tokens, each to its place in an array of the same type."""
        files = np.searchsorted(self._borders, starts, side="right") - 1
        within = starts - self._borders[files]
        crossing = within + lengths > self._sizes[files]
        for at in np.flatnonzero(crossing).tolist():  # few documents are cut by the end of a file
            self.read_into(int(starts[at]), out[int(places[at]) : int(places[at] + lengths[at])])
        # File after file, so that few are open, and in the order of the bytes.
        order = np.argsort(starts, kind="stable")
        order = order[~crossing[order]]
        borders = np.flatnonzero(np.diff(files[order], prepend=-1, append=len(self.files)))
        for first, last in pairwise(borders.tolist()):
            some = order[first:last]
            self.fill_parts(int(files[some[0]]), within[some], lengths[some], places[some], out)

    def fill_parts(
        self,
        i: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        """Read stretches of tokens of one file, each to its place in an array."""
        width, file = self.dtype.itemsize, self.files[i]
        starts = file.header_bytes + starts * width
        self.opened(i).fill_parts(starts, lengths * width, places * width, out.view(np.uint8))

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return some tokens, read-only: a view of the memory map if they are in one file, else a copy."""
        i = bisect_right(self.starts, start) - 1
        if start >= stop or stop > self.starts[i + 1] or self.ahead_tokens:
            return read_only(self.read(start, stop))
        return self._map(i)[start - self.starts[i] : stop - self.starts[i]]

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one file."""
        stored = out if out.dtype == self.dtype else np.empty(len(out), self.dtype)
        self.opened(i).fill(self.files[i].header_bytes + within * self.dtype.itemsize, stored.view(np.uint8))
        if stored is not out:
            out[:] = stored

    def read_bytes(self, i: int, at: int, size: int) -> NDArray[np.uint8]:
        """Return bytes of one file; DamageError if it ends too early."""
        out = np.empty(size, np.uint8)
        self.opened(i).fill(at, out)
        return out


def _map(file: TokenFile, dtype: np.dtype[Any]) -> NDArray[Any]:
    with file.path.open("rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, file.tokens, file.header_bytes)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array


class DocumentIndex(Protocol):
    """Finds documents by their number."""

    def __len__(self) -> int:
        """Return how many there are; where that is not stored, all tokens are searched once."""

    def bounds(self, i: int) -> tuple[int, int]:
        """Return where document `i` begins and ends, with its end-of-text token if it has one there. IndexError."""

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return where documents end from `start` to `stop`; `tokens` are those between them."""


class EotIndex:
    """Documents between end-of-text tokens. Text before the first or after the last counts if it is not empty.

    The number of end-of-text tokens is kept for each block of tokens, and a block is searched again when it is needed.
    Blocks are counted only as far as a caller has asked for documents.
    """

    def __init__(self, tokens: TokenFiles, eot: int, where: str) -> None:
        self._tokens, self._eot, self._where = tokens, eot, where
        self._block = max(_BLOCK, len(tokens) // _BLOCKS)
        self._before = [0]
        """How many there are before each block that was counted, and after the last of these."""
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return EotIndex, (self._tokens, self._eot, self._where)

    def __len__(self) -> int:
        with self._lock:
            count = self._count(len(self._tokens) + 1)
        if not count:
            return int(len(self._tokens) > 0)
        return count + 1 - self._skipped - int(self._mark(count - 1) == len(self._tokens) - 1)

    def bounds(self, i: int) -> tuple[int, int]:
        piece = i + self._skipped
        with self._lock:
            count = self._count(piece + 1)
        start = 0 if piece == 0 else self._mark(piece - 1) + 1 if piece <= count else len(self._tokens)
        if start >= len(self._tokens):
            raise IndexError(f"there is no document {i:,}")
        return start, self._mark(piece) if piece < count else len(self._tokens)

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        marks = np.flatnonzero(tokens == self._eot) + start
        return marks + 1 if self._where == "after" else marks[marks > 0]

    @property
    def _skipped(self) -> int:
        """1 if the first token is an end-of-text token."""
        return int(len(self._tokens) > 0 and int(self._tokens.read(0, 1)[0]) == self._eot)

    def _count(self, most: int) -> int:
        """Count end-of-text tokens until there are `most` of them, or no more, and return how many were found."""
        while self._before[-1] < most and (len(self._before) - 1) * self._block < len(self._tokens):
            self._before.append(self._before[-1] + len(self._marks(len(self._before) - 1)))
        return self._before[-1]

    def _mark(self, n: int) -> int:
        """Return the position of the n-th end-of-text token, which was counted before."""
        block = bisect_right(self._before, n) - 1
        return int(self._marks(block)[n - self._before[block]])

    def _marks(self, block: int) -> NDArray[np.int64]:
        start = block * self._block
        stop = min(start + self._block, len(self._tokens))
        return np.flatnonzero(self._tokens.read(start, stop) == self._eot) + start


class EndsIndex:
    """Documents by where they end in each file."""

    def __init__(self, tokens: TokenFiles, counts: list[int], ends: Callable[[int], Any]) -> None:
        """`counts`: documents in each file; `ends(i)`: where those of file i end, in tokens of the file.

        Ends are an ascending array, or a sequence like one, of which an item or a slice is read when it is needed.
        """
        self._tokens, self._ends = tokens, ends
        self._firsts = [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def bounds(self, i: int) -> tuple[int, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"there is no document {i:,}")
        file = bisect_right(self._firsts, i) - 1
        n, ends, base = i - self._firsts[file], self._ends(file), self._tokens.starts[file]
        start, end = int(ends[n - 1]) if n else 0, int(ends[n])
        if not 0 <= start <= end <= self._tokens.files[file].tokens:
            raise self._damage(file)
        return base + start, base + end

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        found, starts = [np.empty(0, np.int64)], self._tokens.starts
        for file in range(max(0, bisect_right(starts, start) - 1), bisect_left(starts, stop)):
            ends, base = self._ends(file), starts[file]
            first, last = bisect_right(ends, max(0, start - base)), bisect_right(ends, stop - base)
            among = np.asarray(ends[first:last], np.int64) + base
            if len(among) and not (start < among[0] and among[-1] <= stop and (among[1:] > among[:-1]).all()):
                raise self._damage(file)
            found.append(among)
        return np.concatenate(found)

    def _damage(self, file: int) -> DamageError:
        return DamageError("the index of the documents is damaged", place=str(self._tokens.files[file].path))
