"""CSV and TSV with a header line; a row with too many or too few fields is a reject.

A field that begins with a quote ends at the next single quote, line breaks included, and two quotes in it stand for
one; anywhere else a quote is text. LF, CR and CRLF end a row, and blank lines are no rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.csv import ConvertOptions, InvalidRow, ParseOptions, ReadOptions, read_csv

from shardmill.core import count, find
from shardmill.documents.arrow_columns import find_column, layout
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Lease, Position, Section, Work, excerpt, overhead
from shardmill.documents.columns import BAD_ROW_TEXT, LONG_TEXT, ROW_HEAD, Column, RowsReader, runs
from shardmill.documents.reading import Memory
from shardmill.errors import SourceError
from shardmill.storage import BOM, Feed, is_valid

# Bytes that are cut at once: with a quarter of it, reading takes a quarter more CPU time. A quote or line break takes
# 150 bytes of memory meanwhile, so where every 32nd byte is one, the blocks are smaller.
BLOCK, DENSE_BLOCK, DENSE = 1 << 21, 1 << 16, 32
# The longest header line in bytes, and bytes of memory for each of them: a name is an object. Measured: 18.
LONGEST_HEADER, NAME_MEMORY = 1 << 20, 20
# The memory for a long row in times its size. While it is read: in blocks of a stream, and joined. Later: the row, its
# fields and its text, and up to seven times where it has to be recoded.
STREAM_COPIES, LONG_COPIES = 2, 5
# Arrow counts the bytes that it parses at once in 31 bits.
LONGEST_ROW = (1 << 31) - 1
QUOTE, CR, LF = b'"\r\n'
_Places = NDArray[np.int64]


@dataclass(frozen=True)
class WholeRows(Work):
    """Whole rows, which a worker parses."""

    data: bytes | memoryview
    count: int


class CsvReader(RowsReader):
    """The feeder cuts rows: whether a line break ends one is known only from the start of the file."""

    delimiter = ","

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        self._parser = RowParser(self.delimiter, *self._find(feed))
        at, width = self._text_start, BLOCK
        row, skip = start.offset, 1 + start.offset  # the header is the first row
        with closing(Memory(self._room, self._source.name)) as memory:
            while data := feed.read(at, at + width):
                width = DENSE_BLOCK if _is_dense(data) else BLOCK
                data = data[:width]
                ends = Quotes(self.delimiter).row_ends(data)
                if len(ends):
                    at += int(ends[-1]) + 1
                    starts = np.concatenate([[0], ends[:-1] + 1])
                    starts, ends = starts[starts < ends], ends[starts < ends]
                    made = list(self._made(data, starts[skip:], ends[skip:], row, max(1, size)))
                    skip = max(0, skip - len(ends))
                else:
                    at, found = self._long_row(feed, at, memory)
                    if isinstance(found, Column):
                        made = [self._chunk(row, found, 0)]
                    else:
                        made = list(self._made(found, np.zeros(1, np.int64), np.array([len(found)]), row, 1))
                    made, skip = made[skip:], max(0, skip - 1)
                    del found
                memory.need("a long row", 0)
                del data
                feed.drop(at)
                for chunk in made:
                    yield chunk._replace(through=feed.stored(at))
                    row = chunk.end

    def _made(self, data: bytes, starts: _Places, ends: _Places, row: int, size: int) -> Iterator[Chunk]:
        """Chunks of about `size` with these rows, of which the first has this number."""
        weights = np.maximum(ends - starts, BAD_ROW_TEXT)  # any row may be a reject, which takes as much memory
        for first, last in runs(weights, np.ones(len(weights), np.bool_), size):
            begin, end = int(starts[first]), int(ends[last - 1])
            long = last - first == 1 and end - begin > self._room.largest
            if long and end - begin > self._largest:
                yield self._chunk(row + first, Column.too_large(end - begin), 0)
                continue
            some = memoryview(data)[begin : end + 1]
            work = WholeRows(some if last - first == len(starts) else bytes(some), last - first)
            beside = LONG_COPIES * (end - begin) if long else 0
            lease = Lease(int(weights[first:last].sum()), overhead(last - first) + beside)
            yield Chunk(self._index, row + first, Position(row + last), lease, work, long=long)

    def _long_row(self, feed: Feed, begin: int, memory: Memory) -> tuple[int, bytes | Column]:
        """Where a row ends that has no end in its first block, and the row, or why it cannot be parsed."""
        at, held, ends, quotes = begin, True, np.empty(0, np.int64), Quotes(self.delimiter)
        shown = feed.read(begin, begin + ROW_HEAD)
        while not len(ends) and (block := feed.read(at, at + max(2, DENSE_BLOCK))):
            # What quotes mean depends on how many follow, so they are read with what follows, or else in pairs.
            block = block[: len(block.rstrip(b'"')) or len(block) & ~1 or 1]
            ends = quotes.row_ends(block)
            at += int(ends[0]) if len(ends) else len(block)
            held = held and self._held(at - begin, memory)
            if not held:  # its end is looked for to name an amount of memory that suffices
                feed.drop(at)
        if not len(ends) and quotes.inside:
            reason = f"a quote is not closed; the {at - begin:,} bytes to the end of the file are in this row"
            return at, Column.bad(reason, excerpt(shown))
        if at - begin > LONGEST_ROW:
            what = f"a row of {at - begin:,} bytes is longer than any that can be read"
            raise SourceError(what, place=self._source.name, hint="is a quote not closed, or missing?")
        return at, feed.read(begin, at) if held else Column.too_large(at - begin)

    def _held(self, size: int, memory: Memory) -> bool:
        """Hold memory for a row of so many bytes; False: there will never be so much."""
        if size > min(self._largest, LONGEST_ROW):
            memory.need("a long row", 0)
            return False
        room = min(self._largest, -(-size // LONG_TEXT) * LONG_TEXT)
        return memory.fits("a long row", STREAM_COPIES * room if size > LONG_TEXT else 0)

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.work, WholeRows):
            return self._parser.column(chunk.work.data, chunk.work.count).documents(self._field)
        return super().read(chunk)

    def _find(self, feed: Feed) -> tuple[int, int]:
        """The number of the text column, and how many there are."""
        place = self._source.name
        raw = feed.read(self._text_start, self._text_start + LONGEST_HEADER)
        memory = 5 * len(raw) + NAME_MEMORY * len(raw.lstrip(b"\r\n").partition(b"\n")[0])
        with self._room.hold(memory, "the header line", place):
            rows = csv.reader(io.StringIO(raw.decode("utf-8", "replace"), newline=""), delimiter=self.delimiter)
            try:
                header = next(filter(None, rows), [])
            except csv.Error as error:
                raise SourceError(f"the header line cannot be read: {error}", place=place) from error
            with suppress(csv.Error):  # what it dislikes in the line after the header is no concern of ours
                if len(raw) == LONGEST_HEADER and next(rows, None) is None:
                    raise SourceError(f"the header line is longer than {LONGEST_HEADER:,} bytes", place=place)
        if not header:
            raise SourceError("the file has no header line", place=place)
        if header.count(self._field) > 1:
            raise SourceError(
                f"the header has the column `{self._field}` {header.count(self._field)} times",
                place=place,
                hint="give the columns different names",
            )
        if self._field not in header:
            find_column(pa.schema([(name, pa.binary()) for name in header]), self._field, place)
        return header.index(self._field), len(header)


class TsvReader(CsvReader):
    """The same with tabs between the fields."""

    delimiter = "\t"


def _is_dense(block: bytes) -> bool:
    return DENSE * sum(count(block, byte) for byte in (QUOTE, CR, LF)) > len(block)


class Quotes:
    """Finds the line breaks that end rows, block by block from the start of a row on."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = ord(delimiter)
        self.inside = False
        """Whether the blocks so far end inside quotes."""
        self._before = LF

    def row_ends(self, block: bytes) -> _Places:
        """The line breaks outside quotes in the next block."""
        raw = np.frombuffer(block, np.uint8)
        quotes, breaks, returns = (find(raw, byte) for byte in (b'"', b"\n", b"\r"))
        before, self._before = self._before, block[-1] if block[-1] != QUOTE else self._before
        if not len(quotes):
            return breaks[:0] if self.inside else _merged(breaks, returns)
        starts = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        odd = np.diff(starts, append=len(quotes)) % 2 == 1
        begins = quotes[starts]
        last = raw[begins - 1]
        if begins[0] == 0:
            last[0] = before
        # An even number of quotes changes nothing: they are pairs, or they open and close. An odd number opens or
        # closes where a field could begin, and elsewhere it can only close. So whether a place is inside quotes is the
        # parity of the former since the last of the latter.
        opening = (last == self._delimiter) | (last == LF) | (last == CR)
        turns = int(self.inside) + np.cumsum(odd & opening)
        inside = (turns - np.maximum.accumulate(np.where(odd & ~opening, turns, 0))) % 2 == 1
        states = np.concatenate([[self.inside], inside])
        self.inside = bool(states[-1])
        return _merged(*(places[~states[np.searchsorted(begins, places)]] for places in (breaks, returns)))


