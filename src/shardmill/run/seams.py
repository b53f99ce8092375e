"""Documents that continue from one batch to the next; seams, where a stream of text goes on in another split; and
where a run with `--limit` ends.

A worker sees one chunk. Only here, in plan order, is it known in which split a document began, and whether the text
before a span went to the same split. `settled` makes batches that can be written without those around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.run.batch import Batch, OpenDocument, Rows, Stream, eot_places

if TYPE_CHECKING:
    from numpy.typing import NDArray


def numbered(batches: Iterable[Batch], source: int, records: int) -> Iterator[Batch]:
    """The batches, with records counted from the start of their source. A worker counts from the start of its batch.

    `records`: those of `source` before the first batch.
    """
    for batch in batches:
        if records:
            for eot, stream in batch.streams.items():
                rows = stream.rows
                batch.streams[eot] = stream._replace(
                    rows=replace(rows, record=rows.record + np.where(rows.source == source, records, 0))
                )
        counted = iter(batch.counted)
        for entry in batch.entries if batch.final else ():
            if entry.chunk is None or entry.chunk.whole:
                source, records = entry.source + 1, 0
                next(counted) if entry.chunk else None
                continue
            if entry.source != source:
                source, records = entry.source, 0
            records += next(counted).lines
        yield batch


def settled(batches: Iterable[Batch], open: OpenDocument, eot_id: int) -> Iterator[Batch]:
    """The batches, with the split and the bytes of documents that continue, and with a batch at each seam.

    `open`: the document that continues in the first batch. A piece of a document goes to the split in which it began,
    and all bytes of its text count where it ends. At a seam the document in the one split ends, and another begins in
    the other split, so that no text continues where it did not.
    """
    for batch in batches:
        if batch.streams:
            if batch.piece:
                open = _settle_piece(batch, open)
            else:
                rows = next(iter(batch.streams.values())).rows
                if is_seam(rows, open.split):
                    yield _seam(batch, open.split, eot_id)
                open = _open_after(rows, open)
            batch.open = open
        yield batch


def is_seam(rows: Rows, split: str) -> bool:
    """Whether the document that is open in a split ends before these rows, which do not begin a document themselves."""
    some = _marked(rows)
    return bool(split and len(some) and not rows.opens[some[0]] and _name(rows.val[some[0]]) != split)


def ending(
    eots: Iterable[str],
    split: str,
    dtype: np.dtype[Any],
    eot_id: int,
    begin: str = "",
    place: tuple[int, int] = (0, 0),
) -> Batch:
    """A batch that ends the document in a split, and begins one in the split `begin`.

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
    return Batch([], [], streams, stream=True, ended=1, open=OpenDocument(begin))


def _seam(batch: Batch, split: str, eot_id: int) -> Batch:
    arrays = (tokens for stream in batch.streams.values() for tokens in stream.tokens.values())
    # Without tokens there is nothing to be marked either.
    dtype = next((tokens.dtype for tokens in arrays), np.dtype(np.uint32))
    rows = next(iter(batch.streams.values())).rows
    first = _marked(rows)[0]
    place = int(rows.source[first]), int(rows.record[first])
    return ending(batch.streams, split, dtype, eot_id, "train" if split == "val" else "val", place)


def _settle_piece(batch: Batch, open: OpenDocument) -> OpenDocument:
    rows = next(iter(batch.streams.values())).rows
    split = _name(bool(rows.val.any())) if batch.begins else open.split
    seen = open.bytes + int(rows.bytes.sum())
    counted = np.zeros(len(rows), np.int64)
    if batch.ends:
        counted[-1:] = seen  # the last row is the one that ends the document
    val = np.full(len(rows), split == "val")
    for eot, stream in batch.streams.items():
        tokens = dict(zip([split], stream.tokens.values(), strict=False))  # a piece is one row
        batch.streams[eot] = Stream(replace(stream.rows, bytes=counted, val=val), tokens)
    return OpenDocument() if batch.ends else OpenDocument(split, seen)


def _open_after(rows: Rows, before: OpenDocument) -> OpenDocument:
    some = _marked(rows)
    if not len(some):
        return before
    return OpenDocument() if rows.closes[some[-1]] else OpenDocument(_name(rows.val[some[-1]]))


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

    def cut(self, rows: Rows, *, stream: bool) -> Rows:
        """The rows up to the one that reaches the limit, which then ends a document; their lengths without EOT."""
        last = self.row(rows, stream=stream)
        if last is not None:
            rows = rows[: last + 1]
            rows.closes[-1] = True
        return rows
