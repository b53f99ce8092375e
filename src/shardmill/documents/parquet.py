"""Parquet: the feeder reads page headers, and pyarrow decodes the pages of the text column in the workers.

A chunk is some pages of a row group. What a page takes when it is decoded stands in its
header, with two exceptions: indices into a dictionary and texts that share a prefix may unfold to gigabytes. If they
might, and where a page is larger than a chunk, the feeder decodes, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.arrow_columns import columns_of, find_column, whole_column
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Lease, Part, Position, Section, Work, overhead
from shardmill.documents.columns import (
    BAD_ROW_TEXT,
    LONG_ROW_COPIES,
    LONG_TEXT,
    ROW_TEXT,
    Column,
    RowsReader,
    first_line,
    skip_rows,
)
from shardmill.documents.parquet_pages import (
    DELTA_BYTE_ARRAY,
    DICTIONARY,
    Damaged,
    Encrypted,
    Page,
    RowGroup,
    pages,
    row_groups,
)
from shardmill.documents.reading import Memory
from shardmill.errors import SourceError
from shardmill.input_formats import PARQUET_MARK
from shardmill.storage import Bytes, Feed, RandomAccess, check_unchanged, read_range

ENCRYPTED_MARK = b"PARE"
"""The mark of a file whose footer is encrypted too."""
# Bytes of memory for each byte of the footer. Measured: 12 with 300 columns of numbers, 9 with one of text.
FOOTER_MEMORY = 16
# Bytes that Arrow reads at once of a column, before it knows how long a page is.
READ_BYTES = 1 << 16
# The most rows that the feeder decodes at once, and bytes of memory for each of them.
AT_ONCE, ROW_BYTES = 1 << 17, 64
# How often a page is in memory while it is decoded. Plain: decompressed, as an array, and once more while that grows;
# its rows together are no larger than the array. A dictionary: decompressed, in the decoder, in a hash table that
# grows, and as an array. Texts that share prefixes: twice more in the decoder, and one array while the next is made.
PLAIN_COPIES, DICTIONARY_COPIES, PREFIXED_COPIES = 3, 5, 6


class Pages(NamedTuple):
    """Consecutive data pages of a row group."""

    group: RowGroup
    first: int
    """The number of their first row."""
    start: int
    end: int
    rows: int
    skip: int
    """Rows at the beginning that an earlier run has written."""
    size: int
    """Bytes when decompressed, without those that are coded."""
    coded: int = 0
    """Rows that are indices into the dictionary."""
    dictionary: Page | None = None
    prefixed: bool = False
    """It is one page of texts that share prefixes, so together these may be longer than the page."""
    bodies: tuple[Bytes, ...] = ()
    """The bytes of each span, where a worker cannot read them itself."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The parts of the file that hold them."""
        before = [(self.dictionary.start, self.dictionary.end)] if self.dictionary else []
        return [*before, (self.start, self.end)]

    @property
    def text(self) -> int:
        """Upper bound of the bytes of text, if every entry of the dictionary is used."""
        size = self.size * (self.rows if self.prefixed else 1)
        if self.dictionary is not None:
            size += self.dictionary.size * (1 + max(0, self.coded - self.dictionary.values))
        return size

    @property
    def nulls(self) -> int:
        return min(self.rows, self.group.nulls)

    @property
    def weight(self) -> int:
        return self.text + ROW_TEXT * self.rows + BAD_ROW_TEXT * self.nulls

    def joined(self, other: Pages, size: int) -> Pages | None:
        """These pages and those that follow, if they count no more than `size`, or all of them are coded."""
        if self.prefixed or other.prefixed:
            return None
        both = self._replace(
            end=other.end, rows=self.rows + other.rows, size=self.size + other.size,
            coded=self.coded + other.coded, dictionary=self.dictionary or other.dictionary,
        )  # fmt: skip
        return both if both.coded == both.rows or both.weight <= size else None


@dataclass(frozen=True)
class StoredPages(Work):
    """Pages that the worker reads and decodes."""

    pages: Pages


