"""CSV and TSV with a header line; a row with too many or too few fields is a reject."""

from __future__ import annotations

import codecs
import csv
import io
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from shardmill.documents.arrow_ipc import first_line
from shardmill.documents.batches import Rows, RowsReader, after, documents_of_rows, slices
from shardmill.documents.chunks import Chunk, Documents, Position, Reject
from shardmill.documents.columns import find_column
from shardmill.documents.reading import Reading
from shardmill.errors import SourceError
from shardmill.storage.feeds import Feed, FeedFile
from shardmill.storage.source import Source
from shardmill.storage.unicode import BOM, cut_character, is_valid

FIRST_BLOCK = 1 << 20
# Bad rows are handed on when there are so many; more than the most can only stand before the first good row.
MANY_BAD = 1 << 10
MOST_BAD = 1 << 16
# A code point that Unicode keeps out of all text; a row in which it stands nevertheless counts as invalid.
MARK = "\U0010fffe".encode()


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return MARK.decode(), error.end


codecs.register_error("shardmill.csv", _mark)


class CsvReader(RowsReader):
    """Rows are parsed by the feeder: whether a line break ends a row is known only from the start of the file."""

    delimiter = ","

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading)
        self._reopen = reopen
        self._head = head
        self._through = 0

    def chunks(self, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        self._check_header()
        yield from self._numbered(self._rows(feed, max(1, size)), start, lambda: self._through)

    def read(self, chunk: Chunk) -> Documents:
        rows: Rows = chunk.payload
        if pc.any(pc.match_substring(rows.column, pattern=MARK)).as_py():
            rows = rows._replace(column=pc.replace_substring(rows.column, pattern=MARK, replacement=b"\xff"))
        return documents_of_rows(rows, self._field)

    def _check_header(self) -> None:
        """Raise when the header does not name the text column once."""
        text = self._head.removeprefix(BOM).decode("utf-8", "replace")
        try:
            header = next(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)), [])
        except csv.Error as error:
            raise SourceError(f"the header line cannot be read: {error}", place=self._source.name) from error
        if not header:
            raise SourceError("the file has no header line", place=self._source.name)
        find_column(pa.schema([(name, pa.binary()) for name in header]), self._field, self._source.name)
        if header.count(self._field) > 1:
            raise SourceError(f"the header has the column `{self._field}` more than once", place=self._source.name)

    def _rows(self, feed: Feed, size: int) -> Iterator[Rows]:
        """Runs of rows. A row larger than a block is met again, from the start, with a block of four times the size."""
        block = FIRST_BLOCK
        behind = 0
        while True:
            try:
                for rows in after(self._parsed(feed, size, block), behind):
                    behind += rows.total
                    yield rows
                return
            except _Straddles:
                block *= 4
                if block > 2 * self._reading.largest or self._source.size is None:
                    raise SourceError(
                        f"a row is larger than {block // 4:,} bytes",
                        place=f"{self._source.name}, after row {behind:,}",
                        hint="raise `--memory`, or store a stream in a file; if the row should be small, look for a "
                        "quote that is not closed",
                    ) from None
            feed = self._reopen()

    def _parsed(self, feed: Feed, size: int, block: int) -> Iterator[Rows]:
        bad: deque[_Bad] = deque()

        def set_aside(row: Any) -> str:
            fields = "1 field" if row.actual_columns == 1 else f"{row.actual_columns:,} fields"
            shown = row.text[:80].replace(MARK.decode(), "\ufffd")
            # The library counts rows from 1, with the header, so the first row of data is its second.
            bad.append(_Bad(row.number - 2, f"{fields} where the header has {row.expected_columns:,}", shown))
            return "skip" if len(bad) < MOST_BAD else "error"

        row = 0
        try:
            file = FeedFile(feed, self._source.name)
            with pa.PythonFile(_Marked(file), mode="r") as stream:
                reader = self._reader(stream, block, set_aside)
                while True:
                    try:
                        column = reader.read_next_batch().column(0)
                    except StopIteration:
                        break
                    for part in slices([column], size):
                        rows = _with_bad(part.column, part.cost, bad, row)
                        row += rows.total
                        self._through = file.stored()
                        yield rows
                    if len(bad) >= MANY_BAD and bad[0].row == row:
                        rows = _only_bad(bad, row)
                        row += rows.total
                        yield rows
                if bad:
                    yield _only_bad(bad, row)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            if "straddl" in str(error):
                raise _Straddles from error
            place = f"{self._source.name}, after row {row:,}"
            raise SourceError(f"the rows cannot be told apart: {first_line(error)}", place=place) from error
        finally:
            feed.close()

    def _reader(self, stream: Any, block: int, set_aside: Callable[[Any], str]) -> Any:
        return arrow_csv.open_csv(
            stream,
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=block),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=set_aside
            ),
            # As bytes, so that a row that is not UTF-8 is a reject and not the end of the run.
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[self._field], column_types={self._field: pa.binary()}, check_utf8=False
            ),
        )


class TsvReader(CsvReader):
    """The same with tabs between the fields."""

    delimiter = "\t"


class _Marked:
    """A file for pyarrow in which invalid UTF-8 stands as MARK: rows that it sets aside must be valid text."""

    def __init__(self, file: FeedFile) -> None:
        self._file = file
        self._held = b""
        self._out = b""
        self.closed = False

    def read(self, n: int) -> bytes:
        while not self._out:
            more = self._file.read(n)
            block = self._held + more
            kept = cut_character(block) if more else 0
            self._held = block[len(block) - kept :]
            block = block[: len(block) - kept]
            self._out = block if is_valid(block) else block.decode("utf-8", "shardmill.csv").encode()
            if not more:
                break
        out, self._out = self._out[:n], self._out[n:]
        return out

    def close(self) -> None:
        self.closed = True


class _Bad(NamedTuple):
    """A row that was set aside."""

    row: int
    reason: str
    shown: str

    def reject(self, first: int) -> Reject:
        return Reject(self.row - first, -1, self.reason, self.shown)


class _Straddles(Exception):
    """A row does not fit in a block."""


def _with_bad(column: pa.Array, cost: int, bad: deque[_Bad], first: int) -> Rows:
    """The rows with the bad ones among them; those that stand after the last good one wait."""
    total = len(column)
    rejects: list[Reject] = []
    while bad and bad[0].row < first + total:
        rejects.append(bad.popleft().reject(first))
        total += 1
    return Rows(column, cost, total, tuple(rejects))


def _only_bad(bad: deque[_Bad], first: int) -> Rows:
    """The bad rows that come next, with no good one between them."""
    rejects: list[Reject] = []
    while bad and bad[0].row == first + len(rejects):
        rejects.append(bad.popleft().reject(first))
    return Rows(pa.nulls(0, pa.binary()), 0, len(rejects), tuple(rejects))
