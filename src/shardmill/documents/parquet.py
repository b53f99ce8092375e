"""Parquet: only the pages of the text column are read, each weighed by its header before it is decoded.

Pages that hold texts are decoded by workers. Pages that hold numbers into a dictionary may stand for gigabytes, and
some pages are larger than a chunk: those are decoded by the feeder, in slices whose size is known before they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.arrow_ipc import first_line
from shardmill.documents.batches import NULL_TEXT, ROW_TEXT, RowBatch, RowsReader, after, documents_of_rows, slices
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Part, Position, Section, beside
from shardmill.documents.columns import as_binary, find_column
from shardmill.documents.pages import (
    CODECS,
    DELTA_BYTES,
    DELTA_LENGTH,
    DICTIONARY_PAGE,
    TYPES,
    Damaged,
    Footer,
    Leaf,
    Page,
    RowGroup,
    Small,
    SmallGroup,
    dictionary_numbers,
    dictionary_values,
    longest_text,
    pages,
    small_file,
)
from shardmill.documents.reading import Reading
from shardmill.errors import BudgetError, SourceError
from shardmill.input_formats import PARQUET_MARK
from shardmill.storage import Bytes, Feed, RandomAccess, Source, check_unchanged

# Bytes that are read at once.
PART = 1 << 20
# A row group with a dictionary is joined with others if a chunk has room for so many.
TINY = 8
# Rows of a dictionary that are looked up at once.
NUMBERS_AT_ONCE = 1 << 16
# Bytes of memory that pyarrow takes for each byte of a footer. Measured: 9.0 for 3,000 row groups of 301 columns.
PARSED = 10
ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, EOFError, KeyError)


class StoredPages(NamedTuple):
    """The payload of a chunk whose pages a worker decodes."""

    file: Small
    skip: int
    """Rows at its beginning that an earlier run has written."""


class ParquetReader(RowsReader):
    """The feeder reads pages forward; a chunk carries some as they are stored, or rows that were decoded already."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading, reopen, head)
        self._leaf = Leaf(0, 0, 0)
        self._file: RandomAccess
        self._groups: list[RowGroup] = []

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        found = [group for group in self._open(feed) if section.holds(group.start)]
        row = start.offset or (found[0].first if found else 0)
        groups = [group for group in found if group.first + group.rows > row]
        self._file.expect([(group.start, group.end) for group in groups])
        total = groups[-1].first + groups[-1].rows if groups else 0
        try:
            for piece in self._pieces(groups, row, max(1, size)):
                end = row + piece.end
                yield piece._replace(start=row, end=end, through=(self._source.size or 0) * end // total)
                row = end
        finally:
            self._file.expect(())  # nobody will read what was fetched ahead

    def read(self, chunk: Chunk) -> Documents:
        if not isinstance(chunk.payload, StoredPages):
            return super().read(chunk)
        file, skip = chunk.payload
        with self._errors(chunk.start):
            columns = [as_binary(column) for column in file.columns(file.rows)]
            whole = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        if len(whole) != file.rows:
            raise self._damaged(f"{len(whole):,} rows where {file.rows:,} were announced", chunk.start)
        whole = whole.slice(skip)
        return documents_of_rows(RowBatch(whole, chunk.cost, len(whole)), self._field)

    def _pieces(self, groups: list[RowGroup], at: int, size: int) -> Iterator[Chunk]:
        """All rows from row `at` on, in chunks that weigh about `size` and begin with row 0 each."""
        run = _Run(self._index, self._leaf)
        for group in groups:
            check_unchanged(self._source)
            if run.codec != group.codec:
                yield from run.taken()
                run.codec = group.codec
            row = group.first
            dictionary: Page | None = None
            with ExitStack() as held:
                values: pa.Array | None = None
                for page in self._pages(group):
                    if page.kind == DICTIONARY_PAGE:
                        dictionary = page
                        continue
                    first, row = row, row + page.values
                    if row <= at:
                        continue
                    page = page._replace(nulls=min(page.nulls, group.nulls))
                    skip = max(0, at - first)
                    if joined := self._joined(page, dictionary, group, size):
                        if run.weight + joined.weight > size:
                            yield from run.taken()
                        run.add(joined, skip)
                        continue
                    yield from run.taken()
                    if not page.numbers:
                        rows = self._decoded(page, group.codec, first, size)
                    elif dictionary is None:
                        raise self._damaged("a page has numbers into a dictionary that is not there", first)
                    else:
                        if values is None:
                            values = self._values(dictionary, group.codec, first, held)
                        rows = self._looked_up(page, values, group.codec, first, size)
                    for part in after(rows, skip):
                        yield self._carrying(part)
            self._file.release(group.start, group.end)
        yield from run.taken()

    def _joined(self, page: Page, dictionary: Page | None, group: RowGroup, size: int) -> _Joined | None:
        """The page with what decodes it, if a worker may do that together with others; None: it is for the feeder."""
        if not page.numbers and page.encoding != DELTA_BYTES:
            joined, most = _Joined(page, page.size), 2 * size
        elif page.numbers and dictionary is not None and page.values == group.rows:
            # A tiny row group, of which there may be very many. Each row may be as long as the dictionary.
            joined, most = _Joined(page, page.size + (page.values + 1) * dictionary.size), size // TINY
        else:
            return None
        if joined.weight > most:
            return None
        if page.numbers and dictionary is not None:
            joined.dictionary = self._file.read(dictionary.start, dictionary.end)
        joined.raw = self._file.read(page.start, page.end)
        return joined

    def parts(self, feed: Feed) -> Sequence[Part]:
        self._groups = self._open(feed)
        return [Part(group.rows, group.size, group.end - group.start) for group in self._groups]

    def parts_within(self, part: int) -> Sequence[Part]:
        found, each = list[Part](), 0.0  # and bytes of an entry of the dictionary
        for page in self._pages(self._groups[part]) if not self._source.remote else ():
            if page.kind == DICTIONARY_PAGE:
                each = page.size / max(1, page.values)
            else:
                found.append(Part(page.values, int(each * page.values) if page.numbers else page.size, page.stored))
        return found

    def _values(self, page: Page, codec: int, row: int, held: ExitStack) -> pa.Array:
        """The entries of a dictionary, for as long as the memory for them is held."""
        # As it is stored, decompressed, and decoded; offsets, lengths, numbers.
        held.enter_context(self._hold(page.stored + 2 * page.size + 48 * page.values, page, codec, row))
        with self._errors(row):
            file = dictionary_values(page, self._parts(page.body, page.end), self._leaf, codec)
            parts = [as_binary(part) for part in file.columns(page.values)]
            values = parts[0] if len(parts) == 1 else pa.concat_arrays([*parts, pa.nulls(0, pa.large_binary())])
        if len(values) != page.values:
            raise self._damaged("a dictionary has fewer entries than it says", row)
        return values

    def _looked_up(self, page: Page, values: pa.Array, codec: int, row: int, size: int) -> Iterator[RowBatch]:
        """The rows of a page of numbers, made out slice by slice."""
        with (
            self._hold(page.stored + page.size + 12 * len(values) + (4 << 20), page, codec, row),
            self._errors(row),
        ):
            file = dictionary_numbers(page, self._parts(page.start, page.end), len(values), self._leaf, codec)
            numbers = file.columns(NUMBERS_AT_ONCE)
            yield from slices((pa.DictionaryArray.from_arrays(some, values) for some in numbers), size)

    def _decoded(self, page: Page, codec: int, row: int, size: int) -> Iterator[RowBatch]:
        """The rows of a page that is larger than a chunk, or may be."""
        largest = self._reading.largest
        text = page.size - 4 * page.values
        if page.values == 1 and text > largest:
            # It is told by its size: to decode it would take the memory that it is refused for.
            yield RowBatch(pa.nulls(0, pa.large_binary()), text, 1)
            return
        rows = max(1, min(size // (ROW_TEXT + NULL_TEXT), size * page.values // max(1, page.size)))
        # Rows may differ in length, but one that is larger than `largest` ends the run in any case.
        batch = min(page.size, 2 * size + largest)
        if page.encoding == DELTA_BYTES:
            # A row repeats the beginning of the one before, so it may be as long as all that the page holds.
            rows = max(1, min(rows, 4 * size // max(1, page.size)))
            batch = rows * page.size
        if page.encoding in (DELTA_BYTES, DELTA_LENGTH):
            batch += 8 * page.values  # all lengths are decoded first
        with self._hold(page.stored + page.size + batch + (1 << 20), page, codec, row), self._errors(row):
            file = small_file([SmallGroup(page.values, self._parts(page.start, page.end))], self._leaf, codec)
            yield from slices(file.columns(rows), size)

    def _carrying(self, rows: RowBatch) -> Chunk:
        """A chunk of rows that were decoded here."""
        if rows.total > 1 or rows.cost <= self._reading.largest:
            column = as_binary(rows.column)
            if not pa.types.is_dictionary(rows.column.type):
                # A copy, so that a slice does not keep all that it was cut from.
                column = pa.concat_arrays([column, pa.nulls(0, pa.large_binary())])
            rows = rows._replace(column=column)
        return self._chunk(0, rows, 0)

    def _hold(self, amount: int, page: Page, codec: int, row: int) -> AbstractContextManager[None]:
        what = "a dictionary" if page.kind == DICTIONARY_PAGE else "a page"
        longest = partial(self._longest, page, codec, row)
        return self._reading.hold(amount, f"{what} of {page.size:,} bytes", self._place(row), longest)

    def _longest(self, page: Page, codec: int, row: int) -> int | None:
        """Bytes of the longest text in a page that takes too much memory to decode; None: not even this can be told."""
        if page.values == 1:
            return page.size
        try:
            with self._reading.hold(page.stored + page.size + (1 << 20), "", ""), self._errors(row):
                return longest_text(page, self._parts(page.body, page.end), self._leaf, codec)
        except (BudgetError, SourceError):  # the error that is being made says enough
            return None

    def _pages(self, group: RowGroup) -> Iterator[Page]:
        with self._errors(group.first):
            yield from pages(self._look, group.start, group.rows, self._file.size)

    def _look(self, start: int, end: int) -> Bytes:
        """Bytes of the file that will be read again."""
        return self._file.read(start, end, keep=True)

    def _parts(self, start: int, end: int) -> Iterator[Bytes]:
        for at in range(start, end, PART):
            yield self._file.read(at, min(end, at + PART))

    def _open(self, feed: Feed) -> list[RowGroup]:
        if not isinstance(feed, RandomAccess):
            raise SourceError(
                "parquet cannot be read from a stream or inside another compression",
                place=self._source.name,
                hint="store it as a plain file; it is compressed inside already",
            )
        self._file = feed
        end = self._look(max(0, feed.size - 8), feed.size)
        if feed.size < 12 or feed.peek(0, 4) != PARQUET_MARK or end[4:] != PARQUET_MARK:
            whole = "the file is not parquet, or was cut short"
            raise SourceError(whole, place=self._source.name, hint="is the download complete?")
        footer = int.from_bytes(end[:4], "little")
        if footer > feed.size - 12:
            raise self._damaged("the footer is larger than the file", 0)
        try:
            return list(self._row_groups(footer))
        except ERRORS as error:
            raise SourceError(f"the parquet file is damaged: {first_line(error)}", place=self._source.name) from error

    def _row_groups(self, footer: int) -> Iterator[RowGroup]:
        """The row groups as the footer describes them; what cannot be true is an error before anything is allocated."""
        first = 0
        with ExitStack() as held:
            for number, group in enumerate(self._described(footer, held)):
                if group.rows:
                    if not 0 < group.start <= group.end <= self._file.size:
                        raise self._damaged(f"row group {number:,} cannot be where the footer says", first)
                    yield group._replace(first=first)
                first += group.rows

    def _described(self, footer: int, held: ExitStack) -> Iterator[RowGroup]:
        """What the footer says of the text column in each row group."""
        end = self._file.size - 8
        try:
            held.enter_context(self._reading.hold(PARSED * footer, "the footer", self._source.name))
        except BudgetError as error:
            large = Footer(self._look, end - footer, end)
            path = self._find(large.schema)
            try:
                yield from large.row_groups(path)
            except Damaged:
                raise error from None
            return
        # To pyarrow a file that ends with a footer is one, whatever is missing before it.
        metadata = pq.read_metadata(pa.BufferReader(self._look(end - footer, end + 8)))
        path = self._find(metadata.schema)
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        index, rows = names.index(".".join(path)), 0
        for number in range(metadata.num_row_groups):
            count = metadata.row_group(number).num_rows
            about = metadata.row_group(number).column(index)
            if about.num_values != count or count < 0:
                raise self._damaged(f"row group {number:,} has {about.num_values:,} values", rows)
            known = about.is_stats_set and about.statistics.has_null_count
            start = min(about.dictionary_page_offset or about.data_page_offset, about.data_page_offset)
            yield RowGroup(
                count,
                CODECS[about.compression],
                start,
                start + about.total_compressed_size,
                about.total_uncompressed_size,
                about.statistics.null_count if known else count,
            )
            rows += count
        if rows != metadata.num_rows:
            raise self._damaged("the footer's row counts do not add up", 0)

    def _find(self, schema: pq.ParquetSchema) -> tuple[str, ...]:
        """The path of the text column."""
        path = find_column(schema.to_arrow_schema(), self._field, self._source.name)
        leaf, *others = [one for one in map(schema.column, range(len(schema))) if one.path == ".".join(path)]
        if others:  # pyarrow does not tell which of them is which
            raise SourceError(
                f"there are two columns `{leaf.path}`: one of that name, and one in a struct",
                place=self._source.name,
                hint="rename one of them",
            )
        self._leaf = Leaf(TYPES[leaf.physical_type], leaf.length, leaf.max_definition_level)
        return path

    @contextmanager
    def _errors(self, row: int) -> Iterator[None]:
        """What pyarrow finds wrong is damage of the file; but not that there is no memory for it."""
        try:
            yield
        except pa.ArrowMemoryError:
            raise
        except ERRORS as error:
            raise self._damaged(first_line(error), row) from error

    def _damaged(self, what: str, row: int) -> SourceError:
        return SourceError(f"the parquet file is damaged: {what}", place=self._place(row))

    def _place(self, row: int) -> str:
        return f"{self._source.name}, {self.place(row, 0)}"


@dataclass
class _Joined:
    """A page that a worker will decode."""

    page: Page
    text: int
    """Bytes that it is decoded to, at the most."""
    raw: Bytes = b""
    dictionary: Bytes = b""

    @property
    def weight(self) -> int:
        return self.text + ROW_TEXT * self.page.values + NULL_TEXT * self.page.nulls


class _Run:
    """Consecutive pages that a worker will decode together."""

    def __init__(self, index: int, leaf: Leaf) -> None:
        self._index, self._leaf, self.codec = index, leaf, 0
        self._pages: list[_Joined] = []
        self.weight = self._skip = 0

    def add(self, page: _Joined, skip: int) -> None:
        """`skip`: rows of the very first page that are not wanted."""
        self._pages.append(page)
        self.weight += page.weight
        self._skip += skip

    def taken(self) -> Iterator[Chunk]:
        """What there is, if anything; the run is empty then."""
        if self._pages:
            file = small_file(self._groups(), self._leaf, self.codec)
            nulls, size = sum(page.page.nulls for page in self._pages), sum(page.text for page in self._pages)
            payload, more = StoredPages(file, self._skip), beside(file.rows, nulls) + len(file.raw)
            self._pages, self.weight, self._skip = [], 0, 0
            yield Chunk(self._index, 0, file.rows - payload.skip, size, beside=more, payload=payload)

    def _groups(self) -> Iterator[SmallGroup]:
        """A row group for each page that has a dictionary, and one for all between them."""
        for plain, found in groupby(self._pages, key=lambda page: not page.dictionary):
            for some in [list(found)] if plain else [[page] for page in found]:
                rows = sum(page.page.values for page in some)
                yield SmallGroup(rows, [page.raw for page in some], some[0].dictionary)
