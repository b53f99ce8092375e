"""CSV and TSV with a header line; a row with too many or too few fields is a reject.

A field that begins with a quote ends at the next single quote, line breaks included, and two quotes in it stand for
one; anywhere else a quote is text. LF, CR and CRLF end a row, and blank lines are no rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core import gathered
from shardmill.documents.arrow_columns import find_column
from shardmill.documents.chunks import WHOLE, Chunk, Position, Section, excerpt
from shardmill.documents.columns import LONG_TEXT, ROW_HEAD, Column, RowsReader, runs, skip_rows
from shardmill.documents.reading import Memory, Reading
from shardmill.errors import SourceError
from shardmill.storage import Feed, Scanner

# Bytes that are parsed at once: with a quarter of it, calls take as long as the bytes. A delimiter, quote or line break
# takes 150 bytes of memory meanwhile, so where every sixteenth byte is one, the blocks are smaller.
BLOCK, DENSE_BLOCK, DENSE = 1 << 20, 1 << 16, 16
# The longest header line in bytes, and bytes of memory for each of them: a name is an object. Measured: 18.
LONGEST_HEADER, HEADER_MEMORY = 1 << 22, 20
QUOTE, CR, LF = b'"\r\n'
_Places = NDArray[np.int64]
_QUOTES = re.compile(rb'"+')


class CsvReader(RowsReader):
    """Rows are parsed by the feeder: whether a line break ends a row is known only from the start of the file."""

    delimiter = ","

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        number, count = self._find(feed)
        scanner = Scanner(feed, self._text_start)
        parser = RowParser(self.delimiter, number, count, self._reading, self._source.name)
        row = start.offset
        for rows in skip_rows(parser.columns(scanner, max(1, size)), 1 + row):  # the header is the first row
            yield self._chunk(row, rows, scanner.stored)
            row += len(rows)

    def _find(self, feed: Feed) -> tuple[int, int]:
        """The number of the text column, and how many there are."""
        width = 1 << 14
        while True:
            with self._reading.hold(HEADER_MEMORY * width, "the header line", self._source.name):
                if header := self._header(feed.read(self._text_start, self._text_start + width), width):
                    break
            if width >= LONGEST_HEADER:
                raise SourceError(f"the header line is longer than {width:,} bytes", place=self._source.name)
            width *= 4
        if header.count(self._field) > 1:
            raise SourceError(
                f"the header has the column `{self._field}` {header.count(self._field)} times",
                place=self._source.name,
                hint="give the columns different names",
            )
        if self._field not in header:
            find_column(pa.schema([(name, pa.binary()) for name in header]), self._field, self._source.name)
        return header.index(self._field), len(header)

    def _header(self, raw: bytes, width: int) -> list[str]:
        """The names of the columns, if the first `width` bytes have them all."""
        try:
            rows = csv.reader(io.StringIO(raw.decode("utf-8", "replace"), newline=""), delimiter=self.delimiter)
            header = next(filter(None, rows), [])
        except csv.Error as error:
            raise SourceError(f"the header line cannot be read: {error}", place=self._source.name) from error
        if len(raw) < width:
            if not header:
                raise SourceError("the file has no header line", place=self._source.name)
            return header
        # A line that ends where the window ends may continue after it.
        try:
            return header if header and next(rows, None) is not None else []
        except csv.Error:  # what it dislikes in the line after the header, such as its length, is no concern of ours
            return header


class TsvReader(CsvReader):
    """The same with tabs between the fields."""

    delimiter = "\t"


class RowParser:
    """Parses one column of a stream, block by block; of the other columns nothing is held."""

    def __init__(self, delimiter: str, column: int, columns: int, reading: Reading, name: str) -> None:
        self._delimiter = ord(delimiter)
        self._column, self._columns = column, columns
        self._at_once, self._largest = reading.largest, max(reading.largest, reading.largest_row)
        self._memory = Memory(reading, name)
        self._inside = False
        self._before = LF
        self._open: _OpenRow | None = None
        self._special = bytes(byte in (CR, LF, self._delimiter) for byte in range(256))

    def columns(self, scanner: Scanner, size: int) -> Iterator[Column]:
        """All rows, the header included, in columns of about `size` bytes."""
        held = b""
        with closing(self._memory):
            while block := scanner.next(BLOCK):
                step = self._step(block)
                for at in range(0, len(block), step):
                    part = held + block[at : at + step]
                    # What a quote means depends on how many follow, so a part ends before quotes. When it holds nothing
                    # else, pairs of them can be taken.
                    cut = len(part.rstrip(b'"')) or len(part) & ~1
                    held = part[cut:]
                    yield from self._rows(part[:cut], size)
            yield from self._rows(held, size)
            if self._open is not None:  # no line break follows the last row
                yield self._open.row(closed=not self._inside)

    def _step(self, block: bytes) -> int:
        """How much of a block may be parsed at once."""
        raw = np.frombuffer(block, np.uint8)
        ends = sum(np.count_nonzero(raw == byte) for byte in (QUOTE, CR, LF, self._delimiter))
        return len(block) if ends * DENSE <= len(block) else DENSE_BLOCK

    def _rows(self, block: bytes, size: int) -> Iterator[Column]:
        """The rows that end in this block."""
        drops, places, kinds = self._separators(block)
        if block and block[-1] != QUOTE:
            self._before = block[-1]
        delimiters, breaks = places[kinds == self._delimiter], places[kinds != self._delimiter]
        first = 0
        if self._open is not None:
            end = int(breaks[0]) if len(breaks) else len(block)
            self._add(block, 0, end, delimiters[: np.searchsorted(delimiters, end)])
            if not len(breaks):
                return
            yield self._open.row()
            self._memory.need("a long row", 0)
            self._open, breaks, first = None, breaks[1:], end + 1
        if len(breaks):
            yield from self._whole_rows(block, first, breaks, delimiters, drops, size)
            first = int(breaks[-1]) + 1
        if first < len(block):
            self._open = _OpenRow(self._column, self._columns, self._largest)
            self._add(block, first, len(block), delimiters[np.searchsorted(delimiters, first) :])

    def _add(self, block: bytes, begin: int, end: int, delimiters: _Places) -> None:
        assert self._open is not None
        self._open.add(block, begin, end, delimiters)
        room = 2 * min(self._largest, -(-self._open.size // self._at_once) * self._at_once)
        self._memory.need("a long row", room if self._open.size > LONG_TEXT else 0)

    def _separators(self, block: bytes) -> tuple[_Places, _Places, NDArray[np.uint8]]:
        """Where the quotes are that are not text, where fields and rows end, and with which byte."""
        raw = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(raw == QUOTE)
        if not len(quotes):
            places = quotes if self._inside else self._special_in(block)
            return quotes, places, raw[places]
        starts = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        lengths = np.diff(starts, append=len(quotes))
        begins = quotes[starts]
        before = raw[begins - 1]
        if begins[0] == 0:
            before[0] = self._before
        opening = (before == self._delimiter) | (before == LF) | (before == CR)
        # An even number of quotes changes nothing: they are pairs, or they open and close. An odd number opens or
        # closes where a field could begin, and elsewhere it can only close. So whether a place is inside quotes is the
        # parity of the former since the last of the latter.
        odd = lengths % 2 == 1
        turns = int(self._inside) + np.cumsum(odd & opening)
        inside = (turns - np.maximum.accumulate(np.where(odd & ~opening, turns, 0))) % 2 == 1
        states = np.concatenate([[self._inside], inside])
        self._inside = bool(states[-1])
        # Of quotes inside quotes, and after one that opens, the first of each pair is text.
        opens = opening & ~states[:-1]
        number = np.arange(len(quotes)) - np.repeat(starts + opens, lengths)
        drop = (number % 2 == 1) & np.repeat(opens | states[:-1], lengths)
        drop[(starts + lengths - 1)[(odd ^ opens) & (opens | states[:-1])]] = True
        # The parts outside quotes, joined: mostly little, and only there fields and rows end.
        outside = np.flatnonzero(~states)
        firsts = np.append(0, begins + lengths)[outside]
        sizes = np.append(begins, len(block))[outside] - firsts
        together = gathered(raw, firsts, sizes)
        found = self._special_in(together.tobytes())
        ends = np.cumsum(sizes)
        stretch = np.searchsorted(ends, found, side="right")
        return quotes[drop], found - (ends - sizes - firsts)[stretch], together[found]

    def _special_in(self, block: bytes) -> _Places:
        return np.flatnonzero(np.frombuffer(block.translate(self._special), np.bool_))

    def _whole_rows(
        self, block: bytes, first: int, breaks: _Places, delimiters: _Places, drops: _Places, size: int
    ) -> Iterator[Column]:
        """The rows from `first` to the last of the breaks."""
        starts = np.concatenate([[first], breaks[:-1] + 1])
        some = breaks > starts
        starts, ends = starts[some], breaks[some]
        if not len(ends):
            return
        behind = np.searchsorted(delimiters, starts)
        counts = np.searchsorted(delimiters, ends) - behind + 1
        good = counts == self._columns
        begins, lasts, behind = starts[good], ends[good], behind[good]
        if self._column:
            begins = delimiters[behind + self._column - 1] + 1
        if self._column < self._columns - 1:
            lasts = delimiters[behind + self._column]
        lengths = np.zeros(len(ends), np.int64)
        text, lengths[good] = _texts(block, begins, lasts, drops)
        column = Column.of(text, lengths, good)
        for at, to in runs(lengths, good, size):
            reasons = {
                row: _wrong(int(counts[at + row]), self._columns, block[starts[at + row] : ends[at + row]][:ROW_HEAD])
                for row in np.flatnonzero(~good[at:to]).tolist()
            }
            yield replace(column.slice(at, to), reasons=reasons)


class _OpenRow:
    """A row that continues after the block in which it began."""

    def __init__(self, column: int, columns: int, largest: int) -> None:
        self._column, self._columns, self._largest = column, columns, largest
        self._delimiters = self._length = 0
        self.size = 0
        """Bytes of its text so far."""
        self._pieces: list[bytes] = []
        self._shown = b""

    def add(self, block: bytes, begin: int, end: int, delimiters: _Places) -> None:
        """Add the bytes from `begin` to `end`, with these delimiters between fields."""
        self._length += end - begin
        self._shown += block[begin : min(end, begin + ROW_HEAD - len(self._shown))]
        wanted, found = self._column - self._delimiters, len(delimiters)
        self._delimiters += found
        if not 0 <= wanted <= found:
            return
        start = begin if wanted == 0 else int(delimiters[wanted - 1]) + 1
        stop = end if wanted == found else int(delimiters[wanted])
        self.size += stop - start
        if self.size <= self._largest:
            self._pieces.append(block[start:stop])
        else:
            self._pieces.clear()

    def row(self, closed: bool = True) -> Column:
        """The whole row, as a column of one."""
        if not closed:
            reason = f"a quote is not closed; the {self._length:,} bytes to the end of the file are in this row"
            return Column.bad(reason, excerpt(self._shown))
        if self._delimiters + 1 != self._columns:
            return Column.bad(*_wrong(self._delimiters + 1, self._columns, self._shown))
        if self.size > self._largest:
            return Column.too_large(self.size)
        text = b"".join(self._pieces)
        self._pieces.clear()
        text = _value(text)
        return Column.of(text, np.array([len(text)]))


def _wrong(fields: int, columns: int, raw: bytes) -> tuple[str, str]:
    """Why a row with so many fields is bad, and its excerpt."""
    count = "1 field" if fields == 1 else f"{fields:,} fields"
    return f"{count} where the header has {columns:,}", excerpt(raw)


def _texts(block: bytes, begins: _Places, ends: _Places, drops: _Places) -> tuple[NDArray[np.uint8], _Places]:
    """The values of these fields without the quotes that are not text, and their lengths."""
    first, last = np.searchsorted(drops, begins), np.searchsorted(drops, ends)
    behind = np.cumsum(last - first) - (last - first)
    inner = drops[np.repeat(first - behind, last - first) + np.arange(int((last - first).sum()))]
    starts, stops = np.sort(np.concatenate([begins, inner + 1])), np.sort(np.concatenate([ends, inner]))
    return gathered(np.frombuffer(block, np.uint8), starts, stops - starts), ends - begins - (last - first)


def _value(field: bytes) -> bytes:
    """The text of a field, without its quotes."""
    if field[:1] != b'"':
        return field
    if field.endswith(b'"') and field.count(b'"', 1, -1) == 2 * field.count(b'""', 1, -1):
        return field[1:-1].replace(b'""', b'"')
    for quotes in _QUOTES.finditer(field, 1):
        if (quotes.end() - quotes.start()) % 2:
            inner, rest = field[1 : quotes.end() - 1], field[quotes.end() :]
            return inner.replace(b'""', b'"') + rest
    raise ValueError("the quote is not closed")
