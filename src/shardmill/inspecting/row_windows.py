"""Excerpts of parquet, Arrow and CSV: row groups from all over a file, or every so many rows of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import SourceError
from shardmill.inspecting import excerpts
from shardmill.inspecting.read_ahead import Marks
from shardmill.reading import Position
from shardmill.reading.ranges import open_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.inspecting.excerpts import Look
    from shardmill.reading import Chunk, Reading, Source
    from shardmill.reading.formats import FormatReader
    from shardmill.reading.storage import Feed

_JUMPS = 4  # batches that Arrow data is followed at the least, to see how many rows they hold
_BEGINNING = 8 << 20  # bytes of CSV that are parsed at the least
_REPETITIVE = 512  # bytes a row, encoded, below which a dictionary may be what makes the rows small


class Beginning:
    """A feed that ends early: CSV is read far ahead by its library, so only an end tells what its rows stand for."""

    def __init__(self, feed: Feed, size: int, limit: int) -> None:
        self._feed, self._limit = feed, limit
        self._marks = Marks(size)
        self.cut = False
        """The source goes on after what was given."""

    def peek(self, offset: int, n: int) -> bytes:
        n = min(n, self._limit - offset)
        if n <= 0:
            self.cut = self.cut or self._feed.end_by(self._limit) is None
            return b""
        window = self._feed.peek(offset, n)
        self._marks.add(offset + n, self._feed.stored(offset + n))
        return window

    @property
    def stored_behind(self) -> float:
        """Stored bytes of what was given."""
        return self._marks.rate * self._limit

    def take(self, start: int, end: int) -> bytes | None:
        return self.peek(start, end - start)

    def drop(self, offset: int) -> None:
        self._feed.drop(min(offset, self._limit))

    def end_by(self, limit: int) -> int | None:
        end = self._feed.end_by(min(limit, self._limit))
        return self._limit if end is None and limit >= self._limit else end

    def stored(self, offset: int) -> int:
        return self._feed.stored(offset)

    def close(self) -> None:
        self._feed.close()


def beginning(feed: Feed, size: int, wanted: int) -> Beginning:
    """As much of a CSV file of `size` stored bytes as gives so many excerpts, with as much again between them."""
    return Beginning(feed, size, max(_BEGINNING, 2 * wanted * excerpts.UNIT))


class RowVisit:
    """One source, looked into once."""

    def __init__(
        self, source: Source, reading: Reading, reader: FormatReader, feed: Feed, look: Look, ended: Callable[[], bool]
    ) -> None:
        self._source, self._field, self._reader = source, reading.text_field, reader
        self._feed, self._look, self._ended = feed, look, ended

    def go(self, shares: list[float] | None) -> None:
        if shares is None:
            self._everything()
        elif self._look.format == "parquet":
            self._row_groups(shares)
        elif isinstance(self._feed, Beginning):
            self._beginning(self._feed)
        else:
            self._batches(len(shares))

    def _chunks(self, row: int) -> Any:
        """Closing: the reader's generator holds files open."""
        return closing(self._reader.chunks(self._feed, Position(row), excerpts.UNIT))

    def _take(self, chunk: Chunk, started: float) -> None:
        self._look.take(self._reader, chunk, started).span = _weight(chunk)

    def _everything(self) -> None:
        behind = through = 0
        started = time.perf_counter()
        with self._chunks(0) as chunks:
            for chunk in chunks:
                self._take(chunk, started)
                behind, through = behind + _weight(chunk), chunk.through
                if self._ended() or self._look.full:
                    break
                started = time.perf_counter()
            else:
                self._look.whole, through = True, self._source.size or 0
        self._look.weigh(through / max(1, behind), behind)

    def _beginning(self, feed: Beginning) -> None:
        """Every second chunk of the beginning of a file."""
        behind = 0
        started = time.perf_counter()
        try:
            with self._chunks(0) as chunks:
                for number, chunk in enumerate(chunks):
                    behind += _weight(chunk)
                    if number % 2 == 0 and not (self._ended() and number):
                        self._take(chunk, started)
                    else:
                        self._look.passed(started)
                    started = time.perf_counter()
        except SourceError:
            if not (feed.cut and behind):
                raise
            # The last row was cut in two, and that by us.
        self._look.weigh((feed.stored_behind if feed.cut else self._source.size or 0) / max(1, behind), behind)

    def _batches(self, wanted: int) -> None:
        """Of Arrow data, from its start on: so many chunks, with others between them."""
        marks = Marks(self._source.size or 0)
        step = 1
        started = time.perf_counter()
        with self._chunks(0) as chunks:
            for number, chunk in enumerate(chunks):
                marks.add(marks.last, chunk.through)
                marks.last += _weight(chunk)
                taken = len(self._look.excerpts)
                if number % step == 0 and taken < wanted:
                    self._take(chunk, started)
                else:
                    self._look.passed(started)
                    if (taken >= wanted and marks.jumps >= _JUMPS) or self._ended():
                        break
                if marks.jumps > 1:
                    step = int(min(max(marks.length / marks.last * (number + 1) / wanted, 1.0), excerpts.SKIP))
                started = time.perf_counter()
            else:
                marks.total = marks.last
        self._look.weigh(marks.rate, marks.last)

    def _row_groups(self, shares: list[float]) -> None:
        """The beginnings of the groups that the shares fall into; where several fall into one, more of it."""
        starts, total, encoded = row_groups(self._source, self._field)
        groups = np.searchsorted(starts, np.array(shares) * total, side="right") - 1
        chosen = np.stack(np.unique(groups, return_counts=True), axis=1)
        for group, hits in np.random.default_rng(0).permutation(chosen).tolist():
            if self._ended() and self._look.excerpts:
                break
            end = int(starts[group + 1]) if group + 1 < len(starts) else total
            taken = 0
            started = time.perf_counter()
            with self._chunks(int(starts[group])) as chunks:
                for chunk in chunks:
                    excerpt = self._look.take(self._reader, chunk, started)
                    taken += len(excerpt.documents.data)
                    if taken >= hits * excerpts.UNIT or chunk.end >= end:
                        break
                    started = time.perf_counter()
        size = self._source.size or 0
        if encoded < _REPETITIVE * total:
            self._look.weigh(size / max(1, total), 0)
            return
        # By the bytes of the column as it is encoded before it is compressed: a text takes four bytes more there.
        for excerpt in self._look.excerpts:
            excerpt.span = len(excerpt.documents.data) + 4 * excerpt.records
        self._look.weigh(size / encoded, 0)


def _weight(chunk: Chunk) -> int:
    """What rows are measured by: the number of some rows says little of how long the others are."""
    return chunk.cost + chunk.end - chunk.start


def row_groups(source: Source, field: str) -> tuple[NDArray[np.int64], int, int]:
    """The first row of each row group of a parquet file, the number of rows, and the encoded bytes of a column.

    SourceError when the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts, encoded = [0], 0
    try:
        metadata = pq.read_metadata(open_ranges(source) if source.remote else source.path)
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = names.index(field) if field in names else -1
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            counts.append(group.num_rows)
            encoded += group.column(column).total_uncompressed_size if column >= 0 else 0
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"the parquet file is damaged: {reason}", place=source.name) from error
    starts = np.cumsum(np.array(counts, np.int64))
    return starts[:-1], int(starts[-1]), encoded
