"""Arrow IPC, as a file (feather) or as a stream: pyarrow decodes the text column of one batch after another.

The header of a message says what a batch takes before it is read. It is a flatbuffer, of which a few fields are read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import pyarrow as pa

from shardmill.documents.arrow_columns import columns_of, find_column
from shardmill.documents.chunks import WHOLE, Chunk, Part, Position, Section
from shardmill.documents.columns import LONG_ROW_COPIES, LONG_TEXT, Column, RowsReader, first_line, skip_rows
from shardmill.documents.reading import FreeRoom, Memory
from shardmill.errors import SourceError
from shardmill.input_formats import ARROW_MARK
from shardmill.storage import STREAM_BLOCK, Feed, RandomAccess, Scanner

CONTINUES = b"\xff\xff\xff\xff"
"""Stands before the length of a header; before Arrow 0.15 the length stood alone."""
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
# A file begins with its mark, padded to this. Writers may align the footer to PADDING. The header of an empty schema is
# the shortest.
FILE_START, PADDING, SHORTEST = 8, 64, 32
# Rows that are measured at once; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# A header becomes lists of numbers, which take so many times its bytes.
HEADER_MEMORY = 16
# How often a dictionary is in memory: as it is stored, decompressed, and joined with what is added to it.
DICTIONARY_COPIES = 3
# A compressed body of a stream takes so many times its bytes, as far as is known before it is read.
STREAM_RATIO = 8
# What zstd makes of a byte at most: a block of 128 KiB is stored in four bytes or more.
MAX_RATIO = 1 << 15
_EARLY = "it ends too early, or a length in it is wrong"


class Message(NamedTuple):
    """What the header of a message says."""

    header: bytes
    kind: int
    begin: int = 0
    """Where its body begins, and how many bytes that has."""
    size: int = 0
    rows: int = 0
    compressed: tuple[tuple[int, int], ...] = ()
    """Start and length of each buffer in the body, if they are compressed."""


class ArrowReader(RowsReader):
    """The feeder decodes, because a dictionary may be replaced from batch to batch."""

    _at = 0
    """How far the feeder has come, for messages."""

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        row = start.offset
        with closing(Memory(self._room, self._source.name)) as memory:
            try:
                for column in self._columns(feed, memory, row, max(1, size)):
                    yield self._chunk(row, column, feed.stored(self._at))
                    row += len(column)
            except MemoryError:  # Arrow's own is an ArrowException too
                raise
            except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error) as error:
                where = f"{self._source.name}, byte {self._at:,}"
                raise SourceError(f"the Arrow data is damaged: {first_line(error)}", place=where) from error

    def parts(self, feed: Feed) -> Sequence[Part]:
        if isinstance(feed, RandomAccess) and not self._source.remote:
            with suppress(ValueError, struct.error):  # reading from the start will say what is wrong
                found = self._messages(feed, Memory(FreeRoom(), self._source.name))
                return [Part(each.rows, each.size, each.size) for each in found if each.kind == RECORD_BATCH]
        return []

    def _columns(self, feed: Feed, memory: Memory, skip: int, size: int) -> Iterator[Column]:
        """The rows after the first `skip`, in columns of about `size`."""
        queue, schema, dictionaries = _Queue(), None, 0

        def need_row(size: int) -> None:
            memory.need("a row", LONG_ROW_COPIES * size if size > LONG_TEXT else 0)

        for message in self._messages(feed, memory):
            if message.kind == SCHEMA and schema is None:
                queue.put(message.header)
                schema = pa.ipc.read_schema(pa.py_buffer(_encapsulated(message.header)))
                path = find_column(schema, self._field, self._source.name)
                options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(path[0])], use_threads=False)
                reader = pa.ipc.open_stream(queue, options=options)
                coded = "dictionary<" in str(schema)
            elif schema is None or message.kind not in (DICTIONARY_BATCH, RECORD_BATCH):
                raise ValueError("a message of another kind stands where a batch should")
            elif message.kind == DICTIONARY_BATCH:
                body, decoded = self._body(feed, message, memory)
                dictionaries += DICTIONARY_COPIES * decoded
                memory.need("a batch", 0)
                memory.need("a dictionary", dictionaries, LONG_ROW_COPIES * decoded)
                queue.put(message.header, body)
            elif message.rows <= skip and not coded:  # else dictionaries would wait for the batches that need them
                skip -= message.rows
            else:
                body, decoded = self._body(feed, message, memory)
                queue.put(message.header, body)
                del body
                batch = reader.read_next_batch()
                slices = (batch.slice(first, STEP) for first in range(0, batch.num_rows, STEP))
                columns = (each for one in slices for each in columns_of(one, path, size, copied=True, need=need_row))
                yield from skip_rows(columns, skip)
                skip = max(0, skip - message.rows)
                del batch, slices, columns
        if schema is None:
            raise ValueError("it has no schema")

    def _body(self, feed: Feed, message: Message, memory: Memory) -> tuple[bytes, int]:
        """The body of a message, and its bytes when decompressed; there is memory for both now."""
        random = isinstance(feed, RandomAccess)
        stored = message.size if random else 2 * message.size  # a stream holds blocks, which are joined
        if message.compressed and not random:
            memory.need("a batch", stored + STREAM_RATIO * message.size)
        elif not message.compressed:
            memory.need("a batch", stored if stored > LONG_TEXT else 0, LONG_ROW_COPIES * message.size)
        decoded = 0
        for start, length in message.compressed:
            head = feed.read(message.begin + start, message.begin + start + 8) if length else bytes(8)
            decoded += _decoded_length(head, length)
        if message.compressed:
            amount = stored + decoded  # only the text column will be decompressed, so it is an upper bound
            memory.need("a batch", amount if amount > LONG_TEXT else 0, LONG_ROW_COPIES * decoded)
        body = feed.read(message.begin, message.begin + message.size)
        if len(body) < message.size:
            raise ValueError(_EARLY)
        return body, decoded or message.size

    def _messages(self, feed: Feed, memory: Memory) -> Iterator[Message]:
        """The messages, the schema first. The body of one may be read until the next is asked for."""
        if isinstance(feed, RandomAccess) and self._head.startswith(ARROW_MARK):
            return self._listed(feed, memory)
        return self._in_order(feed, memory)

    def _listed(self, feed: RandomAccess, memory: Memory) -> Iterator[Message]:
        """Those that the footer of a file lists, all dictionaries first: polars writes them after the rows."""
        self._at, end = feed.size, feed.size - len(ARROW_MARK) - 4
        last = feed.read(max(0, end), feed.size)
        length = int.from_bytes(last[:4], "little")
        if last[4:] != ARROW_MARK or length > end - FILE_START:
            raise ValueError("it was cut short")
        memory.need("the footer", HEADER_MEMORY * length)
        footer = feed.read(end - length, end)
        whole = pa.BufferReader(ARROW_MARK.ljust(FILE_START, b"\0") + footer + last)
        yield Message(pa.ipc.open_file(whole).schema.serialize().to_pybytes()[8:], SCHEMA)
        table = _Table(footer, int.from_bytes(footer[:4], "little"))
        for offset, header, body in [*table.structs(2, "<qi4xq"), *table.structs(3, "<qi4xq")]:
            self._check_size(feed, offset + header + body)
            raw = feed.read(offset, self._pass(feed, offset) + header)
            raw = raw.removeprefix(CONTINUES)
            length = int.from_bytes(raw[:4], "little")
            if not 0 < length <= len(raw) - 4:
                raise ValueError("the length of a header is wrong")
            yield _message(raw[4 : 4 + length], self._pass(feed, offset + header))

    def _in_order(self, feed: Feed, memory: Memory) -> Iterator[Message]:
        """Those of a stream, or of a file that can only be read forward: it is a stream between two marks."""
        at = FILE_START if self._head.startswith(ARROW_MARK) else 0
        while mark := feed.read(at, at + 8):
            begin = 4 if mark.startswith(CONTINUES) else 0
            if len(mark) < begin + 4:
                raise ValueError(_EARLY)
            length = int.from_bytes(mark[begin : begin + 4], "little")
            if at == FILE_START and not begin and 0 < length < SHORTEST:  # as polars writes it
                raise SourceError(
                    "the schema of the file stands in its footer only",
                    place=self._source.name,
                    hint="store it as a plain file: it was read as a stream",
                )
            at += begin + 4
            if not length:
                break
            self._check_size(feed, at + length)
            memory.need("the header of a batch", HEADER_MEMORY * length if length > STREAM_BLOCK else 0)
            message = _message(feed.read(at, at + length), self._pass(feed, at + length))
            at = message.begin + message.size
            self._check_size(feed, at)
            yield message
            self._pass(feed, at)
        self._check_end(feed, at)

    def _pass(self, feed: Feed, at: int) -> int:
        """Nothing before this byte will be read again."""
        feed.drop(at)
        self._at = at
        return at

    def _check_size(self, feed: Feed, end: int) -> None:
        if isinstance(feed, RandomAccess) and end > feed.size:
            raise ValueError(_EARLY)

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
                raise ValueError(f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise ValueError("it was cut short, or batches are missing")


class _Queue:
    """Messages that pyarrow reads as a stream, with the methods of a file that it calls."""

    closed = False

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()

    def put(self, header: bytes, body: bytes = b"") -> None:
        raw = _encapsulated(header)
        self._waiting.extend([raw[:4], raw[4:8], header, *[body][: len(body)]])

    def read(self, n: int) -> bytes:
        if not self._waiting or n <= 0:
            return b""
        piece = self._waiting.popleft()
        if len(piece) > n:
            self._waiting.appendleft(piece[n:])
        return piece[:n]

    def close(self) -> None:
        """Nothing is open."""


def _encapsulated(header: bytes) -> bytes:
    return CONTINUES + len(header).to_bytes(4, "little") + header


class _Table:
    """A table of a flatbuffer. struct.error or ValueError where an offset leads out of it."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        self._slots = place - self._get("<i", place)

    def _get(self, form: str, place: int) -> int:
        if place < 0:
            raise ValueError("an offset in a header points outside of it")
        value: int = struct.unpack_from(form, self._data, place)[0]
        return value

    def _field(self, slot: int) -> int:
        """Where a field stands; 0: it is not there."""
        at = 4 + 2 * slot
        offset = self._get("<H", self._slots + at) if at < self._get("<H", self._slots) else 0
        return offset and self._place + offset

    def number(self, slot: int, form: str) -> int:
        place = self._field(slot)
        return self._get(form, place) if place else 0

    def table(self, slot: int) -> _Table | None:
        place = self._field(slot)
        return _Table(self._data, place + self._get("<I", place)) if place else None

    def structs(self, slot: int, form: str) -> list[tuple[int, ...]]:
        """A list of structs, each of these numbers."""
        if not (place := self._field(slot)):
            return []
        place += self._get("<I", place)
        end = place + 4 + struct.calcsize(form) * self._get("<I", place)
        if end > len(self._data):
            raise ValueError("a list in a header is longer than the header")
        return list(struct.iter_unpack(form, self._data[place + 4 : end]))


