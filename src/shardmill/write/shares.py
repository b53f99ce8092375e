"""The tokens of a batch, divided among the splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.shards import SPLITS
from shardmill.write.batch import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.write.batch import Stream


class Share(NamedTuple):
    """The part of a batch that goes to one split."""

    split: str
    tokens: NDArray[Any]
    rows: Rows
    """The rows of these tokens."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where documents end in this split, counted from the start of `tokens`, unless it is there."""
        ends = np.cumsum(self.rows.length)[self.rows.closes]
        return ends[ends > 0] if len(ends) and not ends[0] else ends

    @property
    def documents(self) -> int:
        """A document counts in the split where it ends."""
        return int(np.count_nonzero(self.rows.closes))

    @property
    def bytes(self) -> int:
        return int(self.rows.bytes.sum())


def shares(stream: Stream, *, first: int = 0) -> Iterator[Share]:
    """Divide a batch's tokens among the splits. Val takes the next `first` of them, whatever the rows say."""
    for name in SPLITS:
        mine = stream.rows.val if name == "val" else ~stream.rows.val
        rows = stream.rows if mine.all() else stream.rows[mine]
        tokens = stream.tokens.get(name)
        if tokens is None:  # a document may begin or end here all the same, if its end-of-text token is elsewhere
            if rows.closes.any() or rows.opens.any():
                yield Share(name, np.empty(0, np.int64), rows)
        elif not 0 < first < len(tokens):
            yield Share("val" if first else name, tokens, rows)
        else:
            before, after = _cut(rows, first)
            yield Share("val", tokens[:first], before)
            yield Share(name, tokens[first:], after)


def _cut(rows: Rows, border: int) -> tuple[Rows, Rows]:
    """The rows before and after a token. One that is cut there is in both, and counts in the second."""
    stops = np.cumsum(rows.length)
    whole = int(np.searchsorted(stops, border, side="right"))
    inside = border - int(stops[whole - 1]) if whole else border
    before, after = rows[: whole + (inside > 0)], rows[whole:]
    if inside:
        before = Rows(*(column.copy() for column in vars(before).values()))
        before.length[-1], before.bytes[-1], before.closes[-1] = inside, 0, False
        after = replace(after, length=after.length.copy())
        after.length[0] -= inside
    return before, after