def _merged(some: _Places, others: _Places) -> _Places:
    return np.sort(np.concatenate([some, others])) if len(others) else some


class RowParser:
    """Parses one column of rows with pyarrow."""

    def __init__(self, delimiter: str, column: int, columns: int) -> None:
        names = [str(number) for number in range(columns)]
        name = names[column]
        self._delimiter, self._columns = delimiter, columns
        self._read = ReadOptions(use_threads=False, block_size=LONGEST_ROW, column_names=names)
        self._convert = ConvertOptions(
            include_columns=[name], column_types={name: pa.binary()}, strings_can_be_null=False, check_utf8=False
        )

    def column(self, data: bytes | memoryview, rows: int) -> Column:
        """The texts of so many rows, and why others have none."""
        coding = "latin-1" if recoded(data) else "utf-8"
        if coding == "latin-1":
            data = str(data, coding).encode()
        reasons: dict[int, tuple[str, str]] = {}

        def skip(row: InvalidRow) -> str:
            fields = "1 field" if row.actual_columns == 1 else f"{row.actual_columns:,} fields"
            shown = excerpt(row.text[:ROW_HEAD].encode(coding))
            reasons[row.number - 1] = f"{fields} where the header has {self._columns:,}", shown
            return "skip"

        parse = ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=skip)
        table = read_csv(pa.BufferReader(pa.py_buffer(data)), self._read, parse, self._convert)
        if len(table) + len(reasons) != rows:
            raise RuntimeError(f"pyarrow found {len(table) + len(reasons):,} rows of CSV where there are {rows:,}")
        texts = [layout(array) for array in table.column(0).chunks]
        text, offsets = texts[0] if texts else (np.empty(0, np.uint8), np.zeros(1, np.int64))
        if coding == "latin-1":
            offsets = np.concatenate([[0], np.cumsum(text & 0xC0 != 0x80)])[offsets]
            text = np.frombuffer(str(text.data, "utf-8").encode(coding), np.uint8)
        valid = np.ones(rows, np.bool_)
        valid[list(reasons)] = False
        lengths = np.zeros(rows, np.int64)
        lengths[valid] = np.diff(offsets)
        return replace(Column.of(text, lengths, valid), reasons=reasons)


def recoded(data: bytes | memoryview) -> bool:
    """Whether rows are parsed as Latin-1: pyarrow shows bad ones as `str`, and drops a byte order mark before them."""
    return data[:3] == BOM or not is_valid(np.frombuffer(data, np.uint8))
