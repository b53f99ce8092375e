"""Excerpts of parquet and Arrow: row groups or batches from all over a file, or every so many rows of a stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.documents import Chunk, Position
from shardmill.documents.arrow_ipc import first_line
from shardmill.documents.batches import slices
from shardmill.documents.columns import column_of, find_column, text_bytes
from shardmill.errors import SourceError
from shardmill.inspection import excerpts
from shardmill.inspection.read_ahead import UNKNOWN, Marks
from shardmill.storage.feeds import FileFeed
from shardmill.storage.fetching import shared_fetcher
from shardmill.storage.opening import ARROW_MARK
from shardmill.storage.ranges import RangeFile, RemoteFeed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Reading
    from shardmill.documents.formats import FormatReader
    from shardmill.inspection.excerpts import Look
    from shardmill.storage import Source
    from shardmill.storage.feeds import Feed
    from shardmill.storage.fetching import Fetcher

_JUMPS = 4  # batches that Arrow data is followed at the least, to see how many rows they hold
_WHOLE_GROUP = 16 << 20  # bytes of a row group's texts up to which it is read whole
_REPETITIVE = 512  # bytes a row, encoded, below which a dictionary may be what makes the rows small


class RowVisit:
    """One source, looked into once."""

    def __init__(
        self, source: Source, reading: Reading, reader: FormatReader, feed: Feed, look: Look, ended: Callable[[], bool]
    ) -> None:
        self._source, self._field, self._reader = source, reading.text_field, reader
        self._feed, self._look, self._ended = feed, look, ended
        self._fetcher = reading.fetcher
        # What was fetched from afar is encoded as well; of what lies here there may be more than time allows.
        self._shortens = not source.remote

    def go(self, shares: list[float] | None) -> None:
        if shares is None:
            self._everything()
        elif self._look.format == "parquet":
            self._row_groups(shares)
        elif isinstance(self._feed, FileFeed) and self._feed.peek(0, len(ARROW_MARK)) == ARROW_MARK:
            self._some_batches(shares)
        else:
            self._batches(len(shares))

    def _chunks(self, row: int, size: int = 0) -> Any:
        """Closing: the reader's generator holds files open."""
        return closing(self._reader.chunks(self._feed, Position(row), size or excerpts.UNIT))

    def _take(self, chunk: Chunk, started: float) -> None:
        self._look.take(self._reader, chunk, started).span = _weight(chunk)

    def _everything(self) -> None:
        behind = through = 0
        started = excerpts.clock()
        with self._chunks(0) as chunks:
            for chunk in chunks:
                self._take(chunk, started)
                behind, through = behind + _weight(chunk), chunk.through
                if self._ended() or self._look.full:
                    break
                started = excerpts.clock()
            else:
                self._look.whole, through = True, self._source.size or 0
        self._look.weigh(through / max(1, behind), behind, 0.0 if self._look.whole else UNKNOWN)

    def _some_batches(self, shares: list[float]) -> None:
        """Of an Arrow file, whose footer says where its batches are: the same share of some from all over it."""
        import pyarrow as pa

        try:
            with pa.OSFile(self._source.path) as stored, pa.ipc.open_file(stored) as file:
                path = find_column(file.schema, self._field, self._source.name)
                count = max(1, file.num_record_batches)
                weights: list[int] = []
                # Not in order, so that what time allows is from all over the file.
                for number in np.random.default_rng(0).permutation(np.unique((np.array(shares) * count).astype(int))):
                    if self._ended() and weights:
                        break
                    started = excerpts.clock()
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
            self._take(Chunk(0, row, row + rows.total, rows.cost, beside=rows.beside, payload=rows), started)
            row += rows.total
            started = excerpts.clock()

    def _batches(self, wanted: int) -> None:
        """Of Arrow data, from its start on: so many chunks, with others between them."""
        marks = Marks(self._source.size or 0)
        step = 1
        started = excerpts.clock()
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
                started = excerpts.clock()
            else:
                marks.total = marks.last
        self._look.weigh(marks.rate, marks.last, marks.doubt)

    def _row_groups(self, shares: list[float]) -> None:
        """The beginnings of the groups that the shares fall into; where several fall into one, more of it."""
        starts, total, encoded = row_groups(self._source, self._field, self._fetcher)
        groups = np.searchsorted(starts, np.array(shares) * total, side="right") - 1
        chosen = np.stack(np.unique(groups, return_counts=True), axis=1)
        for group, hits in np.random.default_rng(0).permutation(chosen).tolist():
            if self._ended() and self._look.excerpts:
                break
            end = int(starts[group + 1]) if group + 1 < len(starts) else total
            by_rows = encoded.sum() < _REPETITIVE * total
            taken = 0
            started = excerpts.clock()
            # Whole, as a worker would read it, unless it is huge: then what a row group takes is known to the byte.
            size = int(encoded[group]) if encoded[group] <= _WHOLE_GROUP else excerpts.UNIT
            with self._chunks(int(starts[group]), max(size, excerpts.UNIT)) as chunks:
                for chunk in chunks:
                    excerpt = self._look.take(self._reader, chunk, started)
                    whole = chunk.start == starts[group] and chunk.end == end
                    if not by_rows:
                        # A text takes four bytes more where it is encoded.
                        measured = len(excerpt.documents.data) + 4 * excerpt.records
                        excerpt.span = int(encoded[group]) if whole else measured
                    rows = excerpt.records
                    share = self._look.shorten(excerpt, hits * excerpts.UNIT) if whole and self._shortens else 1.0
                    excerpt.span = round(excerpt.span * (excerpt.records / max(1, rows) if by_rows else share))
                    taken += len(excerpt.documents.data)
                    if taken >= hits * excerpts.UNIT or chunk.end >= end:
                        break
                    started = excerpts.clock()
        measured_by = total if encoded.sum() < _REPETITIVE * total else int(encoded.sum())
        self._look.weigh((self._source.size or 0) / max(1, measured_by), 0)


def _weight(chunk: Chunk) -> int:
    """What rows are measured by: the number of some rows says little of how long the others are."""
    return chunk.cost + chunk.end - chunk.start


def row_groups(
    source: Source, field: str, fetcher: Fetcher | None = None
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """The first row of each row group of a parquet file, the number of rows, and the encoded bytes of a column in each.

    SourceError when the file cannot be read.
    """
    metadata = footer(source, fetcher)
    column = _column(metadata, field)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    encoded = [group.column(column).total_uncompressed_size if column >= 0 else 0 for group in groups]
    starts = np.cumsum(np.array([0, *(group.num_rows for group in groups)], np.int64))
    return starts[:-1], int(starts[-1]), np.array(encoded, np.int64)


def column_share(source: Source, field: str, fetcher: Fetcher | None) -> float:
    """The share of a parquet file's bytes that its text column takes: no more of it is fetched."""
    metadata = footer(source, fetcher)
    column = _column(metadata, field)
    if column < 0:
        return 1.0
    stored = sum(metadata.row_group(i).column(column).total_compressed_size for i in range(metadata.num_row_groups))
    return min(1.0, float(stored) / max(1, source.size or 0))


def footer(source: Source, fetcher: Fetcher | None) -> Any:
    """The metadata of a parquet file; SourceError when it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not source.remote:
            return pq.read_metadata(source.path)
        feed = RemoteFeed(fetcher or shared_fetcher(), source)
        with closing(feed), RangeFile(feed.ranges()) as file:
            return pq.read_metadata(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(f"the parquet file is damaged: {first_line(error)}", place=source.name) from error


def _column(metadata: Any, field: str) -> int:
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    return names.index(field) if field in names else -1
