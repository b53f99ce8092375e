"""Arrow IPC, as a file (feather) or as a stream: of each batch only the text column, and of that a slice at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.documents.arrow_messages import (
    BATCH,
    DICTIONARY,
    SCHEMA,
    Batch,
    Leaf,
    Message,
    Span,
    dictionary_id,
    find_leaf,
    read_message,
)
from shardmill.documents.batches import NULL_TEXT, ROW_TEXT, Rows, RowsReader, after
from shardmill.documents.chunks import Chunk, Position
from shardmill.documents.columns import find_column
from shardmill.documents.reading import Reading
from shardmill.errors import BudgetError, SourceError
from shardmill.storage.feeds import BLOCK, Feed, FeedFile, FileFeed
from shardmill.storage.opening import ARROW_MARK
from shardmill.storage.ranges import RemoteFeed
from shardmill.storage.source import Source

# Writers may align the footer.
PADDING = 64
CONTINUES = b"\xff\xff\xff\xff"
# Rows whose offsets are read at once, a multiple of eight; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# Bytes of a text, and more, for which memory is asked.
LONG = 1 << 21
# A header becomes lists of numbers, which take so many times its bytes.
HEADER = 16
# Pieces of a dictionary are put together up to this size: few pieces, and little that is copied.
PIECE = 1 << 23


class ArrowReader(RowsReader):
    """A file is a stream between two marks, so both are read as a stream: forward only, message by message."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading)
        self._head = head

    def chunks(self, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        row = start.offset
        with ExitStack() as stack:
            batches = _Batches(feed, self._source.name, self._reading, 8 if self._head.startswith(ARROW_MARK) else 0)
            stack.callback(batches.memory.close)
            try:
                for part in batches.rows(row, max(1, size)):
                    yield self._chunk(row, part, feed.stored(batches.at))
                    row += part.total
            except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
                raise self._damaged(batches.at, first_line(error)) from error
            self._check_end(FeedFile(feed, self._source.name, batches.at))

    def _check_end(self, file: FeedFile) -> None:
        """Raise when something else follows than should: a length that was damaged to zero looks like the end.

        After a file's batches stand its footer, the footer's length and the mark; after a stream's there is nothing.
        """
        begin = file.offset
        last = b""
        while block := file.read(BLOCK):
            last = (last + block)[-10:]
        rest = file.offset - begin
        if not self._head.startswith(ARROW_MARK):
            if rest:
                raise self._damaged(begin, f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise self._damaged(file.offset, "it was cut short, or batches are missing")

    def _damaged(self, at: int, what: str) -> SourceError:
        return SourceError(f"the Arrow data is damaged: {what}", place=f"{self._source.name}, byte {at:,}")


class _Memory:
    """What the feeder holds of a source's data, asked for as one amount whenever a part of it changes."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading, self._name = reading, name
        self._parts: dict[str, int] = {}
        self._held = ExitStack()

    def need(self, what: str, amount: int) -> None:
        """So many bytes are needed for this now, and no others."""
        if amount == self._parts.get(what, 0):
            return
        self._parts[what] = amount
        self._held.close()
        self._held.enter_context(self._reading.hold(sum(self._parts.values()), what, self._name))

    def close(self) -> None:
        self._held.close()


class _Batches:
    """The messages of a stream, and their text. ValueError where they are not what they should be."""

    def __init__(self, feed: Feed, name: str, reading: Reading, at: int) -> None:
        self._feed, self._name, self._reading = feed, name, reading
        self.at = at
        """How far the stream was read."""
        self.memory = _Memory(reading, name)
        self._size = feed.size if isinstance(feed, (FileFeed, RemoteFeed)) else None

    def rows(self, skip: int, size: int) -> Iterator[Rows]:
        """The rows after the first `skip`, in runs that weigh about `size`."""
        schema: pa.Schema | None = None
        path: tuple[str, ...] = ()
        dictionary, number = _Dictionary(), -1
        for header, message, body in self._messages():
            if message.kind == SCHEMA and schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(CONTINUES + len(header).to_bytes(4, "little") + header))
                path = find_column(schema, self._reading.text_field, self._name)
                number = dictionary_id(header, _names(schema, path), path)
            elif schema is None or message.batch is None:
                raise ValueError("a message of another kind stands where a batch should")
            elif message.kind == DICTIONARY and message.dictionary == number:
                self._add(dictionary, schema, path, message, body)
            elif message.kind == BATCH and message.batch.rows <= skip:
                skip -= message.batch.rows
            elif message.kind == BATCH:
                leaf = find_leaf(schema, path, message)
                yield from after(self._leaf_rows(leaf, message.batch, body, size, dictionary), skip)
                skip = 0
        if schema is None:
            raise ValueError("it has no schema")

    def _messages(self) -> Iterator[tuple[bytes, Message, int]]:
        """Each message: its header, what that says, and where the body begins."""
        while mark := self._feed.peek(self.at, 8):
            # Before Arrow 0.15 the length stood alone.
            begin = 4 if mark[:4] == CONTINUES else 0
            if len(mark) < begin + 4:
                raise ValueError("it ends too early")
            length = int.from_bytes(mark[begin : begin + 4], "little")
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

    def _check_size(self, end: int) -> None:
        if self._size is not None and end > self._size:
            raise ValueError("it ends too early, or a length in it is wrong")

    def _pass(self, end: int) -> None:
        """Go on to this place."""
        if self._size is None:
            while self.at < end:
                block = self._feed.peek(self.at, min(BLOCK, end - self.at))
                if not block:
                    raise ValueError("it ends too early")
                self.at += len(block)
                self._feed.drop(self.at)
        self._feed.drop(end)
        self.at = end

    def _add(
        self, dictionary: _Dictionary, schema: pa.Schema, path: tuple[str, ...], message: Message, body: int
    ) -> None:
        """Read a dictionary of the text column, or what is added to it."""
        assert message.batch is not None
        if not message.delta:
            dictionary.clear()
        kind = _kind(schema, path).value_type
        leaf = find_leaf(pa.schema([("value", kind)]), ["value"], message)
        try:
            # A value is needed whole, however large, but only if there is memory for it.
            for rows in self._leaf_rows(leaf, message.batch, body, PIECE // 4, None, largest=1 << 62):
                copied = min(dictionary.bytes, PIECE) + 2 * rows.column.nbytes
                self.memory.need("a dictionary", dictionary.bytes + copied)
                dictionary.add(rows.column)
            self.memory.need("a dictionary", dictionary.bytes)
        except BudgetError:
            # What is added to it later counts as well: the memory that is named has to suffice for all of it.
            if isinstance(self._feed, FileFeed):
                self.memory.need("a dictionary", dictionary.bytes + 2 * PIECE + self._later(message, body))
            raise

    def _later(self, message: Message, body: int) -> int:
        """Bytes of memory that this dictionary takes with all that is added to it in the rest of the file."""
        rest = _Batches(self._feed, self._name, Reading(), body + message.body)
        now, most = 0, 0
        for each, place in [(message, body), *((each, place) for _, each, place in rest._messages())]:
            if each.batch is not None and each.dictionary == message.dictionary:
                contents = rest._contents(each.batch.buffers, each.batch.codec, place)
                now = sum(content.length for content in contents) + 4 * each.batch.rows + now * each.delta
                most = max(most, now)
        return most

    def _leaf_rows(
        self,
        leaf: Leaf,
        batch: Batch,
        body: int,
        size: int,
        dictionary: _Dictionary | None,
        largest: int | None = None,
    ) -> Iterator[Rows]:
        """The rows of one column of a batch."""
        if not batch.rows:
            return
        # Where nothing is null there need be no bits that say so; a column of nothing but nulls has none.
        nodes = leaf.above if pt.is_null(leaf.kind) else [*leaf.above, (leaf.node, leaf.buffer)]
        masks = [batch.buffers[buffer] for node, buffer in nodes if batch.nodes[node][1]]
        spans = batch.buffers[leaf.buffer + 1 : leaf.buffer + 1 + leaf.more]
        contents = self._contents([*masks, *spans], batch.codec, body)
        bits = [_Bits(content) for content in contents[: len(masks)]]
        texts = self._texts(leaf, contents[len(masks) :], dictionary, batch.rows)
        largest = self._reading.largest if largest is None else largest
        for first in range(0, batch.rows, STEP):
            count = min(STEP, batch.rows - first)
            valid = np.ones(count, np.bool_)
            for mask in bits:
                valid &= mask.read(count)
            lengths, valid = texts.lengths(count, valid)
            yield from self._cut(texts, lengths, valid, size, largest)

    def _cut(
        self, texts: _Texts, lengths: NDArray[np.int64], valid: NDArray[np.bool_], size: int, largest: int
    ) -> Iterator[Rows]:
        """Some rows in runs that weigh about `size`."""
        weights = np.cumsum(lengths + np.where(valid, ROW_TEXT, ROW_TEXT + NULL_TEXT))
        at = 0
        while at < len(lengths):
            behind = int(weights[at - 1]) if at else 0
            to = max(int(np.searchsorted(weights, behind + size, side="right")), at + 1)
            cost = int(lengths[at:to].sum())
            if cost > largest:
                texts.skip(at, to)
                yield Rows(pa.array([], pa.large_binary()), cost, 1)
            else:
                self.memory.need("a row", 2 * cost if cost > LONG else 0)
                offsets = np.concatenate([[0], np.cumsum(lengths[at:to])])
                some = valid[at:to]
                mask = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
                data = [mask, pa.py_buffer(offsets), pa.py_buffer(texts.text(at, to))]
                yield Rows(pa.Array.from_buffers(pa.large_binary(), to - at, data), cost, to - at)
            at = to

    def _texts(self, leaf: Leaf, contents: list[_Content], dictionary: _Dictionary | None, rows: int) -> _Texts:
        kind = leaf.kind
        if pt.is_null(kind):
            return _NoTexts()
        if pt.is_dictionary(kind):
            assert dictionary is not None
            return _NumberedTexts(contents[0], kind.index_type.to_pandas_dtype(), dictionary)
        if pt.is_string_view(kind) or pt.is_binary_view(kind):
            # Views lead anywhere in their buffers, so all of these are needed.
            self.memory.need("a batch of views", 2 * sum(content.length for content in contents))
            return _ViewedTexts(contents, rows)
        if pt.is_fixed_size_binary(kind):
            return _FixedTexts(contents[0], kind.byte_width)
        wide = pt.is_large_string(kind) or pt.is_large_binary(kind)
        return _PlainTexts(contents[0], contents[1], np.dtype("<i8" if wide else "<i4"))

    def _contents(self, spans: list[Span], codec: str, body: int) -> list[_Content]:
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
        return [_Content(raw, span.length, codec) for raw, span in zip(stored, spans, strict=True)]

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


class _Content:
    """What a buffer holds, decompressed as far as it is asked for."""

    def __init__(self, stored: Any, length: int, codec: str) -> None:
        self.length = length
        """Its bytes, as the buffer says."""
        self._stored = stored
        if codec and length:
            self.length = int.from_bytes(stored.read(8), "little", signed=True)
            if self.length >= 0:
                self._stored = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), codec)
            elif self.length == -1:  # not compressed after all
                self.length = length - 8
            else:
                raise ValueError("a buffer has an impossible length")
        self._left = self.length

    def read(self, n: int) -> bytes:
        """The next n bytes."""
        self._left -= n
        block: bytes = self._stored.read(n) if self._left >= 0 else b""
        if len(block) < n:
            raise ValueError("a buffer is too short for its batch")
        return block

    def skip(self, n: int) -> None:
        while n > 0:
            n -= len(self.read(min(n, BLOCK)))


class _Bits:
    """The bits that say which rows are not null."""

    def __init__(self, content: _Content) -> None:
        self._content = content

    def read(self, count: int) -> NDArray[np.bool_]:
        """Of the next rows; a multiple of eight, but for the last."""
        raw = np.frombuffer(self._content.read((count + 7) // 8), np.uint8)
        return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


class _Texts(Protocol):
    """A column, some rows after the others."""

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Bytes of text in each of the next rows, and which of them are not null."""

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        """The text of some of these rows; they are asked for in order, each once."""

    def skip(self, first: int, last: int) -> None:
        """Pass over the text of some of these rows."""


class _NoTexts:
    """Nothing but nulls."""

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return np.zeros(count, np.int64), np.zeros(count, np.bool_)

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        return b""

    def skip(self, first: int, last: int) -> None:
        pass


class _PlainTexts:
    """Offsets and text, read side by side."""

    def __init__(self, offsets: _Content, data: _Content, kind: np.dtype[Any]) -> None:
        self._offsets, self._data, self._kind = offsets, data, kind
        self._ends = np.frombuffer(offsets.read(kind.itemsize), kind).astype(np.int64)
        if self._ends[0] < 0:
            raise ValueError("the offsets of a column lead elsewhere")
        data.skip(int(self._ends[0]))

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        ends = np.frombuffer(self._offsets.read(count * self._kind.itemsize), self._kind)
        self._ends = np.concatenate([self._ends[-1:], ends], dtype=np.int64)
        lengths = np.diff(self._ends)
        if (lengths < 0).any() or self._ends[-1] > self._data.length:
            raise ValueError("the offsets of a column lead elsewhere")
        return lengths, valid

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        return self._data.read(int(self._ends[last] - self._ends[first]))

    def skip(self, first: int, last: int) -> None:
        self._data.skip(int(self._ends[last] - self._ends[first]))


class _FixedTexts:
    """Texts of the same length."""

    def __init__(self, data: _Content, width: int) -> None:
        self._data, self._width = data, width

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return np.full(count, self._width, np.int64), valid

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        return self._data.read((last - first) * self._width)

    def skip(self, first: int, last: int) -> None:
        self._data.skip((last - first) * self._width)


class _ViewedTexts:
    """Views: length, and either the text itself or where in which buffer it stands."""

    def __init__(self, contents: list[_Content], rows: int) -> None:
        self._first = self._next = 0
        views, *data = [pa.py_buffer(content.read(content.length)) for content in contents]
        if views.size < 16 * rows:
            raise ValueError("a buffer is too short for its batch")
        self._buffers = [views, *data]

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        views = np.frombuffer(self._buffers[0], "<i4", 4 * count, 16 * self._next).reshape(count, 4)
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
        some = self._buffers[0].slice(16 * self._next, 16 * count)
        self._some = pa.Array.from_buffers(pa.binary_view(), count, [mask, some, *self._buffers[1:]])
        self._some.validate(full=True)
        self._next += count
        return np.where(valid, views[:, 0], 0).astype(np.int64), valid

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        return self._some.slice(first, last - first).cast(pa.large_binary()).buffers()[2] or b""

    def skip(self, first: int, last: int) -> None:
        pass


class _Piece(NamedTuple):
    """Some consecutive values of a dictionary."""

    begin: int
    values: pa.Array
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_] | None

    @classmethod
    def of(cls, begin: int, values: pa.Array) -> _Piece:
        offsets = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
        valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
        return cls(begin, values, offsets, valid)


class _Dictionary:
    """The values of a dictionary, which may grow. Small pieces are put together, large ones are not copied again."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self.bytes = 0
        """Bytes of memory that it takes."""

    def __len__(self) -> int:
        return self._pieces[-1].begin + len(self._pieces[-1].values) if self._pieces else 0

    def clear(self) -> None:
        self._pieces.clear()
        self.bytes = 0

    def add(self, values: pa.Array) -> None:
        self._pieces.append(_Piece.of(len(self), values))
        while len(self._pieces) > 1:
            one, other = self._pieces[-2:]
            if one.values.nbytes > min(PIECE, 2 * other.values.nbytes):
                break
            self._pieces[-2:] = [_Piece.of(one.begin, pa.concat_arrays([one.values, other.values]))]
        self.bytes = sum(piece.values.nbytes for piece in self._pieces)

    def lengths(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Bytes of the values with these numbers, and which are not null."""
        lengths, valid = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
        for rows, piece in self._by_piece(numbers):
            inside = numbers[rows] - piece.begin
            lengths[rows] = piece.offsets[inside + 1] - piece.offsets[inside]
            if piece.valid is not None:
                valid[rows] = piece.valid[inside]
        return lengths, valid

    def text(self, numbers: NDArray[np.int64]) -> pa.Buffer | bytes:
        """The values with these numbers, one after another."""
        found = self._by_piece(numbers)
        if not found:
            return b""
        parts = [piece.values.take(pa.array(numbers[rows] - piece.begin)) for rows, piece in found]
        values = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([rows for rows, _ in found]))
            values = pa.concat_arrays(parts).take(pa.array(order))
        return values.buffers()[2] or b""

    def _by_piece(self, numbers: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], _Piece]]:
        """Which rows are in which piece."""
        begins = np.array([piece.begin for piece in self._pieces], np.int64)
        where = np.searchsorted(begins, numbers, side="right") - 1
        return [(np.flatnonzero(where == piece), self._pieces[piece]) for piece in np.unique(where).tolist()]


