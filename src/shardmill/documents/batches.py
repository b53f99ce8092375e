"""Rows that a feeder has read already, cut into chunks that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.documents.chunks import REJECT_MEMORY, ROW_MEMORY, Chunk, Documents, Oversize, Reject, beside, excerpt
from shardmill.documents.columns import as_binary, invalid_rows, layout, numbers_array, text_bytes, valid_rows
from shardmill.documents.reading import FormatReader

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


class RowsReader(FormatReader):
    """What formats of rows have in common: chunks that carry a column."""

    def read(self, chunk: Chunk) -> Documents:
        return read_rows(chunk, self._field)

    def _chunk(self, row: int, rows: RowBatch, through: int) -> Chunk:
        return chunk_of_rows(self._index, row, rows, through, self._reading.largest)


def chunk_of_rows(index: int, row: int, rows: RowBatch, through: int, largest: int) -> Chunk:
    """The chunk that carries these rows, of which the first has this number."""
    too_large = rows.total == 1 and rows.cost > largest
    payload = Oversize("row", rows.cost) if too_large else rows
    return Chunk(index, row, row + rows.total, rows.cost, through=through, beside=rows.beside, payload=payload)


def read_rows(chunk: Chunk, field: str) -> Documents:
    """The documents of a chunk that carries rows."""
    if isinstance(chunk.payload, Oversize):
        return chunk.payload.documents(record=0, lines=1)
    return documents_of_rows(chunk.payload, field)


def documents_of_rows(rows: RowBatch, field: str) -> Documents:
    """The good rows as documents; nulls and rows that are not UTF-8 are rejects, besides those that were before."""
    array, rejects = as_binary(rows.column), list(rows.rejects)
    records = np.arange(rows.total)
    if rejects:
        records = np.delete(records, [reject.record for reject in rejects])
    keep = np.ones(len(array), bool)
    if array.null_count:
        keep = valid_rows(array)
        rejects += [Reject(record, -1, f"field `{field}` is null", "") for record in records[~keep].tolist()]
    if invalid := list(invalid_rows(array)):
        keep[invalid] = False
        rejects += [Reject(int(records[row]), -1, "invalid UTF-8", excerpt(array[row].as_py())) for row in invalid]
    if not keep.all():
        array, records = array.take(numbers_array(np.flatnonzero(keep))), records[keep]
    data, offsets = layout(array)
    rejects.sort(key=lambda reject: reject.record)
    return Documents(data, offsets, records if rejects else None, lines=rows.total, rejects=rejects)


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