class PagesFile:
    """A file of which a column has only these pages, with the methods that Arrow calls.

    They stand one after another where the column begins. Arrow reads no further than the rows that it is asked for.
    """

    closed = False

    def __init__(self, size: int, pages: Pages, read: Callable[[int, int], Bytes]) -> None:
        """`read(start, end)` returns bytes of the true file, which has so many."""
        self._size, self._at, self._read = size, 0, read
        self._begin, self._spans = pages.group.start, pages.spans

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> Bytes:
        found, at = list[Bytes](), self._at - self._begin
        for start, end in self._spans:
            if n > 0 and 0 <= at < end - start:
                stop = min(start + at + n, end)
                found.append(self._read(start + at, stop))
                n -= stop - start - at
                self._at += stop - start - at
                at = end - start
            at -= end - start
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Nothing is open."""


class ParquetReader(RowsReader):
    """A chunk carries pages to decode, or rows that the feeder has decoded already."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file: RandomAccess
        self._metadata: pq.FileMetaData
        self._path: tuple[str, ...] = ()

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        with self._footer(feed) as all_groups:
            found = [group for group in all_groups if section.holds(group.start)]
            row = start.offset or (found[0].first if found else 0)
            groups = [group for group in found if group.first + group.rows > row]
            self._file.expect([(group.start, group.end) for group in groups])
            total = groups[-1].first + groups[-1].rows if groups else 0
            try:
                for piece in self._pieces(groups, row, max(1, size)):
                    end = row + piece.end
                    through = (self._source.size or 0) * end // total
                    yield piece._replace(start=row, after=Position(end), through=through)
                    row = end
            finally:
                self._file.expect(())  # drops what was fetched ahead

    def parts(self, feed: Feed) -> Sequence[Part]:
        with self._footer(feed) as groups:
            return [Part(group.rows, group.size, group.end - group.start) for group in groups]

    def read(self, chunk: Chunk) -> Documents:
        if not isinstance(chunk.work, StoredPages):
            return super().read(chunk)
        pages = chunk.work.pages
        with self._errors(pages.first):
            columns = (whole_column(batch, self._path) for batch in self._batches(pages, pages.rows))
            return Column.joined(list(skip_rows(columns, pages.skip))).documents(self._field)

    def _pieces(self, groups: list[RowGroup], at: int, size: int) -> Iterator[Chunk]:
        """All rows from row `at` on, in chunks that count about `size` and begin with row 0 each."""
        for group in groups:
            check_unchanged(self._source)
            for found in self._runs(group, at, size):
                if found.weight > 2 * size:
                    for column in skip_rows(self._decoded(found, size), found.skip):
                        yield self._chunk(0, column, 0)
                else:
                    if self._source.remote:
                        found = found._replace(bodies=tuple(self._file.read(*span) for span in found.spans))
                    rows, stored = found.rows - found.skip, sum(end - start for start, end in found.spans)
                    lease = Lease(found.text, overhead(rows, found.nulls) + stored)
                    yield Chunk(self._index, 0, Position(rows), lease, StoredPages(found))
                self._file.release(found.end)

    def _runs(self, group: RowGroup, at: int, size: int) -> Iterator[Pages]:
        """The pages of a group from row `at` on, joined while they are small."""
        dictionary: Page | None = None
        run: Pages | None = None
        row = group.first
        with self._errors(row):
            for page in pages(self._file.read, group.start, group.end, group.rows):
                if page.kind == DICTIONARY:
                    dictionary = page
                    continue
                first, row = row, row + page.values
                if row <= at or not page.values:
                    continue
                found = Pages(group, first, page.start, page.end, page.values, max(0, at - first), page.size)
                if page.coded:
                    found = found._replace(size=0, coded=page.values, dictionary=dictionary)
                if page.encoding == DELTA_BYTE_ARRAY:
                    found = found._replace(prefixed=True)
                both = None if run is None else run.joined(found, size)
                if run is not None and both is None:
                    yield run
                run = both or found
        if run is not None:
            yield run

    def _decoded(self, pages: Pages, size: int) -> Iterator[Column]:
        """The rows of pages that may give more than a chunk, slice by slice."""
        dictionary = pages.dictionary
        longest, what = (dictionary.size, "dictionary") if dictionary else (pages.size, "page")
        unfolds = dictionary is not None or pages.prefixed
        if pages.rows == 1 and not unfolds and longest - 4 > self._largest:
            yield Column.too_large(longest - 4)  # known without decoding it, for which there is no memory
            return
        at_once = min(pages.rows, AT_ONCE)
        if dictionary is None:
            at_once = min(at_once, max(1, size * (1 if pages.prefixed else pages.rows) // longest))
        copies = PREFIXED_COPIES if pages.prefixed else DICTIONARY_COPIES if dictionary else PLAIN_COPIES
        memory = copies * longest + ROW_BYTES * (at_once + (dictionary.values if dictionary else 0))
        row_copies = LONG_ROW_COPIES if unfolds else 0
        with closing(Memory(self._room, self._place(pages.first))) as held, self._errors(pages.first):
            held.need(f"a {what} of {longest:,} bytes", memory)

            def need(size: int) -> None:
                held.need("a row", row_copies * size if size > LONG_TEXT else 0)

            for batch in self._batches(pages, at_once, self._file.read, dictionaries=pages.coded > 0):
                yield from columns_of(batch, self._path, size, copied=True, need=need)
                del batch  # before the next one is made

    def _batches(
        self, pages: Pages, at_once: int, read: Callable[[int, int], Bytes] | None = None, *, dictionaries: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """All rows of some pages, so many at once. `dictionaries`: with indices as they are stored.

        `read`: how the feeder reads bytes of the file; None: as a worker does.
        """
        columns, left = [".".join(self._path)], pages.rows
        file = pq.ParquetFile(
            pa.PythonFile(PagesFile(self._file.size, pages, read or self._stored_bytes(pages)), "r"),
            metadata=self._metadata,
            read_dictionary=columns if dictionaries else None,
            buffer_size=READ_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        for batch in file.iter_batches(at_once, [pages.group.number], columns, use_threads=False):
            left -= len(batch)
            yield batch
            del batch
            if left <= 0:
                break
        if left:
            raise Damaged("its pages do not hold the rows that their headers say")

    def _stored_bytes(self, pages: Pages) -> Callable[[int, int], Bytes]:
        """How a worker reads bytes of the file."""
        if not pages.bodies:
            return partial(read_range, self._source)
        held = list(zip(pages.spans, pages.bodies, strict=True))
        return lambda start, end: next(body[start - a : end - a] for (a, b), body in held if a <= start < b)

    @contextmanager
    def _footer(self, feed: Feed) -> Iterator[list[RowGroup]]:
        """The row groups that have rows, as the footer describes them; the memory for it is held meanwhile."""
        if not isinstance(feed, RandomAccess):
            raise SourceError(
                "parquet cannot be read from a stream or inside another compression",
                place=self._source.name,
                hint="store it as a plain file; it is compressed inside already",
            )
        self._file = feed
        end = feed.read(max(0, feed.size - 8), feed.size)
        if end[4:] == ENCRYPTED_MARK:
            raise self._encrypted("the parquet file")
        if feed.size < 12 or feed.read(0, 4) != PARQUET_MARK or end[4:] != PARQUET_MARK:
            whole = "the file is not parquet, or was cut short"
            raise SourceError(whole, place=self._source.name, hint="is the download complete?")
        size = int.from_bytes(end[:4], "little")
        if size > feed.size - 12:
            raise self._damaged("the footer is larger than the file", self._source.name)
        with self._room.hold(FOOTER_MEMORY * size, "the footer", self._source.name):
            with self._errors():
                footer = bytes(feed.read(feed.size - 8 - size, feed.size))
                self._metadata = pq.read_metadata(pa.BufferReader(PARQUET_MARK + footer))
                schema = self._metadata.schema.to_arrow_schema()
            self._path = find_column(schema, self._field, self._source.name)
            self._check_path()
            try:
                with self._errors():
                    count, rows = self._metadata.num_row_groups, self._metadata.num_rows
                    groups = [group for group in row_groups(footer, self._path, count, rows) if group.rows]
                    if any(group.end > feed.size for group in groups):
                        raise Damaged("the footer gives an impossible place for a column")
            except Encrypted:
                raise self._encrypted(f"the column `{self._field}`") from None
            del footer
            yield groups

    def _check_path(self) -> None:
        """Raise where pyarrow has the same name for two columns."""
        schema, path = self._metadata.schema, ".".join(self._path)
        if sum(schema.column(number).path == path for number in range(len(schema))) > 1:
            raise SourceError(
                f"there are two columns `{path}`: one of that name, and one in a struct",
                place=self._source.name,
                hint="rename one of them",
            )

    def _encrypted(self, what: str) -> SourceError:
        return SourceError(f"{what} is encrypted", place=self._source.name, hint="write it again without encryption")

    @contextmanager
    def _errors(self, row: int | None = None) -> Iterator[None]:
        """Turn errors of decoding into SourceError; MemoryError goes through, which Arrow's own is too."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, MemoryError):
                raise
            raise self._damaged(first_line(error), self._source.name if row is None else self._place(row)) from error

    def _damaged(self, what: str, place: str) -> SourceError:
        return SourceError(f"the parquet file is damaged: {what}", place=place)

    def _place(self, row: int) -> str:
        return f"{self._source.name}, {self.place(row, 0)}"
