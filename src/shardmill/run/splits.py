"""Which document goes to which split.

Unless `--val` says otherwise, a document's split is a function of its text and the seed, never of its place. Duplicates
have the same hash, so they are in the same split, and the split of a document does not change when files are added,
renamed or divided differently. The hash covers only the first 64 KiB, so the split of a document that does not fit into
memory is known from its first piece. Of these bytes it covers 16 words of eight bytes, spread evenly (all of a text of
up to 128 bytes), which takes less than a microsecond per document. Documents that differ only elsewhere are in the same
split, which is right for near-duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.core import content_hash
from shardmill.documents import SPAN
from shardmill.run.batch import Rows
from shardmill.shards import SPLITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Documents
    from shardmill.options import Val
    from shardmill.run.batch import Stream

PREFIX = SPAN
"""Bytes that decide the split, of a span as of a document."""


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


def val_rows(documents: Documents, val: Val, seed: int) -> NDArray[np.bool_]:
    """Which rows go to val: by their place in the source, by their content, or none."""
    if documents.tail is not None:
        return documents.tail
    if val.fraction:
        return in_val(documents.data, documents.offsets, val.fraction, seed, len(documents.gap))
    return np.zeros(len(documents), dtype=np.bool_)


def in_val(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], fraction: float, seed: int, gap: int = 0
) -> NDArray[np.bool_]:
    """For each row data[offsets[i] : offsets[i+1] - gap] whether its content puts it into val."""
    if fraction >= 1:
        return np.ones(len(offsets) - 1, dtype=np.bool_)
    return content_hash(data, offsets, seed, gap) < np.uint64(int(fraction * 2.0**64))
