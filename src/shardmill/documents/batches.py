"""Rows that a feeder has read already, cut into chunks that carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.documents.chunks import REJECT_MEMORY, ROW_MEMORY, Chunk, Documents, Part, Position, Reject, beside
from shardmill.documents.columns import documents_of, text_bytes, valid_rows
from shardmill.documents.oversize import Oversize
from shardmill.documents.reading import Reading
from shardmill.storage import Feed, Source

# A row counts as so many bytes of text more where rows are cut into chunks, and so does a null: a lease has eight bytes
# of memory or more for each byte of text.
ROW_TEXT, NULL_TEXT = ROW_MEMORY // 8, REJECT_MEMORY // 8
# Bytes of a text, and more, for which memory is asked: it is put together from pieces, which takes it twice.
LONG_TEXT = 1 << 21


class RowBatch(NamedTuple):
    """Some consecutive rows: their texts, and those that could not even be told apart into columns."""

    column: pa.Array
    cost: int
    total: int
    """Rows, the bad ones included."""
    rejects: tuple[Reject, ...] = ()
    """Their records count from the first of these rows."""

    @property
    def beside(self) -> int:
        """Bytes of memory that they take besides their text."""
        return beside(self.total, len(self.rejects) + int(self.column.null_count))


class RowsReader:
    """What formats of rows have in common: chunks that carry a column, and rows as places."""

    unit = "row"

    def __init__(self, index: int, source: Source, reading: Reading) -> None:
        self._index = index
        self._source = source
        self._reading = reading
        self._field = reading.text_field

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.payload, Oversize):
            return chunk.payload.documents(record=0, lines=1)
        rows: RowBatch = chunk.payload
        return documents_of_rows(rows, self._field)

    def place(self, record: int, byte: int) -> str:
        return f"row {record + 1:,}"

    def parts(self, feed: Feed) -> Sequence[Part]:
        return ()

    def parts_within(self, part: int) -> Sequence[Part]:
        return ()

    def _numbered(self, parts: Iterable[RowBatch], start: Position, through: Callable[[], int]) -> Iterator[Chunk]:
        """The chunks after `start`; `through` tells how far the stored bytes have been read."""
        row = start.offset
        for part in after(parts, row):
            yield self._chunk(row, part, through())
            row += part.total

    def _chunk(self, row: int, part: RowBatch, through: int) -> Chunk:
        payload: RowBatch | Oversize = part
        if part.total == 1 and part.cost > self._reading.largest:
            payload = Oversize("row", part.cost)
        return Chunk(
            self._index, row, row + part.total, part.cost, through=through, beside=part.beside, payload=payload
        )


def documents_of_rows(rows: RowBatch, field: str) -> Documents:
    """The documents of the rows, with the rejects of both kinds in order."""
    column = rows.column
    if not rows.rejects:
        return documents_of(column, field)
    keep = np.ones(rows.total, np.bool_)
    keep[[reject.record for reject in rows.rejects]] = False
    documents = documents_of(column, field, np.flatnonzero(keep))
    documents.lines = rows.total
    documents.rejects = sorted([*documents.rejects, *rows.rejects], key=lambda reject: reject.record)
    return documents


def after(parts: Iterable[RowBatch], count: int) -> Iterator[RowBatch]:
    """The rows after the first `count` of them all."""
    for part in parts:
        if part.total <= count:
            count -= part.total
        else:
            yield _without(part, count) if count else part
            count = 0


def _without(rows: RowBatch, count: int) -> RowBatch:
    """The rows after the first `count`."""
    gone = sum(1 for reject in rows.rejects if reject.record < count)
    column = rows.column.slice(count - gone)
    rejects = tuple(
        Reject(reject.record - count, reject.byte, reject.reason, reject.excerpt)
        for reject in rows.rejects
        if reject.record >= count
    )
    return RowBatch(column, int(text_bytes(column).sum()), rows.total - count, rejects)


def runs(weights: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """First row and end of runs that weigh about `size`, or are one row. `weights`: of each row and all before it."""
    first = 0
    while first < len(weights):
        behind = int(weights[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(weights, behind + max(1, size), side="right")))
        yield first, last
        first = last


def slices(columns: Iterable[pa.Array], size: int) -> Iterator[RowBatch]:
    """Columns as runs of rows that weigh about `size`: small ones are not joined, large ones are cut.

    The weights of a column's rows take 8 bytes each, so columns must not have more rows than the memory is there for.
    """
    for column in columns:
        sizes = text_bytes(column)
        weights = np.cumsum(sizes)
        weights += ROW_TEXT * np.arange(1, len(column) + 1)
        if column.null_count:
            weights += NULL_TEXT * np.cumsum(~valid_rows(column))
        for first, last in runs(weights, size):
            yield RowBatch(column.slice(first, last - first), int(sizes[first:last].sum()), last - first)