class _NumberedTexts:
    """Numbers of values in a dictionary."""

    def __init__(self, numbers: _Content, kind: type[np.generic], dictionary: _Dictionary) -> None:
        self._content, self._kind, self._dictionary = numbers, np.dtype(kind), dictionary

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        numbers = np.frombuffer(self._content.read(count * self._kind.itemsize), self._kind)
        if valid.any() and not 0 <= numbers[valid].min() <= numbers[valid].max() < len(self._dictionary):
            raise ValueError("a number leads outside of its dictionary")
        self._numbers, self._valid = numbers.astype(np.int64), valid.copy()
        lengths = np.zeros(count, np.int64)
        lengths[valid], self._valid[valid] = self._dictionary.lengths(self._numbers[valid])
        return lengths, self._valid

    def text(self, first: int, last: int) -> bytes | pa.Buffer:
        return self._dictionary.text(self._numbers[first:last][self._valid[first:last]])

    def skip(self, first: int, last: int) -> None:
        pass


def _names(schema: pa.Schema, path: tuple[str, ...]) -> list[list[str]]:
    """The names of the fields at each step of a path."""
    names = [schema.names]
    for depth in range(1, len(path)):
        kind = _kind(schema, path[:depth])
        names.append([kind.field(i).name for i in range(kind.num_fields)])
    return names


def _kind(schema: pa.Schema, path: tuple[str, ...]) -> Any:
    kind: Any = pa.struct(list(schema))
    for step in path:
        kind = kind.field(kind.get_field_index(step)).type
    return kind


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
