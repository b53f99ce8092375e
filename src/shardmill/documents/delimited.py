"""CSV and TSV with a header line; a row with too many or too few fields is a reject.

A field that begins with a quote goes on to the next single one, line breaks included, and two quotes in it stand for
one; anywhere else a quote is text. LF, CR and CRLF end a row, and blank lines are none.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.documents.batches import LONG_TEXT, NO_ROWS, Column, RowBatch, RowsReader, after, runs, weighed
from shardmill.documents.chunks import WHOLE, Chunk, Position, Reject, Section, excerpt
from shardmill.documents.columns import find_column, numbers_array
from shardmill.documents.reading import Reading
from shardmill.errors import SourceError
from shardmill.storage import Feed

# Bytes that are parsed at once: with a quarter of it, calls take as long as the bytes. What ends something takes 150
# bytes of memory meanwhile, so where every sixteenth byte does, the blocks are smaller.
BLOCK, DENSE_BLOCK, DENSE = 1 << 20, 1 << 16, 16
# Bytes of a header line at the most, and of memory for each of them: a name is an object. Measured: 18.
LONGEST_HEADER, HEADER_MEMORY = 1 << 22, 20
# Bytes of a row that may be needed to show 80 characters of it.
SHOWN = 320
QUOTE, CR, LF = b'"\r\n'
_Places = NDArray[np.int64]
_QUOTES = re.compile(rb'"+')


class CsvReader(RowsReader):
    """Rows are parsed by the feeder: whether a line break ends a row is known only from the start of the file."""

    delimiter = ","

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        column, columns = self._find(feed)
        feed.at = self._text_start
        parser = RowParser(self.delimiter, column, columns, self._reading, self._source.name)
        # The header is the first row, and no document.
        row = start.offset
        for part in after(_rows(feed, parser, max(1, size)), 1 + row):
            yield self._chunk(row, part, feed.stored(feed.at))
            row += part.total

    def _find(self, feed: Feed) -> tuple[int, int]:
        """The number of the text column, and how many there are."""
        width = 1 << 14
        while True:
            with self._reading.hold(HEADER_MEMORY * width, "the header line", self._source.name):
                if header := self._header(feed.peek(self._text_start, width), width):
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
        # A line that ends where the window does may go on behind it.
        try:
            return header if header and next(rows, None) is not None else []
        except csv.Error:  # what it dislikes in the line after the header, such as its length, is no concern of ours
            return header


class TsvReader(CsvReader):
    """The same with tabs between the fields."""

    delimiter = "\t"


def _rows(feed: Feed, parser: RowParser, size: int) -> Iterator[RowBatch]:
    """Runs of rows of about `size` bytes of text."""
    held = b""
    with parser.memory:
        while block := feed.read_on(BLOCK):
            step = parser.step(block)
            for at in range(0, len(block), step):
                part = held + block[at : at + step]
                # What a quote means depends on how many follow, so a part ends before quotes. When it holds nothing
                # else, pairs of them can be taken.
                cut = len(part.rstrip(b'"')) or len(part) & ~1
                held = part[cut:]
                yield from parser.rows(part[:cut], size)
        yield from parser.rows(held, size)
        yield from parser.end()


class RowParser:
    """One column of the rows of a stream that is given block by block; of the others nothing is held."""

    def __init__(self, delimiter: str, column: int, columns: int, reading: Reading, name: str) -> None:
        self._delimiter = ord(delimiter)
        self._column = column
        self._columns = columns
        self._reading = reading
        self._name = name
        self.memory = ExitStack()
        """Memory for a long row."""
        self._inside = False
        self._before = LF
        self._open: _OpenRow | None = None
        self._special = bytes(byte in (CR, LF, self._delimiter) for byte in range(256))

    def step(self, block: bytes) -> int:
        """How much of a block may be parsed at once."""
        raw = np.frombuffer(block, np.uint8)
        ends = sum(np.count_nonzero(raw == byte) for byte in (QUOTE, CR, LF, self._delimiter))
        return len(block) if ends * DENSE <= len(block) else DENSE_BLOCK

    def rows(self, block: bytes, size: int) -> Iterator[RowBatch]:
        """The rows that end in this block, in runs of about `size` bytes of text."""
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
            with self.memory:
                yield self._open.row()
            self._open, breaks, first = None, breaks[1:], end + 1
        if len(breaks):
            yield from self._whole_rows(block, first, breaks, delimiters, drops, size)
            first = int(breaks[-1]) + 1
        if first < len(block):
            self._open = _OpenRow(self._column, self._columns, self._reading.largest)
            self._add(block, first, len(block), delimiters[np.searchsorted(delimiters, first) :])

    def end(self) -> Iterator[RowBatch]:
        """The last row, when no line break follows it."""
        if self._open is not None:
            with self.memory:
                yield self._open.row(closed=not self._inside)

    def _add(self, block: bytes, begin: int, end: int, delimiters: _Places) -> None:
        assert self._open is not None
        was = self._open.size
        self._open.add(block, begin, end, delimiters)
        if was <= LONG_TEXT < self._open.size:
            self.memory.enter_context(self._reading.hold(2 * self._reading.largest, "a long row", self._name))

    def _separators(self, block: bytes) -> tuple[_Places, _Places, NDArray[np.uint8]]:
        """Where quotes stand that are not text, where fields and rows end, and with what."""
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
        # What is outside quotes, put together: mostly little, and only there anything ends.
        bounds = np.concatenate([[0], np.stack([begins, begins + lengths], axis=1).ravel(), [len(block)]])
        stretches = np.flatnonzero(~states) * 2
        firsts, sizes = bounds[stretches], bounds[stretches + 1] - bounds[stretches]
        together = _pieces(block, bounds, stretches)
        found = self._special_in(together)
        ends = np.cumsum(sizes)
        stretch = np.searchsorted(ends, found, side="right")
        kinds = np.frombuffer(together, np.uint8)[found]
        return quotes[drop], found - (ends - sizes - firsts)[stretch], kinds

    def _special_in(self, block: bytes | pa.Buffer) -> _Places:
        return np.flatnonzero(np.frombuffer(bytes(block).translate(self._special), np.bool_))

    def _whole_rows(
        self,
        block: bytes,
        first: int,
        breaks: _Places,
        delimiters: _Places,
        drops: _Places,
        size: int,
    ) -> Iterator[RowBatch]:
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
        column = _texts(block, begins, lasts, drops)
        sizes = np.zeros(len(ends), np.int64)
        sizes[good] = column.lengths
        passed = np.concatenate([[0], np.cumsum(good)])
        for at, to in runs(weighed(sizes, good), size):
            bad = np.flatnonzero(~good[at:to])
            rejects = tuple(
                _wrong(row, int(counts[at + row]), self._columns, block[starts[at + row] : ends[at + row]][:SHOWN])
                for row in bad.tolist()
            )
            part = column.slice(int(passed[at]), int(passed[to]))
            yield RowBatch(part, int(sizes[at:to].sum()), to - at, rejects)


class _OpenRow:
    """A row that does not end in the block where it began."""

    def __init__(self, column: int, columns: int, largest: int) -> None:
        self._column, self._columns, self._largest = column, columns, largest
        self._delimiters = self._length = 0
        self.size = 0
        """Bytes of its text so far."""
        self._pieces: list[bytes] = []
        self._shown = b""

    def add(self, block: bytes, begin: int, end: int, delimiters: _Places) -> None:
        """The row goes on from `begin` to `end`, with these delimiters between its fields."""
        self._length += end - begin
        self._shown += block[begin : min(end, begin + SHOWN - len(self._shown))]
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

    def row(self, closed: bool = True) -> RowBatch:
        """What has become of it."""
        if not closed:
            reason = f"a quote is not closed; the {self._length:,} bytes to the end of the file are in this row"
            return RowBatch(NO_ROWS, 0, 1, (Reject(0, -1, reason, excerpt(self._shown)),))
        if self._delimiters + 1 != self._columns:
            return RowBatch(NO_ROWS, 0, 1, (_wrong(0, self._delimiters + 1, self._columns, self._shown),))
        if self.size > self._largest:
            return RowBatch(NO_ROWS, self.size, 1)
        text = b"".join(self._pieces)
        self._pieces.clear()
        text = _value(text)
        return RowBatch(Column.of(text, np.array([len(text)])), len(text), 1)


def _wrong(row: int, fields: int, columns: int, raw: bytes) -> Reject:
    count = "1 field" if fields == 1 else f"{fields:,} fields"
    return Reject(row, -1, f"{count} where the header has {columns:,}", excerpt(raw))


def _texts(block: bytes, begins: _Places, ends: _Places, drops: _Places) -> Column:
    """The values of these fields: what stands there but for the quotes that are not text."""
    first, last = np.searchsorted(drops, begins), np.searchsorted(drops, ends)
    behind = np.cumsum(last - first) - (last - first)
    inner = drops[np.repeat(first - behind, last - first) + np.arange(int((last - first).sum()))]
    starts, stops = np.sort(np.concatenate([begins, inner + 1])), np.sort(np.concatenate([ends, inner]))
    bounds = np.concatenate([[0], np.stack([starts, stops], axis=1).ravel()])
    data = _pieces(block, bounds, np.arange(1, len(bounds) - 1, 2))
    sizes = np.concatenate([[0], np.cumsum(stops - starts)])
    offsets = sizes[np.append(np.arange(len(begins)) + behind, len(starts))]
    return Column(np.frombuffer(data, np.uint8), offsets)


def _pieces(block: bytes, bounds: _Places, wanted: _Places) -> pa.Buffer:
    """Some of the pieces that a block is cut into, put together."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds, np.int64))
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(block)])
    return pieces.take(numbers_array(wanted)).buffers()[2] or pa.py_buffer(b"")


def _value(field: bytes) -> bytes:
    """What a field says."""
    if field[:1] != b'"':
        return field
    if field.endswith(b'"') and field.count(b'"', 1, -1) == 2 * field.count(b'""', 1, -1):
        return field[1:-1].replace(b'""', b'"')
    for quotes in _QUOTES.finditer(field, 1):
        if (quotes.end() - quotes.start()) % 2:
            inner, rest = field[1 : quotes.end() - 1], field[quotes.end() :]
            return inner.replace(b'""', b'"') + rest
    raise ValueError("the quote is not closed")