def _message(header: bytes, begin: int) -> Message:
    """The message with this header, whose body begins at `begin`."""
    table = _Table(header, int.from_bytes(header[:4], "little"))
    kind, size, content = table.number(1, "<B"), table.number(3, "<q"), table.table(2)
    if kind == DICTIONARY_BATCH and content is not None:
        content = content.table(1)
    if content is None or size < 0:
        raise ValueError("a header is not valid")
    message = Message(header, kind, begin, size)
    if kind not in (DICTIONARY_BATCH, RECORD_BATCH):
        return message
    rows, buffers = content.number(0, "<q"), content.structs(2, "<qq")
    if rows < 0 or any(start < 0 or length < 0 or start + length > size for start, length in buffers):
        raise ValueError("a batch has impossible numbers of rows or bytes")
    compressed = tuple((start, length) for start, length in buffers) if content.table(3) else ()
    return message._replace(rows=rows, compressed=compressed)


def _decoded_length(head: bytes, stored: int) -> int:
    """Bytes of a compressed buffer when it is decompressed; `head`: its first eight bytes, `stored`: all of them."""
    length = int.from_bytes(head, "little", signed=True)
    if len(head) < 8 or length < -1 or length > MAX_RATIO * stored:
        raise ValueError("a buffer has an impossible length")
    return length if length >= 0 else stored - 8  # -1: it is not compressed after all
