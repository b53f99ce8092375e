"""Excerpts of parquet and Arrow: row groups or batches from all over a file, or every so many rows of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import SourceError
from shardmill.inspecting import excerpts
from shardmill.inspecting.read_ahead import UNKNOWN, Marks
from shardmill.reading import Chunk, Position
from shardmill.reading.arrow_ipc import first_line
from shardmill.reading.batches import slices
from shardmill.reading.columns import column_of, find_column, text_bytes
from shardmill.reading.opening import ARROW_MARK
from shardmill.reading.storage import FileFeed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.inspecting.excerpts import Excerpt, Look
    from shardmill.reading import Reading, Source
    from shardmill.reading.formats import FormatReader
    from shardmill.reading.storage import Feed

_JUMPS = 4  # batches that Arrow data is followed at the least, to see how many rows they hold
_REPETITIVE = 512  # bytes a row, encoded, below which a dictionary may be what makes the rows small


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
        elif isinstance(self._feed, FileFeed) and self._feed.peek(0, len(ARROW_MARK)) == ARROW_MARK:
            self._some_batches(shares)
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
        self._look.weigh(through / max(1, behind), behind, 0.0 if self._look.whole else UNKNOWN)

    def _some_batches(self, shares: list[float]) -> None:
        """Of an Arrow file, whose footer says where its batches are: the same share of some from all over it."""
        import pyarrow as pa

        try:
            with pa.OSFile(self._source.path) as stored, pa.ipc.open_file(stored) as file:
                path = find_column(file.schema, self._field, self._source.name)
                count = file.num_record_batches
                weights: list[int] = []
                # Not in order, so that what time allows is from all over the file.
                for number in np.random.default_rng(0).permutation(np.unique((np.array(shares) * count).astype(int))):
                    if self._ended() and weights:
                        break
                    started = time.perf_counter()
                    column = column_of(file.get_batch(int(number)), path)
                    weights.append(int(text_bytes(column).sum()) + len(column))
                    share = min(1.0, len(shares) * excerpts.UNIT / max(1, weights[0]) / min(count, len(shares)))
                    self._some_rows(column.slice(0, max(1, int(share * len(column)))), started)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise SourceError(f"the Arrow data is damaged: {first_line(error)}", place=self._source.name) from error
        seen, mean = len(weights), max(1.0, float(np.mean(weights or [0])))
        spread = float(np.std(weights, ddof=1)) / mean / seen**0.5 if seen > 1 else UNKNOWN
        self._look.weigh((self._source.size or 0) / mean / count, 0, spread * max(0.0, 1 - seen / count) ** 0.5)

    def _some_rows(self, column: Any, started: float) -> None:
        row = 0
        for rows in slices([column], excerpts.UNIT):
            self._take(Chunk(0, row, row + rows.total, rows.cost, payload=rows), started)
            row += rows.total
            started = time.perf_counter()

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
        self._look.weigh(marks.rate, marks.last, marks.doubt)

    def _row_groups(self, shares: list[float]) -> None:
        """The beginnings of the groups that the shares fall into; where several fall into one, more of it."""
        starts, total, encoded = row_groups(self._source, self._field)
        groups = np.searchsorted(starts, np.array(shares) * total, side="right") - 1
        chosen = np.stack(np.unique(groups, return_counts=True), axis=1)
        for group, hits in np.random.default_rng(0).permutation(chosen).tolist():
            if self._ended() and self._look.excerpts:
                break
            end = int(starts[group + 1]) if group + 1 < len(starts) else total
            first = len(self._look.excerpts)
            taken = 0
            started = time.perf_counter()
            with self._chunks(int(starts[group])) as chunks:
                for chunk in chunks:
                    excerpt = self._look.take(self._reader, chunk, started)
                    taken += len(excerpt.documents.data)
                    if taken >= hits * excerpts.UNIT or chunk.end >= end:
                        break
                    started = time.perf_counter()
            if encoded.sum() >= _REPETITIVE * total:
                whole = int(encoded[group]) if chunk.end == end else None
                _as_encoded(self._look.excerpts[first:], whole)
        measured_by = int(encoded.sum()) if encoded.sum() >= _REPETITIVE * total else total
        self._look.weigh((self._source.size or 0) / max(1, measured_by), 0)


def _as_encoded(group: list[Excerpt], whole: int | None) -> None:
    """Measure excerpts of a row group by the bytes of its column as they are encoded before they are compressed.

    A text takes four bytes more there; `whole`: what the group takes, when all of it was read, with the heads of pages.
    """
    for excerpt in group:
        excerpt.span = len(excerpt.documents.data) + 4 * excerpt.records
    if whole is not None and (seen := sum(excerpt.span for excerpt in group)):
        for excerpt in group:
            excerpt.span = round(excerpt.span * whole / seen)


def _weight(chunk: Chunk) -> int:
    """What rows are measured by: the number of some rows says little of how long the others are."""
    return chunk.cost + chunk.end - chunk.start


def row_groups(source: Source, field: str) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """The first row of each row group of a parquet file, the number of rows, and the encoded bytes of a column in each.

    SourceError when the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts, encoded = [0], []
    try:
        metadata = pq.read_metadata(source.path)
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = names.index(field) if field in names else -1
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            counts.append(group.num_rows)
            encoded.append(group.column(column).total_uncompressed_size if column >= 0 else 0)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"the parquet file is damaged: {reason}", place=source.name) from error
    starts = np.cumsum(np.array(counts, np.int64))
    return starts[:-1], int(starts[-1]), np.array(encoded, np.int64)
