"""Parquet: only the pages of the text column are read, and a page's header says what it takes before it is decoded.

Pages that hold texts are decoded by workers. Pages that hold indices into a dictionary may expand to gigabytes, and
some pages are larger than a chunk: those are decoded by the feeder, in slices whose size is known before they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.documents.chunks import WHOLE, Chunk, Documents, Part, Position, Section, overhead
from shardmill.documents.columns import BAD_ROW_TEXT, ROW_TEXT, Column, RowsReader, first_line, skip_rows
from shardmill.documents.page_texts import PageTexts, Values, dictionary_values, needs_arrow
from shardmill.documents.pages import (
    DELTA_BYTES,
    DELTA_LENGTH,
    DICTIONARY_PAGE,
    Encrypted,
    Footer,
    Leaf,
    Page,
    RowGroup,
    pages,
)
from shardmill.documents.reading import Reading
from shardmill.errors import BudgetError, SourceError
from shardmill.input_formats import PARQUET_MARK
from shardmill.storage import Bytes, Feed, RandomAccess, Source, check_unchanged

# Bytes that are read at once.
PART = 1 << 20
# Rows that are measured at once, and bytes of memory for that.
MEASURED, MEASURING = 1 << 15, 4 << 20
# The mark of a file whose footer is encrypted too.
ENCRYPTED_MARK = b"PARE"
# What importing pyarrow takes.
ARROW = 30 << 20


class StoredPages(NamedTuple):
    """The payload of a chunk whose pages a worker decodes."""

    pages: list[tuple[Page, Bytes]]
    """Each page, and its body as it is stored."""
    skip: int
    """Rows at its beginning that an earlier run has written."""

    def chunk(self, index: int) -> Chunk:
        """The chunk that carries these pages."""
        rows, nulls = sum(page.values for page, _ in self.pages), sum(page.nulls for page, _ in self.pages)
        text, stored = sum(page.size for page, _ in self.pages), sum(len(body) for _, body in self.pages)
        return Chunk(index, 0, rows - self.skip, text, overhead=overhead(rows, nulls) + stored, payload=self)


class ParquetReader(RowsReader):
    """The feeder reads pages forward; a chunk carries some as they are stored, or rows that were decoded already."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading, reopen, head)
        self._leaf = Leaf(0, 0, 0, text=False)
        self._file: RandomAccess
        self._groups: list[RowGroup] = []

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        found = [group for group in self._open(feed) if section.holds(group.start)]
        row = start.offset or (found[0].first if found else 0)
        groups = [group for group in found if group.first + group.rows > row]
        self._file.expect([(group.start, group.end) for group in groups])
        total = groups[-1].first + groups[-1].rows if groups else 0
        with ExitStack() as held:
            held.callback(self._file.expect, ())  # drops what was fetched ahead
            if "pyarrow" not in sys.modules and any(needs_arrow(group.codec) for group in groups):
                held.enter_context(self._reading.hold(ARROW, "pyarrow, which its codec needs,", self._source.name))
            for piece in self._pieces(groups, row, max(1, size)):
                end = row + piece.end
                yield piece._replace(start=row, end=end, through=(self._source.size or 0) * end // total)
                row = end

    def read(self, chunk: Chunk) -> Documents:
        if not isinstance(chunk.payload, StoredPages):
            return super().read(chunk)
        out, at = np.empty(chunk.cost, np.uint8), 0
        lengths, valid = list[NDArray[np.int64]](), list[NDArray[np.bool_]]()
        with self._errors(chunk.start):
            for page, body in chunk.payload.pages:
                texts = PageTexts(page, body, self._leaf, None)
                measured = texts.measure(page.values)
                lengths.append(measured[0])
                valid.append(measured[1])
                at = texts.gather(out, at)
        rows = Column.of(out[:at], np.concatenate(lengths), np.concatenate(valid))
        return rows.slice(chunk.payload.skip, len(rows)).documents(self._field)

    def _pieces(self, groups: list[RowGroup], at: int, size: int) -> Iterator[Chunk]:
        """All rows from row `at` on, in chunks that count about `size` and begin with row 0 each."""
        waiting, weight, skipped = list[tuple[Page, Bytes]](), 0, 0
        for group in groups:
            check_unchanged(self._source)
            row = group.first
            dictionary: Page | None = None
            with ExitStack() as held:
                values: Values | None = None
                for page in self._pages(group):
                    if page.kind == DICTIONARY_PAGE:
                        dictionary = page
                        continue
                    first, row = row, row + page.values
                    if row <= at:
                        continue
                    skip = max(0, at - first)
                    counts = page.size + ROW_TEXT * page.values + BAD_ROW_TEXT * page.nulls
                    stored = not page.numbers and page.encoding != DELTA_BYTES and counts <= 2 * size
                    if waiting and (not stored or weight + counts > size):
                        yield StoredPages(waiting, skipped).chunk(self._index)
                        waiting, weight, skipped = [], 0, 0
                    if stored:
                        waiting.append((page, self._body(page)))
                        weight, skipped = weight + counts, skipped + skip
                        continue
                    if page.numbers and dictionary is not None and values is None:
                        values = self._values(dictionary, first, held)
                    for column in skip_rows(self._decoded(page, values, first, size), skip):
                        yield self._chunk(0, column, 0)
        if waiting:
            yield StoredPages(waiting, skipped).chunk(self._index)

    def parts(self, feed: Feed) -> Sequence[Part]:
        self._groups = self._open(feed)
        return [Part(group.rows, group.size, group.end - group.start) for group in self._groups]

    def parts_within(self, part: int) -> Sequence[Part]:
        found, each = list[Part](), 0.0  # mean bytes of an entry of the dictionary
        for page in self._pages(self._groups[part]) if not self._source.remote else ():
            if page.kind == DICTIONARY_PAGE:
                each = page.size / max(1, page.values)
            else:
                found.append(Part(page.values, int(each * page.values) if page.numbers else page.size, page.stored))
        return found

    def _values(self, page: Page, row: int, held: ExitStack) -> Values:
        """The entries of a dictionary, for as long as the memory for them is held."""
        held.enter_context(self._hold(page.stored + page.size + 24 * page.values, page, row))
        with self._errors(row):
            return dictionary_values(page, self._body(page), self._leaf)

    def _decoded(self, page: Page, values: Values | None, row: int, size: int) -> Iterator[Column]:
        """The rows of a page that is larger than a chunk, or may be, slice by slice."""
        largest = self._largest
        text = page.size - 4 * page.values
        if page.values == 1 and not page.numbers and text > largest:
            # Known without decoding it, for which there is no memory.
            yield Column.too_large(text)
            return
        # A row that is larger than `largest` is not decoded: it ends the run.
        slices = 0 if page.numbers else min(page.size, 2 * size + largest)
        if page.encoding in (DELTA_BYTES, DELTA_LENGTH):
            slices += 32 * page.values  # all lengths are decoded first
        with self._hold(page.stored + page.size + slices + MEASURING, page, row), self._errors(row):
            texts = PageTexts(page, self._body(page), self._leaf, values)
            yield from texts.columns(page.values, MEASURED, size, largest)

    def _hold(self, amount: int, page: Page, row: int) -> AbstractContextManager[None]:
        what = "a dictionary" if page.kind == DICTIONARY_PAGE else "a page"
        longest = partial(self._longest, page, row)
        return self._reading.hold(amount, f"{what} of {page.size:,} bytes", self._place(row), longest)

    def _longest(self, page: Page, row: int) -> int | None:
        """Bytes of the longest text in a page that takes too much memory to decode; None: even this is unknown."""
        if page.values == 1:
            return page.size
        try:
            with self._reading.hold(page.stored + page.size + 32 * page.values, "", ""), self._errors(row):
                if page.kind == DICTIONARY_PAGE:
                    lengths = dictionary_values(page, self._body(page), self._leaf).lengths
                else:
                    lengths, _ = PageTexts(page, self._body(page), self._leaf, None).measure(page.values)
                return int(lengths.max(initial=0))
        except (BudgetError, SourceError):  # the error that is being built says enough
            return None

    def _pages(self, group: RowGroup) -> Iterator[Page]:
        with self._errors(group.first):
            yield from pages(self._file.read, group, self._file.size)

    def _body(self, page: Page) -> Bytes:
        """A page as it is stored, without its header."""
        if page.end - page.body <= PART:
            body = self._file.read(page.body, page.end)
        else:
            body = bytearray()
            for at in range(page.body, page.end, PART):
                body += self._file.read(at, min(page.end, at + PART))
                self._file.release(at)
        self._file.release(page.end)
        return body

    def _open(self, feed: Feed) -> list[RowGroup]:
        if not isinstance(feed, RandomAccess):
            raise SourceError(
                "parquet cannot be read from a stream or inside another compression",
                place=self._source.name,
                hint="store it as a plain file; it is compressed inside already",
            )
        self._file = feed
        end = self._file.read(max(0, feed.size - 8), feed.size)
        if end[4:] == ENCRYPTED_MARK:
            raise self._encrypted("the parquet file")
        if feed.size < 12 or feed.peek(0, 4) != PARQUET_MARK or end[4:] != PARQUET_MARK:
            whole = "the file is not parquet, or was cut short"
            raise SourceError(whole, place=self._source.name, hint="is the download complete?")
        footer = int.from_bytes(end[:4], "little")
        if footer > feed.size - 12:
            raise self._damaged("the footer is larger than the file", 0)
        try:
            return list(self._row_groups(Footer(self._file.read, feed.size - 8 - footer, feed.size - 8)))
        except Encrypted:
            raise self._encrypted(f"the column `{self._field}`") from None
        except ValueError as error:
            raise SourceError(f"the parquet file is damaged: {first_line(error)}", place=self._source.name) from error

    def _encrypted(self, what: str) -> SourceError:
        return SourceError(f"{what} is encrypted", place=self._source.name, hint="write it again without encryption")

    def _row_groups(self, footer: Footer) -> Iterator[RowGroup]:
        """The row groups as the footer describes them, checked before anything is allocated."""
        first = 0
        for number, group in enumerate(footer.row_groups(self._find(footer))):
            if group.rows:
                if not 0 < group.start <= group.end <= self._file.size:
                    raise self._damaged(f"the footer gives an impossible place for row group {number:,}", first)
                yield group._replace(first=first)
            first += group.rows

    def _find(self, footer: Footer) -> tuple[str, ...]:
        """The path of the text column."""
        paths = (self._field,), tuple(self._field.split("."))
        found = [(path, leaf) for path, leaf in footer.columns if path in paths]
        if len(found) != 1 or not found[0][1].text:
            path = self._odd(footer)
            found = [(path, leaf) for other, leaf in footer.columns if ".".join(other) == ".".join(path)]
        (path, self._leaf), *others = found
        if others:  # a row group names both in the same way
            raise SourceError(
                f"there are two columns `{'.'.join(path)}`: one of that name, and one in a struct",
                place=self._source.name,
                hint="rename one of them",
            )
        return path

    def _odd(self, footer: Footer) -> tuple[str, ...]:
        """The path of a column of another type, such as all nulls; mostly SourceError, which says what it is."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from shardmill.documents.arrow_columns import find_column

        with self._errors(0):
            schema = pq.read_schema(pa.BufferReader(footer.as_if_empty()))
        return find_column(schema, self._field, self._source.name)

    @contextmanager
    def _errors(self, row: int) -> Iterator[None]:
        """Turn decoding errors into SourceError; MemoryError goes through."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise self._damaged(first_line(error), row) from error

    def _damaged(self, what: str, row: int) -> SourceError:
        return SourceError(f"the parquet file is damaged: {what}", place=self._place(row))

    def _place(self, row: int) -> str:
        return f"{self._source.name}, {self.place(row, 0)}"
