"""Documents that continue from one batch to the next; seams, where a stream of text goes on in another split; and
where a run with `--limit` ends.

A worker sees one chunk. Only in plan order is it known in which split a document began, and whether the text before a
span went to the same split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.write import Rows, Stream, eot_places

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_seam(rows: Rows, split: str) -> bool:
    """Whether the document that is open in a split ends before these rows, which do not begin a document themselves."""
    some = _marked(rows)
    return bool(split and len(some) and not rows.opens[some[0]] and _name(rows.val[some[0]]) != split)


def seam(streams: dict[str, Stream], split: str, eot_id: int) -> dict[str, Stream] | None:
    """Streams to write before these, when the document that is open in a split ends there; None: it does not.

    Another document begins in the other split, so that no text continues where it did not.
    """
    rows = next(iter(streams.values())).rows
    if not is_seam(rows, split):
        return None
    arrays = (tokens for stream in streams.values() for tokens in stream.tokens.values())
    # Without tokens there is nothing to be marked either.
    dtype = next((tokens.dtype for tokens in arrays), np.dtype(np.uint32))
    first = _marked(rows)[0]
    place = int(rows.source[first]), int(rows.record[first])
    return ending(streams, split, dtype, eot_id, "train" if split == "val" else "val", place)


def ending(
    eots: Iterable[str],
    split: str,
    dtype: np.dtype[Any],
    eot_id: int,
    begin: str = "",
    place: tuple[int, int] = (0, 0),
) -> dict[str, Stream]:
    """Streams that end the document in a split, and begin one in the split `begin`.

    `place`: source and record of the one that begins.
    """
    ends, val = np.array([True, False]), np.array([split == "val", begin == "val"])
    none, mark = np.zeros(2, np.int64), np.array([eot_id], dtype)
    source, record = np.full(2, place[0], np.int32), np.full(2, place[1], np.int64)
    rows = Rows(none, none, val, ~ends, ends, source, record)[: 2 if begin else 1]
    streams = {}
    for eot in eots:
        marked = eot_places(rows, eot)
        tokens: dict[str, NDArray[Any]] = {_name(rows.val[i]): mark for i in np.flatnonzero(marked)}
        streams[eot] = Stream(replace(rows, length=rows.length + marked), tokens)
    return streams


def piece_in_split(streams: dict[str, Stream], split: str, bytes: int) -> dict[str, Stream]:
    """A piece of a document, moved to the split in which the document began, where `bytes` of its text count."""
    moved = {}
    for eot, stream in streams.items():
        rows = stream.rows
        counted = np.zeros(len(rows), np.int64)
        counted[-1:] = bytes
        tokens = dict(zip([split], stream.tokens.values(), strict=False))  # a piece is one row
        moved[eot] = Stream(replace(rows, bytes=counted, val=np.full(len(rows), split == "val")), tokens)
    return moved


def open_after(rows: Rows, split: str) -> str:
    """The split of the document that is open after these rows; empty: none. `split`: that of the one before them."""
    some = _marked(rows)
    if not len(some):
        return split
    return "" if rows.closes[some[-1]] else _name(rows.val[some[-1]])


def _marked(rows: Rows) -> NDArray[np.int64]:
    """The rows that belong to a document: not those of empty or rejected ones."""
    return np.flatnonzero((rows.length > 0) | rows.opens | rows.closes)


def _name(val: Any) -> str:
    return "val" if val else "train"


class Limit(NamedTuple):
    """How much `--limit` still allows; None: any number."""

    documents: int | None
    tokens: int | None
    eot: str = "after"
    """Where the end-of-text tokens are that count."""

    @property
    def nothing(self) -> bool:
        return self.reached_by(0, 0)

    def reached_by(self, documents: int, tokens: int) -> bool:
        """Whether so much is all that is allowed, or more."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def row(self, rows: Rows, *, stream: bool) -> int | None:
        """The row that reaches the limit; None: they are all allowed. Their lengths are without EOT.

        A span of a `stream` of text may be the last, with an end-of-text token behind it.
        """
        enough = np.zeros(len(rows), dtype=np.bool_)
        ended = np.cumsum(rows.closes)
        if self.documents is not None:
            enough |= ended >= self.documents
        if self.tokens is not None:
            # As many as there are if the row is the last: this must not depend on where a chunk ends.
            eots: dict[str, Any] = {
                "after": ended - rows.closes + 1,
                "before": np.cumsum(rows.opens),
                "none": np.zeros_like(ended),
            }
            enough |= (np.cumsum(rows.length) + eots[self.eot] >= self.tokens) & (
                rows.length > 0 if stream else rows.closes
            )
        return int(np.argmax(enough)) if enough.any() else None

    def is_inside(self, rows: Rows, *, stream: bool) -> bool:
        """Whether one of the rows reaches the limit. Their lengths are with EOT."""
        bare = replace(rows, length=rows.length - eot_places(rows, self.eot))
        return self.row(bare, stream=stream) is not None

    def cut(self, rows: Rows, *, stream: bool) -> Rows:
        """The rows up to the one that reaches the limit, which then ends a document; their lengths without EOT."""
        last = self.row(rows, stream=stream)
        if last is not None:
            rows = rows[: last + 1]
            rows.closes[-1] = True
        return rows
