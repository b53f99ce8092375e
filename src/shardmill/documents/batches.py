"""Rows that a feeder has read already, cut into chunks that carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.documents.chunks import REJECT_MEMORY, ROW_MEMORY, Chunk, Documents, Oversize, Reject, beside, excerpt
from shardmill.documents.reading import FormatReader
from shardmill.storage import is_valid

# A row counts as so many bytes of text more where rows are cut into chunks, and so does a null: a lease has eight bytes
# of memory or more for each byte of text.
ROW_TEXT, NULL_TEXT = ROW_MEMORY // 8, REJECT_MEMORY // 8
# Bytes of a text, and more, for which memory is asked: it is put together from pieces, which takes it twice.
LONG_TEXT = 1 << 21


@dataclass(frozen=True)
class Column:
    """Texts in Arrow layout: row i is data[offsets[i] : offsets[i + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_] | None = None
    """Which rows are not null; None: all of them."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, text: Any, lengths: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> Column:
        """Rows of these lengths that stand in the text one after another."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return cls(np.frombuffer(text, np.uint8), offsets, None if valid is None or valid.all() else valid)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def nulls(self) -> int:
        return 0 if self.valid is None else int(np.count_nonzero(~self.valid))

    def slice(self, first: int, last: int | None = None) -> Column:
        """Some of the rows, with the same data."""
        last = len(self) if last is None else last
        return Column(self.data, self.offsets[first : last + 1], None if self.valid is None else self.valid[first:last])

    def kept(self, keep: NDArray[np.bool_]) -> Column:
        """These rows alone; what is before and behind them in the data goes."""
        offsets, data = self.offsets - self.offsets[0], self.data[self.offsets[0] : self.offsets[-1]]
        if keep.all():
            return Column(data, offsets)
        if self.lengths[~keep].any():
            data = data[np.repeat(keep, self.lengths)]
        return Column.of(data, self.lengths[keep])

    def invalid(self) -> Iterator[int]:
        """Rows that are not UTF-8, found by halves: one bad row costs its neighbours nothing."""
        waiting = [(0, len(self))]
        while waiting:
            first, last = waiting.pop()
            if self._is_valid(first, last):
                continue
            if last - first > 1:
                half = (first + last) // 2
                waiting += [(half, last), (first, half)]
            elif self.valid is None or self.valid[first]:  # behind a null there may be any bytes
                yield first

    def _is_valid(self, first: int, last: int) -> bool:
        """Whether these rows are UTF-8 together, and none begins inside a character."""
        ends = self.offsets[first : last + 1]
        begins = ends[:-1][np.diff(ends) > 0]
        return not (self.data[begins] & 0xC0 == 0x80).any() and is_valid(self.data[ends[0] : ends[-1]])


NO_ROWS = Column(np.empty(0, np.uint8), np.zeros(1, np.int64))


class Texts:
    """A column of texts, of which some rows after the others are weighed and then read."""

    def text(self, first: int, last: int) -> Any:
        """The text of some of the rows that were weighed; they are asked for in order, each once."""
        raise NotImplementedError

    def skip(self, first: int, last: int) -> None:
        """Pass over the text of some of these rows."""


class RowBatch(NamedTuple):
    """Some consecutive rows: their texts, and those that could not even be told apart into columns."""

    column: Column
    cost: int
    total: int
    """Rows, the bad ones included."""
    rejects: tuple[Reject, ...] = ()
    """Their records count from the first of these rows."""

    @property
    def beside(self) -> int:
        """Bytes of memory that they take besides their text."""
        return beside(self.total, len(self.rejects) + self.column.nulls)


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
    column, rejects = rows.column, list(rows.rejects)
    records = np.arange(rows.total)
    if rejects:
        records = np.delete(records, [reject.record for reject in rejects])
    keep = np.ones(len(column), bool)
    if column.valid is not None:
        keep = column.valid.copy()
        rejects += [Reject(record, -1, f"field `{field}` is null", "") for record in records[~keep].tolist()]
    for row in column.invalid():
        keep[row] = False
        shown = excerpt(column.data[slice(*column.offsets[row : row + 2])].tobytes())
        rejects.append(Reject(int(records[row]), -1, "invalid UTF-8", shown))
    good = column.kept(keep)
    rejects.sort(key=lambda reject: reject.record)
    return Documents(good.data, good.offsets, records[keep] if rejects else None, lines=rows.total, rejects=rejects)


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
    return RowBatch(column, int(column.lengths.sum()), rows.total - count, rejects)


def runs(weights: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """First row and end of runs that weigh about `size`, or are one row. `weights`: of each row and all before it."""
    first = 0
    while first < len(weights):
        behind = int(weights[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(weights, behind + max(1, size), side="right")))
        yield first, last
        first = last


def weighed(lengths: NDArray[np.int64], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What each row and all before it weigh where rows are cut into chunks."""
    return np.cumsum(lengths + np.where(valid, ROW_TEXT, ROW_TEXT + NULL_TEXT))


def cut(
    texts: Texts,
    lengths: NDArray[np.int64],
    valid: NDArray[np.bool_],
    size: int,
    largest: int,
    need: Callable[[int], None] = lambda cost: None,
) -> Iterator[RowBatch]:
    """Rows that were weighed, in runs of about `size`. `need`: called with the bytes of each before they are made."""
    for first, last in runs(weighed(lengths, valid), size):
        cost = int(lengths[first:last].sum())
        if last - first == 1 and cost > largest:
            texts.skip(first, last)
            yield RowBatch(NO_ROWS, cost, 1)
        else:
            need(cost)
            column = Column.of(texts.text(first, last), lengths[first:last], valid[first:last])
            yield RowBatch(column, cost, last - first)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
