"""Rows of text in memory, and how formats of rows are cut into chunks that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.documents.chunks import (
    REJECT_MEMORY,
    ROW_MEMORY,
    Chunk,
    Documents,
    Lease,
    Oversize,
    Position,
    Reject,
    Work,
    excerpt,
    overhead,
    rows_are_utf8,
)
from shardmill.documents.reading import FormatReader

# A row counts as so many bytes of text more where rows are cut into chunks, and so does a bad row: a lease has eight
# bytes of memory or more for each byte of text.
ROW_TEXT, BAD_ROW_TEXT = ROW_MEMORY // 8, REJECT_MEMORY // 8
# Memory is reserved for a text of more bytes: it is joined from pieces, which takes it twice.
LONG_TEXT = 1 << 21
# How often a long text is in memory beside the batch that holds it: one is written while the next is copied.
LONG_ROW_COPIES = 2
# Bytes of a row that may be needed to show 80 characters of it.
ROW_HEAD = 320


@dataclass(frozen=True)
class Column(Work):
    """Texts in Arrow layout: row i is data[offsets[i] : offsets[i + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_] | None = None
    """Which rows hold a text; None: all of them."""
    reasons: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Why a row holds none, and its excerpt; a row that is not listed here is null."""
    oversize: int = 0
    """Bytes of the only row, whose text is not here because it is larger than the memory allows."""

    @classmethod
    def of(cls, text: Any, lengths: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> Column:
        """Rows of these lengths, whose texts follow each other in `text`."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return cls(np.frombuffer(text, np.uint8), offsets, None if valid is None or valid.all() else valid)

    @classmethod
    def joined(cls, columns: list[Column]) -> Column:
        """The rows of several columns, none of which has reasons."""
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))
        data = [column.data[column.offsets[0] : column.offsets[-1]] for column in columns]
        valid = [np.ones(len(column), np.bool_) if column.valid is None else column.valid for column in columns]
        lengths = np.concatenate([np.diff(column.offsets) for column in columns])
        return cls.of(np.concatenate(data), lengths, np.concatenate(valid))

    @classmethod
    def too_large(cls, size: int) -> Column:
        """One row of so many bytes, which ends the run."""
        return cls(np.empty(0, np.uint8), np.zeros(2, np.int64), oversize=size)

    @classmethod
    def bad(cls, reason: str, shown: str) -> Column:
        """One row that is a reject, and its excerpt."""
        return cls(np.empty(0, np.uint8), np.zeros(2, np.int64), np.zeros(1, np.bool_), {0: (reason, shown)})

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Bytes of its text."""
        return self.oversize or int(self.offsets[-1] - self.offsets[0])

    @property
    def memory(self) -> int:
        """Bytes of memory that its rows take besides their text."""
        return overhead(len(self), 0 if self.valid is None else int(np.count_nonzero(~self.valid)))

    def slice(self, first: int, last: int) -> Column:
        """Some of the rows, with the same data."""
        reasons = {row - first: reason for row, reason in self.reasons.items() if first <= row < last}
        valid = None if self.valid is None else self.valid[first:last]
        return replace(self, offsets=self.offsets[first : last + 1], valid=valid, reasons=reasons)

    def documents(self, text_field: str) -> Documents:
        """The good rows as documents; nulls and rows that are not UTF-8 are rejects."""
        if self.oversize:
            return Oversize("row", self.oversize).documents()
        keep = np.ones(len(self), np.bool_) if self.valid is None else self.valid.copy()
        null = f"field `{text_field}` is null", ""
        bad = {row: self.reasons.get(row, null) for row in np.flatnonzero(~keep).tolist()}
        for row in self._not_utf8():
            keep[row] = False
            bad[row] = self.not_text(row)
        rejects = [Reject(row, -1, *bad[row]) for row in sorted(bad)]
        data, offsets = self.kept(keep)
        return Documents(data, offsets, np.flatnonzero(keep) if bad else None, lines=len(self), rejects=rejects)

    def not_text(self, row: int) -> tuple[str, str]:
        """Why a row that is not UTF-8 is bad, and its excerpt."""
        begin, end = self.offsets[row : row + 2].tolist()
        return "invalid UTF-8", excerpt(self.data[begin : min(end, begin + ROW_HEAD)].tobytes())

    def kept(self, keep: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Data and offsets of these rows alone."""
        data, lengths = self.data[self.offsets[0] : self.offsets[-1]], np.diff(self.offsets)
        if keep.all():
            return data, self.offsets - self.offsets[0]
        if lengths[~keep].any():
            data = data[np.repeat(keep, lengths)]
        return data, np.concatenate([[0], np.cumsum(lengths[keep])])

    def _not_utf8(self) -> Iterator[int]:
        """Rows that are not UTF-8, found by halves: one bad row costs its neighbours nothing."""
        waiting = [(0, len(self))]
        while waiting:
            first, last = waiting.pop()
            if rows_are_utf8(self.data, self.offsets[first : last + 1]):
                continue
            if last - first > 1:
                half = (first + last) // 2
                waiting += [(half, last), (first, half)]
            elif self.valid is None or self.valid[first]:  # behind a null there may be any bytes
                yield first


class RowsReader(FormatReader):
    """Base class of formats of rows; a chunk carries a column."""

    def read(self, chunk: Chunk) -> Documents:
        assert isinstance(chunk.work, Column)
        return chunk.work.documents(self._field)

    @property
    def _largest(self) -> int:
        """The largest row that may be held."""
        return max(self._room.largest, self._room.largest_row)

    def _chunk(self, row: int, column: Column, through: int) -> Chunk:
        chunk = chunk_of_rows(self._index, row, column, through, self._largest)
        if len(column) == 1 and self._room.largest < column.size <= self._largest:
            return chunk._replace(lease=Lease(column.size, column.size), long=True)
        return chunk


def chunk_of_rows(index: int, row: int, column: Column, through: int, largest: int) -> Chunk:
    """The chunk that carries these rows, of which the first has this number."""
    if len(column) == 1 and column.size > largest:
        column = Column.too_large(column.size)
    lease = Lease(column.size, column.memory)
    return Chunk(index, row, Position(row + len(column)), lease, column, through=through)


def skip_rows(columns: Iterable[Column], count: int) -> Iterator[Column]:
    """The rows after the first `count`."""
    for column in columns:
        if len(column) > count:
            yield column.slice(count, len(column)) if count else column
        count = max(0, count - len(column))


def runs(lengths: NDArray[np.int64], valid: NDArray[np.bool_], size: int) -> Iterator[tuple[int, int]]:
    """First row and end of each run of rows that counts about `size` bytes, or is one row."""
    weights = np.cumsum(lengths + np.where(valid, ROW_TEXT, ROW_TEXT + BAD_ROW_TEXT))
    first = behind = 0
    while first < len(weights):
        last = max(first + 1, int(np.searchsorted(weights, behind + max(1, size), side="right")))
        yield first, last
        first, behind = last, int(weights[last - 1])


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
