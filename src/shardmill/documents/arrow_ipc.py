"""Arrow IPC, as a file (feather) or as a stream: pyarrow decodes the text column of one batch after another.

A file is a stream between two marks, so both are read forward, message by message. The headers of messages say what a
batch takes before it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import pyarrow as pa

from shardmill.documents.arrow_columns import columns_of, find_column
from shardmill.documents.arrow_messages import (
    CONTINUES,
    DICTIONARY_BATCH,
    RECORD_BATCH,
    SCHEMA,
    Message,
    decoded_length,
    read_message,
)
from shardmill.documents.chunks import WHOLE, Chunk, Part, Position, Section
from shardmill.documents.columns import LONG_ROW_COPIES, LONG_TEXT, Column, RowsReader, first_line, skip_rows
from shardmill.documents.reading import FreeRoom, Memory, Room
from shardmill.errors import SourceError
from shardmill.input_formats import ARROW_MARK
from shardmill.storage import STREAM_BLOCK, Feed, FileFeed, RandomAccess, Scanner

# Writers may align the footer.
PADDING = 64
# Rows that are measured at once; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# A header becomes lists of numbers, which take so many times its bytes.
HEADER = 16
# How often a dictionary is in memory: as it is stored, decompressed, and joined with what is added to it.
DICTIONARY_COPIES = 3
# A file begins with its mark, padded to this. No message has a header that is shorter than that of an empty schema.
FILE_START, SHORTEST = 8, 32


class ArrowReader(RowsReader):
    """The feeder decodes, because a dictionary may be replaced from batch to batch."""

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        row = start.offset
        stream = self._messages(feed, self._room)
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
            found = [message for message in self._messages(feed, FreeRoom()).messages() if message.kind == RECORD_BATCH]
            return [Part(each.rows, each.size, each.size) for each in found]
        return []

    def _messages(self, feed: Feed, room: Room) -> _Stream:
        begin = FILE_START if self._head.startswith(ARROW_MARK) else 0
        return _Stream(feed, self._source.name, self._field, room, begin)

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


class _Messages:
    """Messages that pyarrow reads as a stream, with the methods of a file that it calls."""

    closed = False

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()

    def put(self, header: bytes, body: bytes = b"") -> None:
        self._waiting.extend([CONTINUES, len(header).to_bytes(4, "little"), header, *[body][: len(body)]])

    def read(self, n: int) -> bytes:
        if not self._waiting or n <= 0:
            return b""
        piece = self._waiting.popleft()
        if len(piece) > n:
            self._waiting.appendleft(piece[n:])
        return piece[:n]

    def close(self) -> None:
        """Nothing is open."""


class _Stream:
    """The messages of a stream, and the texts in them. ValueError where it is damaged."""

    def __init__(self, feed: Feed, name: str, field: str, room: Room, at: int) -> None:
        self._feed, self._name, self._field = feed, name, field
        self._begin = self.at = at
        """How far the stream was read."""
        self.memory = Memory(room, name)
        self._size = feed.size if isinstance(feed, RandomAccess) else None
        self._dictionaries: dict[int, int] = {}
        """Bytes of each dictionary."""

    def columns(self, skip: int, size: int) -> Iterator[Column]:
        """The rows after the first `skip`, in columns of about `size`."""
        schema: pa.Schema | None = None
        read: set[int] = set()  # where dictionaries begin that were read
        for message in self.messages():
            if message.kind == SCHEMA and schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(_encapsulated(message)))
                path = find_column(schema, self._field, self._name)
                number, messages = schema.get_field_index(path[0]), _Messages()
                messages.put(message.header)
                reader = pa.ipc.open_stream(messages, options=pa.ipc.IpcReadOptions(included_fields=[number]))
                coded = "dictionary<" in str(schema)
            elif schema is None or message.kind not in (DICTIONARY_BATCH, RECORD_BATCH):
                raise ValueError("a message of another kind stands where a batch should")
            elif message.kind == DICTIONARY_BATCH:
                if message.begin not in read:
                    read.add(message.begin)
                    messages.put(message.header, self._dictionary(message))
            elif message.rows <= skip:
                skip -= message.rows
            else:
                if coded and not read:
                    for each in self._following(message):
                        read.add(each.begin)
                        messages.put(each.header, self._dictionary(each))
                messages.put(message.header, self._batch(message))
                columns = self._slices(reader.read_next_batch(), path, size)
                yield from skip_rows(columns, skip)
                skip = 0
        if schema is None:
            raise ValueError("it has no schema")

    def _slices(self, batch: pa.RecordBatch, path: tuple[str, ...], size: int) -> Iterator[Column]:
        for first in range(0, batch.num_rows, STEP):
            yield from columns_of(batch.slice(first, STEP), path, size, copied=True, need=self._need_row)

    def _need_row(self, size: int) -> None:
        self.memory.need("a row", LONG_ROW_COPIES * size if size > LONG_TEXT else 0, size)

    def _batch(self, message: Message) -> bytes:
        """The body of a batch, for which there is memory now, also when it is decompressed."""
        text = self._decoded("a batch", message)
        amount = self._copies * message.size + (text if message.codec else 0)
        amount, text = (amount, text) if amount > LONG_TEXT else (0, 0)
        self.memory.need("a batch", amount, text, LONG_ROW_COPIES * text)
        return self._body(message)

    def _dictionary(self, message: Message) -> bytes:
        """The same of a dictionary, or of more values for it."""
        before = self._dictionaries.get(message.dictionary, 0) if message.delta else 0
        self._dictionaries[message.dictionary] = before + self._dictionary_size(message)
        held = sum(self._dictionaries.values())
        if not self.memory.fits("a dictionary", DICTIONARY_COPIES * held):
            # The amount that is named has to suffice for later additions and for the longest value too.
            later = self._following(message) if isinstance(self._feed, FileFeed) else []
            held += sum(map(self._dictionary_size, later))
            self.memory.need("a dictionary", (DICTIONARY_COPIES + LONG_ROW_COPIES) * held)
        return self._body(message)

    def _dictionary_size(self, message: Message) -> int:
        return max(self._copies * message.size, self._decoded("a new dictionary", message))

    @property
    def _copies(self) -> int:
        """How often a body is in memory while it is read: a stream holds blocks, which are joined."""
        return 1 if self._size is not None else 2

    def _decoded(self, what: str, message: Message) -> int:
        """Bytes of a body when it is decompressed; only the text column will be, so it is an upper bound."""
        if not message.codec:
            return message.size
        # The bytes of a stream have to be held from here on, or are looked at only to name an amount that suffices.
        refused = self._size is None and not self.memory.fits(what, self._copies * message.size)
        total = 0
        for span in sorted(span for span in message.buffers if span.length):
            place = message.begin + span.start
            if refused:
                self._feed.drop(place)
            total += decoded_length(self._feed.read(place, place + 8), span.length)
        return total

    def _body(self, message: Message) -> bytes:
        body = self._feed.read(message.begin, message.begin + message.size)
        if len(body) < message.size:
            raise ValueError("it ends too early")
        return body

    def _following(self, message: Message) -> list[Message]:
        """The dictionaries that follow this message; polars 2 writes them after the rows."""
        if not isinstance(self._feed, FileFeed):
            if self._begin:
                raise SourceError(
                    "the dictionary of the column stands after its rows",
                    place=self._name,
                    hint="store it as a plain file",
                )
            return []
        rest = _Stream(self._feed, self._name, self._field, FreeRoom(), message.begin + message.size)
        return [each for each in rest.messages() if each.kind == DICTIONARY_BATCH]

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
            self.memory.need("the header of a batch", HEADER * length if length > STREAM_BLOCK else 0)
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


def _encapsulated(message: Message) -> bytes:
    return CONTINUES + len(message.header).to_bytes(4, "little") + message.header
