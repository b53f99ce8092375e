"""Arrow IPC, as a file (feather) or as a stream: of each batch only the text column is read, a slice at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from shardmill.documents.arrow_columns import find_column
from shardmill.documents.arrow_messages import (
    CONTINUES,
    DICTIONARY_BATCH,
    RECORD_BATCH,
    SCHEMA,
    Message,
    Span,
    dictionary_id,
    field_indexes,
    kind_at,
    read_message,
)
from shardmill.documents.arrow_texts import Content, Dictionary, texts_of
from shardmill.documents.chunks import WHOLE, Chunk, Part, Position, Section
from shardmill.documents.columns import LONG_TEXT, Column, RowsReader, first_line, skip_rows
from shardmill.documents.reading import Memory, Reading
from shardmill.errors import BudgetError, SourceError
from shardmill.input_formats import ARROW_MARK
from shardmill.storage import STREAM_BLOCK, Feed, FileFeed, RandomAccess, Scanner

# Writers may align the footer.
PADDING = 64
# Rows whose offsets are read at once, a multiple of eight; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# A header becomes lists of numbers, which take so many times its bytes.
HEADER = 16
# Bytes of values that are added to a dictionary at once.
ADDED = 1 << 21
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
        stream = self._stream(feed, self._reading)
        with closing(stream.memory):
            try:
                for column in stream.columns(row, max(1, size)):
                    yield self._chunk(row, column, feed.stored(stream.at))
                    row += len(column)
            except MemoryError:  # Arrow's own is an ArrowException too
                raise
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                raise self._damaged(stream.at, first_line(error)) from error
            self._check_end(feed, stream.at)

    def parts(self, feed: Feed) -> Sequence[Part]:
        if not isinstance(feed, FileFeed):
            return []
        with suppress(ValueError):  # reading from the start will say what is wrong
            found = [message for message in self._stream(feed, Reading()).messages() if message.kind == RECORD_BATCH]
            return [Part(each.rows, each.size, each.size) for each in found]
        return []

    def _stream(self, feed: Feed, reading: Reading) -> _Stream:
        return _Stream(feed, self._source.name, reading, FILE_START if self._head.startswith(ARROW_MARK) else 0)

    def _check_end(self, feed: Feed, begin: int) -> None:
        """Raise when the wrong bytes follow the last message: a length that was damaged to zero looks like the end.

        After a file's batches come its footer, the footer's length and the mark; after a stream's there is nothing.
        """
        scanner, last = Scanner(feed, begin), b""
        while block := scanner.next(STREAM_BLOCK):
            last = (last + block)[-10:]
        rest = scanner.at - begin
        if not self._head.startswith(ARROW_MARK):
            if rest:
                raise self._damaged(begin, f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise self._damaged(scanner.at, "it was cut short, or batches are missing")

    def _damaged(self, at: int, what: str) -> SourceError:
        return SourceError(f"the Arrow data is damaged: {what}", place=f"{self._source.name}, byte {at:,}")


class _Stream:
    """The messages of a stream, and the texts in them. ValueError where it is damaged."""

    def __init__(self, feed: Feed, name: str, reading: Reading, at: int) -> None:
        self._feed, self._name, self._reading = feed, name, reading
        self.at = at
        """How far the stream was read."""
        self.memory = Memory(reading, name)
        self._size = feed.size if isinstance(feed, RandomAccess) else None
        self._largest = max(reading.largest, reading.largest_row)

    def columns(self, skip: int, size: int) -> Iterator[Column]:
        """The rows after the first `skip`, in columns of about `size`."""
        schema: pa.Schema | None = None
        path: tuple[str, ...] = ()
        dictionary, number = Dictionary(), -1
        read: set[int] | None = None  # where the parts of the dictionary begin that were read
        for message in self.messages():
            if message.kind == SCHEMA and schema is None:
                length = len(message.header).to_bytes(4, "little")
                schema = pa.ipc.read_schema(pa.py_buffer(CONTINUES + length + message.header))
                path = find_column(schema, self._reading.text_field, self._name)
                number = dictionary_id(message.header, schema, path)
            elif schema is None or message.kind not in (DICTIONARY_BATCH, RECORD_BATCH):
                raise ValueError("a message of another kind stands where a batch should")
            elif message.kind == DICTIONARY_BATCH:
                if message.dictionary == number and message.begin not in (read := read or set()):
                    self._add(dictionary, kind_at(schema, path).value_type, message)
            elif message.rows <= skip:
                skip -= message.rows
            else:
                if number >= 0 and read is None:
                    following = self._following(message, number)
                    read = {each.begin for each in following}
                    for each in following:
                        self._add(dictionary, kind_at(schema, path).value_type, each)
                columns = self._batch(schema, path, message, size, self._largest, dictionary)
                yield from skip_rows(columns, skip)
                skip = 0
        if schema is None:
            raise ValueError("it has no schema")

    def messages(self) -> Iterator[Message]:
        """Each message; its body may be read until the next one is asked for."""
        while mark := self._feed.read(self.at, self.at + 8):
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
            header = self._feed.read(self.at, self.at + length)
            if len(header) < length:
                raise ValueError("it ends too early")
            message = read_message(header, self.at + length)
            self._check_size(message.begin + message.size)
            self.at = message.begin
            self._feed.drop(self.at)
            yield message
            self._pass(message.begin + message.size)

    def _bare_schema(self) -> int:
        """The length of a file's schema without a length before it, as polars 2 writes it.

        Readers that can seek take the schema from the footer. Here it ends where the next message begins: no number in
        the header of a schema is -1.
        """
        looked, seen = b"", 0
        while len(looked) == seen:
            seen = 2 * seen or 1 << 12
            self.memory.need("the header of a batch", HEADER * seen)
            looked = self._feed.read(self.at, self.at + seen)
            for place in range(8, len(looked) - 3, 8):
                if looked[place : place + 4] == CONTINUES:
                    return place
        raise ValueError("it ends too early")

    def _check_size(self, end: int) -> None:
        if self._size is not None and end > self._size:
            raise ValueError("it ends too early, or a length in it is wrong")

    def _pass(self, end: int) -> None:
        """Go forward to this byte."""
        if self._size is None:
            while self.at < end:
                block = self._feed.read(self.at, self.at + min(STREAM_BLOCK, end - self.at))
                if not block:
                    raise ValueError("it ends too early")
                self.at += len(block)
                self._feed.drop(self.at)
        self._feed.drop(end)
        self.at = end

    def _add(self, dictionary: Dictionary, kind: pa.DataType, message: Message) -> None:
        """Read a dictionary of the text column, or more values for it."""
        if not message.delta:
            dictionary.clear()
        schema = pa.schema([("value", kind)])
        try:
            # A value is needed whole, however large, but only if there is memory for it.
            for values in self._batch(schema, ("value",), message, ADDED, largest=1 << 62):
                copied = min(dictionary.bytes, 4 * ADDED) + 2 * (values.size + 9 * len(values))
                self.memory.need("a dictionary", dictionary.bytes + copied)
                dictionary.add(values)
            self.memory.need("a dictionary", dictionary.bytes)
        except BudgetError:
            # The memory that the error names has to suffice for later additions as well.
            if isinstance(self._feed, FileFeed):
                self.memory.need("a dictionary", dictionary.bytes + 8 * ADDED + self._later(message))
            raise

    def _following(self, message: Message, number: int) -> list[Message]:
        """The parts of a dictionary that follow this message, as polars 2 writes them."""
        if not isinstance(self._feed, FileFeed):
            raise SourceError(
                "the dictionary of the column stands after its rows", place=self._name, hint="store it as a plain file"
            )
        rest = _Stream(self._feed, self._name, Reading(), message.begin + message.size)
        return [each for each in rest.messages() if each.dictionary == number]

    def _later(self, message: Message) -> int:
        """Bytes of memory that this dictionary takes with all that is added to it in the rest of the file."""
        rest = _Stream(self._feed, self._name, Reading(), message.begin + message.size)
        now, most = 0, 0
        for each in [message, *rest.messages()]:
            if each.dictionary == message.dictionary:
                contents = rest._contents(each.buffers, each)
                now = sum(content.length for content in contents) + 4 * each.rows + now * each.delta
                most = max(most, now)
        return most

    def _batch(
        self,
        schema: pa.Schema,
        path: tuple[str, ...],
        batch: Message,
        size: int,
        largest: int,
        dictionary: Dictionary | None = None,
    ) -> Iterator[Column]:
        """The rows of one column of a batch."""
        if not batch.rows:
            return
        indexes, kind = field_indexes(schema, path, batch.version), kind_at(schema, path)
        buffers = [index.buffers(batch) for index in indexes]
        if any(batch.nodes[index.node][0] != batch.rows for index in indexes):
            raise ValueError("a column does not have the rows of its batch")
        # Where nothing is null there need be no validity bits.
        masks = [own[0] for index, own in zip(indexes, buffers, strict=True) if own and batch.nodes[index.node][1]]
        contents = self._contents([*masks, *buffers[-1][1:]], batch)
        own = contents[len(masks) :]
        if pt.is_string_view(kind) or pt.is_binary_view(kind):
            # Views lead anywhere in their buffers, so all of these are needed.
            self.memory.need("a batch of views", 2 * sum(content.length for content in own))
        texts = texts_of(kind, contents[: len(masks)], own, batch.rows, dictionary)
        yield from texts.columns(batch.rows, STEP, size, largest, self._need_row)

    def _need_row(self, size: int) -> None:
        self.memory.need("a row", 2 * size if size > LONG_TEXT else 0)

    def _contents(self, spans: Sequence[Span], message: Message) -> list[Content]:
        """The contents of these buffers, each to be read from its start on.

        A file is read wherever they are. Of a stream that only goes forward, all but the last buffer are read first, as
        they are stored.
        """
        stored: list[Any] = []
        last = max((span.start for span in spans if span.length), default=0)
        forward = not isinstance(self._feed, FileFeed)
        if forward:
            self.memory.need("a batch", sum(span.length for span in spans if span.start < last))
        for span in spans:
            one = _StoredBuffer(self, message.begin + span.start, span.length)
            stored.append(io.BytesIO(one.read(span.length)) if forward and span.start < last else one)
        return [Content(raw, span.length, message.codec) for raw, span in zip(stored, spans, strict=True)]

    def read_at(self, place: int, n: int) -> bytes:
        """Bytes of a body; a stream that only goes forward must be read in order."""
        block = self._feed.read(place, place + n)
        if len(block) < n:
            raise ValueError("it ends too early")
        if not isinstance(self._feed, FileFeed):
            if place < self.at:
                raise ValueError("the buffers of a batch are not in order")
            self._feed.drop(place + n)
        self.at = max(self.at, place + n)
        return block


class _StoredBuffer:
    """A buffer as it is stored, with the methods of a file that Arrow needs."""

    def __init__(self, stream: _Stream, place: int, length: int) -> None:
        self._stream, self._place, self._end = stream, place, place + length
        self.closed = False

    def read(self, n: int) -> bytes:
        n = min(n, self._end - self._place)
        block = self._stream.read_at(self._place, n) if n > 0 else b""
        self._place += n
        return block

    def close(self) -> None:
        self.closed = True
