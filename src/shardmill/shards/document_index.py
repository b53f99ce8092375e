"""Where documents begin and end in a split: from the format's own index, or from the end-of-text tokens."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.token_files import TokenFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 20  # tokens looked at in one go
_ENTRIES = 1 << 16  # positions held; when there are more, every second one goes


class DocumentIndex(Protocol):
    """Finds documents by their number."""

    def __len__(self) -> int:
        """How many there are; where that is not written down, all tokens are looked at once."""

    def bounds(self, i: int) -> tuple[int, int]:
        """Where document `i` begins and ends, with its end-of-text token if the format keeps it there. IndexError."""

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Where documents end from `start` to `stop`; `tokens` are those between them."""


class EndOfText:
    """Documents between end-of-text tokens. A piece before the first or after the last counts when it is not empty.

    Positions of end-of-text tokens are held for every so many of them, never for all: what lies between is looked at
    again. They are found as far as somebody has asked.
    """

    def __init__(self, tokens: TokenFiles, eot: int, where: str) -> None:
        self._tokens, self._eot, self._where = tokens, eot, where
        self._every = 64
        self._held: list[int] = []
        self._seen = 0
        self._count = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return EndOfText, (self._tokens, self._eot, self._where)

    def __len__(self) -> int:
        with self._lock:
            self._look(len(self._tokens) + 1, -1)
            if not self._count:
                return int(len(self._tokens) > 0)
            last = self._mark(self._count - 1)
            return self._count + 1 - self._skipped - int(last == len(self._tokens) - 1)

    def bounds(self, i: int) -> tuple[int, int]:
        piece = i + self._skipped
        with self._lock:
            self._look(-1, piece + 1)
            start = 0 if piece == 0 else self._mark(piece - 1) + 1 if piece <= self._count else len(self._tokens)
            if start >= len(self._tokens):
                raise IndexError(f"there is no document {i:,}")
            return start, self._mark(piece) if piece < self._count else len(self._tokens)

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        marks = np.flatnonzero(tokens == self._eot) + start
        return marks + 1 if self._where == "after" else marks[marks > 0]

    @property
    def _skipped(self) -> int:
        """1 when nothing stands before the first end-of-text token."""
        return int(len(self._tokens) > 0 and int(self._tokens.read(0, 1)[0]) == self._eot)

    def _look(self, position: int, count: int) -> None:
        """Find marks up to a position, or until there are so many."""
        while self._seen < len(self._tokens) and (self._seen < position or self._count < count):
            stop = min(self._seen + _BLOCK, len(self._tokens))
            marks = np.flatnonzero(self._tokens.read(self._seen, stop) == self._eot) + self._seen
            self._held += marks[-self._count % self._every :: self._every].tolist()
            self._count += len(marks)
            self._seen = stop
            while len(self._held) > _ENTRIES:
                self._held = self._held[::2]
                self._every *= 2

    def _mark(self, n: int) -> int:
        """The position of the n-th end-of-text token, which has been looked at."""
        at, left = self._held[n // self._every], n % self._every
        size = 4096
        while left:
            stop = min(at + 1 + size, len(self._tokens))
            marks = np.flatnonzero(self._tokens.read(at + 1, stop) == self._eot)
            if len(marks) >= left:
                return at + 1 + int(marks[left - 1])
            left -= len(marks)
            at, size = stop - 1, min(2 * size, _BLOCK)
        return at


class Ends:
    """Documents by where they end in each file."""

    def __init__(self, tokens: TokenFiles, counts: list[int], ends: Callable[[int], NDArray[Any]]) -> None:
        """`counts`: documents of each file; `ends` gives for a file where they end, in tokens."""
        self._tokens, self._ends = tokens, ends
        self._firsts = [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def bounds(self, i: int) -> tuple[int, int]:
        file = file_of(self._firsts, i)
        n, ends = i - self._firsts[file], self._ends(file)
        return bounds_in(self._tokens, file, int(ends[n - 1]) if n else 0, int(ends[n]))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        found = []
        for file, base in files_between(self._tokens, start, stop):
            ends = self._ends(file)
            first, last = np.searchsorted(ends, [max(0, start - base), stop - base], side="right")
            among = np.asarray(ends[first:last], np.int64) + base
            if len(among) and not (start < among[0] and among[-1] <= stop and (among[1:] > among[:-1]).all()):
                raise DamageError("the index of the documents is damaged", place=str(self._tokens.files[file].path))
            found.append(among)
        return np.concatenate([np.empty(0, np.int64), *found])


def bounds_in(tokens: TokenFiles, file: int, start: int, end: int) -> tuple[int, int]:
    """Positions in a file as positions in the whole; DamageError when they cannot be."""
    if not 0 <= start <= end <= tokens.files[file].tokens:
        raise DamageError("the index of the documents is damaged", place=str(tokens.files[file].path))
    return tokens.starts[file] + start, tokens.starts[file] + end


def file_of(firsts: list[int], i: int) -> int:
    """The file that holds document `i`, by the number of the first document in each; IndexError."""
    if not 0 <= i < firsts[-1]:
        raise IndexError(f"there is no document {i:,}")
    return bisect_right(firsts, i) - 1


def files_between(tokens: TokenFiles, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The files that hold these tokens, each with the position of its first."""
    for file in range(max(0, bisect_right(tokens.starts, start) - 1), bisect_left(tokens.starts, stop)):
        yield file, tokens.starts[file]
