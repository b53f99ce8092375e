"""Parquet: only the text column is read, by workers where row groups are small, by the feeder where they are large."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.arrow_ipc import first_line
from shardmill.documents.batches import ROW_TEXT, Rows, RowsReader, documents_of_rows, gathered, slices
from shardmill.documents.chunks import Chunk, Documents, Position, beside
from shardmill.documents.columns import as_binary, column_of, find_column, text_bytes
from shardmill.documents.reading import Reading
from shardmill.errors import SourceError
from shardmill.storage.feeds import Feed, FileFeed, check_unchanged
from shardmill.storage.opening import PARQUET_MARK
from shardmill.storage.ranges import RangeFile, Ranges, RemoteFeed
from shardmill.storage.source import Source

# Encoded bytes a row, below which a dictionary may be what makes the rows small: 10 GB of text can be encoded in 1 MB.
DICTIONARY_SUSPECT = 512
# A worker that finds more text than this many times what was announced gives up rather than exceed its lease.
SURPRISE = 4
FEWEST_ROWS = 16
ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, EOFError, KeyError)


class Groups(NamedTuple):
    """Consecutive row groups that a worker reads."""

    first: int
    last: int
    dictionary: bool


class RowGroup(NamedTuple):
    start: int
    rows: int
    size: int
    """Bytes of the text column, encoded but not compressed."""
    dictionary: bool
    suspect: bool
    span: tuple[int, int]
    """The bytes of the file that hold the text column."""


class ParquetReader(RowsReader):
    """Row groups up to twice the chunk size are read by workers; larger ones are cut by the feeder."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading)
        self._metadata: pq.FileMetaData | None = None
        self._path: tuple[str, ...] = ()
        self._ranges: Ranges | None = None
        """Of a remote file; None: the file is read as it lies on this machine."""
        self._groups: list[RowGroup] = []

    def chunks(self, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        groups = self._groups = self._open(feed)
        if self._ranges is not None:
            self._ranges.expect([group.span for group in groups if group.start + group.rows > start.offset])
        try:
            yield from self._chunks(groups, start, size)
        except GeneratorExit:
            if self._ranges is not None:  # nobody will read what was fetched ahead
                self._ranges.close()
            raise

    def _chunks(self, groups: list[RowGroup], start: Position, size: int) -> Iterator[Chunk]:
        total = groups[-1].start + groups[-1].rows if groups else 0
        stored = self._source.size or 0
        size = max(1, size)
        at = start.offset
        number = 0
        while number < len(groups):
            group = groups[number]
            if group.start + group.rows <= at:
                number += 1
            elif group.suspect or group.size > 2 * size or at > group.start:
                for part in gathered(self._by_feeder(number, group, at, size), size):
                    yield self._chunk(at, part, stored * (at + part.total) // total)
                    at += part.total
                number += 1
            else:
                last = number + 1
                cost = group.size
                rows = group.rows
                while last < len(groups) and not groups[last].suspect:
                    if cost + groups[last].size + ROW_TEXT * (rows + groups[last].rows) > size:
                        break
                    cost += groups[last].size
                    rows += groups[last].rows
                    last += 1
                end = groups[last - 1].start + groups[last - 1].rows
                payload = Groups(number, last, any(group.dictionary for group in groups[number:last]))
                yield Chunk(
                    self._index, at, end, cost, through=stored * end // total, beside=beside(rows), payload=payload
                )
                at, number = end, last

    def read(self, chunk: Chunk) -> Documents:
        if not isinstance(chunk.payload, Groups):
            return super().read(chunk)
        groups = chunk.payload
        columns: list[pa.Array] = []
        found = 0
        # With a dictionary a thousand rows may stand for gigabytes: they are weighed before they are made out.
        for column in self._columns(range(groups.first, groups.last), 1 << 12, groups.dictionary):
            found += int(text_bytes(column).sum())
            if found > SURPRISE * chunk.cost + (16 << 20):
                raise SourceError(
                    "the text is far larger than the file says: a dictionary repeats long values",
                    place=f"{self._source.name}, row {chunk.start + 1:,}",
                    hint="write the column again without a dictionary (use_dictionary=False)",
                )
            columns.append(as_binary(column))
        whole = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        if len(whole) != chunk.end - chunk.start:
            raise self._damaged(f"{len(whole):,} rows where {chunk.end - chunk.start:,} were announced", chunk.start)
        return documents_of_rows(Rows(whole, found, len(whole)), self._field)

    def _open(self, feed: Feed) -> list[RowGroup]:
        if isinstance(feed, RemoteFeed):
            self._ranges = feed.ranges()
        elif not isinstance(feed, FileFeed):
            raise SourceError(
                "parquet cannot be read from a stream or inside another compression",
                place=self._source.name,
                hint="store it as a plain file; it is compressed inside already",
            )
        size = feed.size
        end = self._ranges.read(size - 4, size) if self._ranges is not None else feed.peek(size - 4, 4)
        if size < 12 or feed.peek(0, 4) != PARQUET_MARK or end != PARQUET_MARK:
            whole = "the file is not parquet, or was cut short"
            raise SourceError(whole, place=self._source.name, hint="is the download complete?")
        try:
            with self._file(None) as file:
                self._metadata = file.metadata
                self._path = find_column(file.schema_arrow, self._field, self._source.name)
        except ERRORS as error:
            raise SourceError(f"the parquet file is damaged: {first_line(error)}", place=self._source.name) from error
        return self._row_groups(size)

    @contextmanager
    def _file(self, span: tuple[int, int] | None, **options: Any) -> Iterator[pq.ParquetFile]:
        """The file, for one reader; `span`: what it will read of a remote one, and nobody after it."""
        options = {"metadata": self._metadata, "pre_buffer": False, "buffer_size": 1 << 20, **options}
        if self._ranges is None:
            with pq.ParquetFile(self._source.path, **options) as file:
                yield file
        else:
            with RangeFile(self._ranges, span) as raw, pq.ParquetFile(raw, **options) as file:
                yield file

    def _row_groups(self, file_size: int) -> list[RowGroup]:
        """The row groups as the footer describes them; what cannot be true is an error before anything is allocated."""
        metadata = self._metadata
        assert metadata is not None
        groups: list[RowGroup] = []
        start = 0
        dotted = ".".join(self._path)
        try:
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                column = next(
                    column for column in map(group.column, range(group.num_columns)) if column.path_in_schema == dotted
                )
                begin = column.dictionary_page_offset or column.data_page_offset
                possible = group.num_rows == 0 or (
                    group.num_rows > 0
                    and column.num_values >= group.num_rows
                    and 0 <= column.total_compressed_size <= file_size
                    and column.total_uncompressed_size >= 0
                    and 0 < begin <= file_size - column.total_compressed_size
                )
                if not possible:
                    raise self._damaged(f"row group {number:,} cannot be where the footer says", start)
                size = column.total_uncompressed_size
                dictionary = bool(column.has_dictionary_page)
                suspect = dictionary and size < DICTIONARY_SUSPECT * group.num_rows
                span = (begin, begin + column.total_compressed_size)
                groups.append(RowGroup(start, group.num_rows, size, dictionary, suspect, span))
                start += group.num_rows
        except ERRORS as error:
            raise self._damaged(first_line(error), start) from error
        except StopIteration as error:
            raise self._damaged("the text column is not in the footer", start) from error
        if start != metadata.num_rows:
            raise self._damaged("the footer's row counts do not add up", 0)
        return groups

    def _by_feeder(self, number: int, group: RowGroup, at: int, size: int) -> Iterator[Rows]:
        """Rows to be carried by chunks; fewer rows are asked for at a time when they come out too large."""
        wanted = max(1, min(size // ROW_TEXT, group.rows, size * max(1, group.rows) // max(1, group.size)))
        numbers = group.suspect
        if group.dictionary and not numbers:
            # Rows that stay numbers into a dictionary take twice the time: rather fewer rows at once, if not too few.
            wanted = min(wanted, SURPRISE * size // max(1, self._longest(number)))
            numbers = wanted < FEWEST_ROWS
            wanted = max(wanted, FEWEST_ROWS)
        end = group.start + group.rows
        if group.rows == 1 and group.size > self._reading.largest and not group.dictionary:
            # It is told by its size: to decode it would take the memory that it is refused for.
            yield Rows(pa.nulls(1), group.size, 1)
            return
        while at < end:
            row = group.start
            smaller = False
            for column in self._columns(range(number, number + 1), wanted, numbers):
                begin, row = row, row + len(column)
                if row <= at:
                    continue
                column = column.slice(max(0, at - begin))
                for part in slices([column], size):
                    yield part
                    at += part.total
                smaller = wanted > 1 and int(text_bytes(column).sum()) > 4 * size
                if smaller and at < end:
                    wanted = max(1, wanted // 2)
                    break
            if not smaller and at < end:
                raise self._damaged(f"row group {number:,} holds fewer rows than the footer says", at)

    def _longest(self, number: int) -> int:
        """Bytes of the longest value in a row group's dictionary, which comes whole with the first row."""
        with closing(self._columns(range(number, number + 1), 1, True, again=True)) as columns:
            column = next(columns, None)
        if column is None or not pa.types.is_dictionary(column.type) or not len(column.dictionary):
            return 0
        return int(text_bytes(column.dictionary).max())

    def _columns(
        self, groups: range, rows: int, dictionary: bool, again: bool = False
    ) -> Generator[pa.Array, None, None]:
        """The text column in batches. Where there is a dictionary the rows stay numbers into it.

        `again`: the same will be read once more.
        """
        dotted = ".".join(self._path)
        if self._ranges is None:
            check_unchanged(self._source)
        span = None if again else (self._groups[groups.start].span[0], self._groups[groups.stop - 1].span[1])
        options: dict[str, Any] = {"read_dictionary": [dotted]} if dictionary else {}
        try:
            with self._file(span, **options) as file:
                batches = file.iter_batches(
                    batch_size=max(1, rows), row_groups=list(groups), columns=[dotted], use_threads=False
                )
                for batch in batches:
                    yield column_of(batch, self._path)
        except ERRORS as error:
            start = f"row group {groups.start:,}"
            raise SourceError(
                f"the parquet file is damaged: {first_line(error)}", place=f"{self._source.name}, {start}"
            ) from error

    def _damaged(self, what: str, row: int) -> SourceError:
        return SourceError(f"the parquet file is damaged: {what}", place=f"{self._source.name}, row {row + 1:,}")
