"""Arrow IPC, as a file (feather) or as a stream: of each batch only the text column, and of that a slice at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardmill.documents import arrow_texts
from shardmill.documents.arrow_messages import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    SCHEMA,
    Message,
    Span,
    buffers_of,
    dictionary_id,
    field_indexes,
    kind_at,
    read_message,
)
from shardmill.documents.arrow_texts import (
    ArrowTexts,
    Content,
    Dictionary,
    FixedTexts,
    NumberedTexts,
    PlainTexts,
    ViewedTexts,
)
from shardmill.documents.batches import LONG_TEXT, RowBatch, RowsReader, after, cut, first_line
from shardmill.documents.chunks import WHOLE, Chunk, Part, Position, Section
from shardmill.documents.columns import arrow_array, find_column
from shardmill.documents.reading import Memory, Reading
from shardmill.errors import BudgetError, SourceError
from shardmill.input_formats import ARROW_MARK
from shardmill.storage import STREAM_BLOCK, Feed, FileFeed, RandomAccess

# Writers may align the footer.
PADDING = 64
CONTINUES = b"\xff\xff\xff\xff"
# Rows whose offsets are read at once, a multiple of eight; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# A header becomes lists of numbers, which take so many times its bytes.
HEADER = 16
# A file begins with its mark, padded to this. No message has a header that is shorter than that of an empty schema.
FILE_START, SHORTEST = 8, 32


class ArrowReader(RowsReader):
    """A file is a stream between two marks, so both are read as a stream: forward only, message by message."""

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        row = start.offset
        with ExitStack() as stack:
            batches = _Batches(feed, self._source.name, self._reading, self._first())
            stack.callback(batches.memory.close)
            try:
                for part in batches.rows(row, max(1, size)):
                    yield self._chunk(row, part, feed.stored(batches.at))
                    row += part.total
            except MemoryError:  # Arrow's own is an ArrowException too
                raise
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                raise self._damaged(batches.at, first_line(error)) from error
            self._check_end(feed, batches.at)

    def parts(self, feed: Feed) -> Sequence[Part]:
        if not isinstance(feed, FileFeed):
            return []
        listed = _Batches(feed, self._source.name, Reading(), self._first())
        with suppress(ValueError):  # reading from the start will say what is wrong
            found = [message for _, message, _ in listed.messages() if message.kind == RECORD_BATCH]
            return [Part(each.batch.rows, each.body, each.body) for each in found if each.batch]
        return []

    def _first(self) -> int:
        """Where the first message begins."""
        return FILE_START if self._head.startswith(ARROW_MARK) else 0

    def _check_end(self, feed: Feed, begin: int) -> None:
        """Raise when something else follows than should: a length that was damaged to zero looks like the end.

        After a file's batches stand its footer, the footer's length and the mark; after a stream's there is nothing.
        """
        feed.at = begin
        last = b""
        while block := feed.read_on(STREAM_BLOCK):
            last = (last + block)[-10:]
        rest = feed.at - begin
        if not self._head.startswith(ARROW_MARK):
            if rest:
                raise self._damaged(begin, f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise self._damaged(feed.at, "it was cut short, or batches are missing")

    def _damaged(self, at: int, what: str) -> SourceError:
        return SourceError(f"the Arrow data is damaged: {what}", place=f"{self._source.name}, byte {at:,}")


class _Batches:
    """The messages of a stream, and their text. ValueError where they are not what they should be."""

    def __init__(self, feed: Feed, name: str, reading: Reading, at: int) -> None:
        self._feed, self._name, self._reading = feed, name, reading
        self.at = at
        """How far the stream was read."""
        self.memory = Memory(reading, name)
        self._size = feed.size if isinstance(feed, RandomAccess) else None

    def rows(self, skip: int, size: int) -> Iterator[RowBatch]:
        """The rows after the first `skip`, in runs that weigh about `size`."""
        schema: pa.Schema | None = None
        path: tuple[str, ...] = ()
        dictionary, number = Dictionary(), -1
        read: set[int] | None = None  # where the parts of the dictionary begin that were read
        for header, message, body in self.messages():
            if message.kind == SCHEMA and schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(CONTINUES + len(header).to_bytes(4, "little") + header))
                path = find_column(schema, self._reading.text_field, self._name)
                number = dictionary_id(header, schema, path)
            elif schema is None or message.batch is None:
                raise ValueError("a message of another kind stands where a batch should")
            elif message.kind == DICTIONARY_BATCH and message.dictionary == number:
                if body not in (read := read or set()):
                    self._add(dictionary, schema, path, message, body)
            elif message.kind == RECORD_BATCH and message.batch.rows <= skip:
                skip -= message.batch.rows
            elif message.kind == RECORD_BATCH:
                if number >= 0 and read is None:
                    following = self._following(message, body, number)
                    read = {place for _, place in following}
                    for each, place in following:
                        self._add(dictionary, schema, path, each, place)
                yield from after(self._column_rows(schema, path, message, body, size, dictionary), skip)
                skip = 0
        if schema is None:
            raise ValueError("it has no schema")

    def messages(self) -> Iterator[tuple[bytes, Message, int]]:
        """Each message: its header, what that says, and where the body begins."""
        while mark := self._feed.peek(self.at, 8):
            # Before Arrow 0.15 the length stood alone.
            begin = 4 if mark[:4] == CONTINUES else 0
            if len(mark) < begin + 4:
                raise ValueError("it ends too early")
            length = int.from_bytes(mark[begin : begin + 4], "little")
            if self.at == FILE_START and not begin and 0 < length < SHORTEST:
                length = self._bare_schema()
            else:
                self.at += begin + 4
            if length == 0:
                return
            self._check_size(self.at + length)
            self.memory.need("the header of a batch", HEADER * length)
            header = self._feed.peek(self.at, length)
            if len(header) < length:
                raise ValueError("it ends too early")
            message = read_message(header)
            body = self.at + length
            end = body + message.body
            self._check_size(end)
            self.at = body
            self._feed.drop(body)
            yield header, message, body
            self._pass(end)

    def _bare_schema(self) -> int:
        """The length of a file's schema that has none before it, as polars 2 writes it.

        Readers that can seek take the schema from the footer. Here it ends where the next message begins: in the
        header of a schema no number is -1.
        """
        looked, seen = b"", 0
        while len(looked) == seen:
            seen = 2 * seen or 1 << 12
            self.memory.need("the header of a batch", HEADER * seen)
            looked = self._feed.peek(self.at, seen)
            for place in range(8, len(looked) - 3, 8):
                if looked[place : place + 4] == CONTINUES:
                    return place
        raise ValueError("it ends too early")

    def _check_size(self, end: int) -> None:
        if self._size is not None and end > self._size:
            raise ValueError("it ends too early, or a length in it is wrong")

    def _pass(self, end: int) -> None:
        """Go on to this place."""
        if self._size is None:
            while self.at < end:
                block = self._feed.peek(self.at, min(STREAM_BLOCK, end - self.at))
                if not block:
                    raise ValueError("it ends too early")
                self.at += len(block)
                self._feed.drop(self.at)
        self._feed.drop(end)
        self.at = end

    def _add(
        self, dictionary: Dictionary, schema: pa.Schema, path: tuple[str, ...], message: Message, body: int
    ) -> None:
        """Read a dictionary of the text column, or what is added to it."""
        assert message.batch is not None
        if not message.delta:
            dictionary.clear()
        values = pa.schema([("value", kind_at(schema, path).value_type)])
        try:
            # A value is needed whole, however large, but only if there is memory for it.
            for rows in self._column_rows(values, ("value",), message, body, arrow_texts.PIECE // 4, largest=1 << 62):
                values_here = arrow_array(rows.column)
                copied = min(dictionary.bytes, arrow_texts.PIECE) + 2 * values_here.nbytes
                self.memory.need("a dictionary", dictionary.bytes + copied)
                dictionary.add(values_here)
            self.memory.need("a dictionary", dictionary.bytes)
        except BudgetError:
            # What is added to it later counts as well: the memory that is named has to suffice for all of it.
            if isinstance(self._feed, FileFeed):
                self.memory.need("a dictionary", dictionary.bytes + 2 * arrow_texts.PIECE + self._later(message, body))
            raise

    def _following(self, message: Message, body: int, number: int) -> list[tuple[Message, int]]:
        """The parts of a dictionary that stand after this message, as polars 2 writes them, and where each begins."""
        if not isinstance(self._feed, FileFeed):
            raise SourceError(
                "the dictionary of the column stands after its rows", place=self._name, hint="store it as a plain file"
            )
        rest = _Batches(self._feed, self._name, Reading(), body + message.body)
        return [(each, place) for _, each, place in rest.messages() if each.dictionary == number]

    def _later(self, message: Message, body: int) -> int:
        """Bytes of memory that this dictionary takes with all that is added to it in the rest of the file."""
        rest = _Batches(self._feed, self._name, Reading(), body + message.body)
        now, most = 0, 0
        for each, place in [(message, body), *((each, place) for _, each, place in rest.messages())]:
            if each.batch is not None and each.dictionary == message.dictionary:
                contents = rest._contents(each.batch.buffers, each.batch.codec, place)
                now = sum(content.length for content in contents) + 4 * each.batch.rows + now * each.delta
                most = max(most, now)
        return most

    def _column_rows(
        self,
        schema: pa.Schema,
        path: tuple[str, ...],
        message: Message,
        body: int,
        size: int,
        dictionary: Dictionary | None = None,
        largest: int | None = None,
    ) -> Iterator[RowBatch]:
        """The rows of one column of a batch."""
        batch = message.batch
        if batch is None or not batch.rows:
            return
        indexes, kind = field_indexes(schema, path, message.version), kind_at(schema, path)
        spans = buffers_of(kind, indexes[-1], batch)
        if any(batch.nodes[index.node][0] != batch.rows for index in indexes):
            raise ValueError("a column does not have the rows of its batch")
        # Where nothing is null there need be no bits that say so; a column of nothing but nulls has none.
        nullable = indexes[:-1] if pt.is_null(kind) else indexes
        masks = [batch.buffers[index.first_buffer(batch)] for index in nullable if batch.nodes[index.node][1]]
        contents = self._contents([*masks, *spans], batch.codec, body)
        texts = self._texts(kind, contents[len(masks) :], dictionary, batch.rows)
        largest = self._reading.largest if largest is None else largest
        for first in range(0, batch.rows, STEP):
            count = min(STEP, batch.rows - first)
            valid = np.full(count, not pt.is_null(kind))
            for bits in contents[: len(masks)]:
                raw = np.frombuffer(bits.read((count + 7) // 8), np.uint8)
                valid &= np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)
            lengths, valid = texts.lengths(count, valid)
            yield from cut(texts, lengths, valid, size, largest, self._need_row)

    def _need_row(self, cost: int) -> None:
        self.memory.need("a row", 2 * cost if cost > LONG_TEXT else 0)

    def _texts(self, kind: Any, contents: list[Content], dictionary: Dictionary | None, rows: int) -> ArrowTexts:
        if pt.is_null(kind):
            return FixedTexts(Content(io.BytesIO(), 0, ""), 0)
        if pt.is_dictionary(kind):
            assert dictionary is not None
            return NumberedTexts(contents[0], kind.index_type.to_pandas_dtype(), dictionary)
        if pt.is_string_view(kind) or pt.is_binary_view(kind):
            # Views lead anywhere in their buffers, so all of these are needed.
            self.memory.need("a batch of views", 2 * sum(content.length for content in contents))
            return ViewedTexts(contents, rows)
        if pt.is_fixed_size_binary(kind):
            return FixedTexts(contents[0], kind.byte_width)
        wide = pt.is_large_string(kind) or pt.is_large_binary(kind)
        return PlainTexts(contents[0], contents[1], np.dtype("<i8" if wide else "<i4"))

    def _contents(self, spans: list[Span], codec: str, body: int) -> list[Content]:
        """What these buffers hold, each to be read from its start on.

        A file is entered wherever they are. Of what only goes forward, all but the last are read first, as they are
        stored.
        """
        stored: list[Any] = []
        last = max((span.start for span in spans if span.length), default=0)
        forward = not isinstance(self._feed, FileFeed)
        if forward:
            self.memory.need("a batch", sum(span.length for span in spans if span.start < last))
        for span in spans:
            one = _Stored(self, body + span.start, span.length)
            stored.append(io.BytesIO(one.read(span.length)) if forward and span.start < last else one)
        return [Content(raw, span.length, codec) for raw, span in zip(stored, spans, strict=True)]

    def read_at(self, place: int, n: int) -> bytes:
        """Bytes of a body; of what only goes forward, those that lie before are gone."""
        block = self._feed.peek(place, n)
        if len(block) < n:
            raise ValueError("it ends too early")
        if not isinstance(self._feed, FileFeed):
            if place < self.at:
                raise ValueError("the buffers of a batch are not in order")
            self._feed.drop(place + n)
        self.at = max(self.at, place + n)
        return block


class _Stored:
    """A buffer as it is stored, as a file."""

    def __init__(self, batches: _Batches, place: int, length: int) -> None:
        self._batches, self._place, self._end = batches, place, place + length
        self.closed = False

    def read(self, n: int) -> bytes:
        n = min(n, self._end - self._place)
        block = self._batches.read_at(self._place, n) if n > 0 else b""
        self._place += n
        return block

    def close(self) -> None:
        self.closed = True
