"""Where documents begin and end in a split: from the format's own index, or from the end-of-text tokens."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.token_files import TokenFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 20  # tokens that are searched at once
_ENTRIES = 1 << 16  # positions that are kept; if there are more, every second one is dropped


class DocumentIndex(Protocol):
    """Finds documents by their number."""

    def __len__(self) -> int:
        """Return how many there are; where that is not stored, all tokens are searched once."""

    def bounds(self, i: int) -> tuple[int, int]:
        """Return where document `i` begins and ends, with its end-of-text token if it has one there. IndexError."""

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return where documents end from `start` to `stop`; `tokens` are those between them."""


class EndOfText:
    """Documents between end-of-text tokens. Text before the first or after the last counts if it is not empty.

    Positions are kept for every so many end-of-text tokens only; those between are searched for again. They are found
    only as far as a caller has asked for documents.
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
            self._search(len(self._tokens) + 1, -1)
            if not self._count:
                return int(len(self._tokens) > 0)
            last = self._mark(self._count - 1)
            return self._count + 1 - self._skipped - int(last == len(self._tokens) - 1)

    def bounds(self, i: int) -> tuple[int, int]:
        piece = i + self._skipped
        with self._lock:
            self._search(-1, piece + 1)
            start = 0 if piece == 0 else self._mark(piece - 1) + 1 if piece <= self._count else len(self._tokens)
            if start >= len(self._tokens):
                raise IndexError(f"there is no document {i:,}")
            return start, self._mark(piece) if piece < self._count else len(self._tokens)

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        marks = np.flatnonzero(tokens == self._eot) + start
        return marks + 1 if self._where == "after" else marks[marks > 0]

    @property
    def _skipped(self) -> int:
        """1 if the first token is an end-of-text token."""
        return int(len(self._tokens) > 0 and int(self._tokens.read(0, 1)[0]) == self._eot)

    def _search(self, position: int, count: int) -> None:
        """Find end-of-text tokens up to a position, or until there are `count` of them."""
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
        """Return the position of the n-th end-of-text token, which was found before."""
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
