"""Which row, and which place in it, each piece of a packed dataset gets: best fit decreasing, from the lengths alone.

A document becomes pieces of at most a row: full rows and a rest. The largest pieces are placed first, each in the row
with the least space that is enough, or in a new row. Pieces of one size are alike, so the plan needs only how many
there are of each size, and consists of *events*: "from the k-th piece of this size on, so many in each row, from this
row on". With T sizes there are a few times T events, however many documents there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Slots(NamedTuple):
    """Where some pieces go."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


def count_pieces(lengths: NDArray[Any], row: int) -> NDArray[np.int64]:
    """Return how many pieces of each size, 0 to `row`, documents of these lengths have; counts of parts add up."""
    lengths = lengths.astype(np.int64, copy=False)
    counts = np.bincount(lengths % row, minlength=row + 1).astype(np.int64)
    counts[0] = 0
    counts[row] = int((lengths // row).sum())
    return counts


class PackingPlan:
    """Best fit decreasing of pieces into rows of `row` tokens; counts[size]: how many pieces there are of a size."""

    def __init__(self, counts: NDArray[np.int64], row: int) -> None:
        if len(counts) != row + 1 or counts[0] or (counts < 0).any():
            raise UsageError(f"a plan for rows of {row:,} tokens needs the number of pieces of every size up to that")
        self.row, self.counts = row, counts.astype(np.int64)
        self.rows = 0
        """How many rows there are."""
        self._spaces: list[int] = []
        """Amounts of free space that some rows have, ascending."""
        self._free: dict[int, list[tuple[int, int]]] = {}
        """Rows with each of these amounts, in stretches (first row, number of rows)."""
        events = [event for size in np.flatnonzero(counts)[::-1].tolist() for event in self._place(size)]
        self.padding = self.rows * row - int((self.counts * np.arange(row + 1)).sum())
        """Tokens of space that remain free in all rows together."""
        partly = [(first, rows, space) for space, some in self._free.items() for first, rows in some]
        self._partly = np.array(sorted(partly), np.int64).reshape(-1, 3)
        """Stretches of rows with free space: first row, number of rows, space."""
        self.padded_rows = int(self._partly[:, 1].sum())
        """Rows with free space."""
        table = np.array(sorted(events), np.int64).reshape(-1, 5)
        self._first_piece, self._first_row, self._per_row, self._offset = table[:, 1:].T
        self._span = int(counts.max(initial=0)) + 1
        self._lookup = table[:, 0] * self._span + self._first_piece

    def __len__(self) -> int:
        """Return how many events the plan has."""
        return len(self._lookup)

    def slots(self, sizes: NDArray[Any], numbers: NDArray[Any]) -> Slots:
        """Return where pieces go, each by its size and its number among the pieces of that size."""
        sizes, numbers = sizes.astype(np.int64, copy=False), numbers.astype(np.int64, copy=False)
        if len(sizes) and not ((sizes > 0) & (sizes <= self.row) & (numbers >= 0)).all():
            raise UsageError("a piece has a size from 1 to the row's, and a number from 0 on")
        if len(sizes) and not (numbers < self.counts[sizes]).all():
            raise UsageError("the plan has fewer pieces of this size")
        event = np.searchsorted(self._lookup, sizes * self._span + numbers, side="right") - 1
        within = numbers - self._first_piece[event]
        per_row = self._per_row[event]
        return Slots(self._first_row[event] + within // per_row, self._offset[event] + within % per_row * sizes)

    def free(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return how many tokens of space remain free at the end of some rows."""
        if not len(self._partly):
            return np.zeros(len(rows), np.int64)
        stretch = np.maximum(np.searchsorted(self._partly[:, 0], rows, side="right") - 1, 0)
        first, count, space = self._partly[stretch].T
        return np.where((rows >= first) & (rows < first + count), space, 0)

    def _place(self, size: int) -> list[tuple[int, int, int, int, int]]:
        """Place all pieces of a size: rows of (size, first piece, first row, pieces in each row, offset)."""
        events = list[tuple[int, int, int, int, int]]()
        placed, count = 0, int(self.counts[size])
        while placed < count:
            space, first, rows = self._take(size, count - placed)
            # After a piece, the same row has the least space that is enough, until it has too little.
            per_row = min(space // size, count - placed)
            filled = min(rows, (count - placed) // per_row)
            events.append((size, placed, first, per_row, self.row - space))
            self._give(space - per_row * size, first, filled)
            self._give(space, first + filled, rows - filled)
            placed += filled * per_row
        return events

    def _take(self, size: int, pieces: int) -> tuple[int, int, int]:
        """Take the rows with the least space that is enough, or as many new ones as the pieces need."""
        at = bisect_left(self._spaces, size)
        if at == len(self._spaces):
            first, rows = self.rows, -(-pieces // (self.row // size))
            self.rows += rows
            return self.row, first, rows
        space = self._spaces[at]
        first, rows = self._free[space].pop()
        if not self._free[space]:
            del self._free[space], self._spaces[at]
        return space, first, rows

    def _give(self, space: int, first: int, rows: int) -> None:
        if not space or not rows:
            return
        if space not in self._free:
            insort(self._spaces, space)
            self._free[space] = []
        self._free[space].append((first, rows))
