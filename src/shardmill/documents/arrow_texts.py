"""A text column of an Arrow IPC batch, read from its buffers some rows at a time, and the dictionary of one."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.documents.arrow_columns import large_binary, taken
from shardmill.documents.columns import Column, Texts
from shardmill.storage import STREAM_BLOCK

# Pieces of a dictionary are joined up to this size: few pieces, and little that is copied.
PIECE = 1 << 23

_Numbers = NDArray[np.int64]
_Flags = NDArray[np.bool_]


class Content:
    """The bytes of a buffer, decompressed as they are asked for.

    A decompressor takes a megabyte, and a batch of views has hundreds of buffers: it exists only while it is used.
    """

    def __init__(self, stored: Any, length: int, codec: str) -> None:
        self.length = length
        """Its bytes when decompressed, as the buffer says."""
        self._stored, self._codec = stored, ""
        if codec and length:
            self.length = int.from_bytes(stored.read(8), "little", signed=True)
            if self.length >= 0:
                self._codec = codec
            elif self.length == -1:  # not compressed after all
                self.length = length - 8
            else:
                raise ValueError("a buffer has an impossible length")
        self._left = self.length

    def read(self, n: int) -> bytes:
        """The next n bytes."""
        if self._codec:
            self._stored = pa.CompressedInputStream(pa.PythonFile(self._stored, mode="r"), self._codec)
            self._codec = ""
        self._left -= n
        block: bytes = self._stored.read(n) if self._left >= 0 else b""
        if len(block) < n:
            raise ValueError("a buffer is too short for its batch")
        if not self._left:
            self._stored = io.BytesIO()
        return block

    def skip(self, n: int) -> None:
        while n > 0:
            n -= len(self.read(min(n, STREAM_BLOCK)))


class ArrowTexts(Texts):
    """Base class: which rows are null is the same for all types."""

    masks: Sequence[Content] = ()
    """The validity bits of the column, and of the structs that it is in, where anything is null."""

    def measure(self, count: int) -> tuple[_Numbers, _Flags]:
        valid = np.ones(count, np.bool_)
        for mask in self.masks:
            bits = np.frombuffer(mask.read((count + 7) // 8), np.uint8)
            valid &= np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
        return self._measure(count, valid)

    @abstractmethod
    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        """Bytes of text in each of the next rows, and which of them are not null."""


class PlainTexts(ArrowTexts):
    """Offsets and text, read side by side."""

    def __init__(self, offsets: Content, data: Content, kind: np.dtype[Any]) -> None:
        self._offsets, self._data, self._kind = offsets, data, kind
        self._ends = np.frombuffer(offsets.read(kind.itemsize), kind).astype(np.int64)
        if self._ends[0] < 0:
            raise ValueError("the offsets of a column lead elsewhere")
        data.skip(int(self._ends[0]))

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        ends = np.frombuffer(self._offsets.read(count * self._kind.itemsize), self._kind)
        self._ends = np.concatenate([self._ends[-1:], ends], dtype=np.int64)
        lengths = np.diff(self._ends)
        if (lengths < 0).any() or self._ends[-1] > self._data.length:
            raise ValueError("the offsets of a column lead elsewhere")
        return lengths, valid

    def text(self, first: int, last: int) -> bytes:
        return self._data.read(int(self._ends[last] - self._ends[first]))

    def skip(self, row: int) -> None:
        self._data.skip(int(self._ends[row + 1] - self._ends[row]))


class FixedTexts(PlainTexts):
    """Texts of the same length."""

    def __init__(self, data: Content, width: int) -> None:
        self._data, self._width = data, width

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        self._ends = self._width * np.arange(count + 1)
        return np.diff(self._ends), valid


class NullTexts(ArrowTexts):
    """Nothing but nulls."""

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        return np.zeros(count, np.int64), np.zeros(count, np.bool_)

    def text(self, first: int, last: int) -> bytes:
        return b""


class ViewedTexts(ArrowTexts):
    """Views: length, and either the text itself or a buffer and an offset."""

    def __init__(self, contents: list[Content], rows: int) -> None:
        self._next = 0
        views, *data = [pa.py_buffer(content.read(content.length)) for content in contents]
        if views.size < 16 * rows:
            raise ValueError("a buffer is too short for its batch")
        self._views, self._buffers = views, data

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        views = self._views.slice(16 * self._next, 16 * count)
        self._next += count
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
        self._some = pa.Array.from_buffers(pa.binary_view(), count, [mask, views, *self._buffers])
        self._some.validate(full=True)
        return np.where(valid, np.frombuffer(views, "<i4")[::4], 0).astype(np.int64), valid

    def text(self, first: int, last: int) -> pa.Buffer | bytes:
        return self._some.slice(first, last - first).cast(pa.large_binary()).buffers()[2] or b""


class Dictionary:
    """The values of a dictionary, which may grow. Small pieces are joined, large ones are not copied again."""

    def __init__(self) -> None:
        self._pieces: list[Column] = []
        self.bytes = 0
        """Bytes of memory that it takes."""

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def clear(self) -> None:
        self._pieces.clear()
        self.bytes = 0

    def add(self, values: Column) -> None:
        pieces = self._pieces
        pieces.append(values)
        while len(pieces) > 1 and memory_of(pieces[-2]) <= min(PIECE, 2 * memory_of(pieces[-1])):
            pieces[-2:] = [_joined(*pieces[-2:])]
        self.bytes = sum(map(memory_of, pieces))

    def measure(self, numbers: _Numbers) -> tuple[_Numbers, _Flags]:
        """Bytes of the values with these numbers, and which are not null."""
        lengths, valid = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
        for piece, rows, inside in self._by_piece(numbers):
            lengths[rows] = piece.offsets[inside + 1] - piece.offsets[inside]
            if piece.valid is not None:
                valid[rows] = piece.valid[inside]
        return lengths * valid, valid

    def text(self, numbers: _Numbers) -> pa.Buffer | bytes:
        """The values with these numbers, one after another."""
        order, found = list[_Numbers](), list[pa.Array]()
        for piece, rows, inside in self._by_piece(numbers):
            order.append(rows)
            found.append(taken(large_binary(piece.data, piece.offsets), inside))
        if not found:
            return b""
        values = found[0]
        if len(found) > 1:
            values = taken(pa.concat_arrays(found), np.argsort(np.concatenate(order)))
        return values.buffers()[2] or b""

    def _by_piece(self, numbers: _Numbers) -> Iterator[tuple[Column, _Numbers, _Numbers]]:
        """Each piece that is needed, the rows whose values are in it, and the values' numbers there."""
        begins = np.cumsum([0, *map(len, self._pieces)])[:-1]
        where = np.searchsorted(begins, numbers, side="right") - 1
        for piece in np.unique(where).tolist():
            rows = np.flatnonzero(where == piece)
            yield self._pieces[piece], rows, numbers[rows] - begins[piece]


def memory_of(column: Column) -> int:
    return column.data.nbytes + column.offsets.nbytes + (0 if column.valid is None else column.valid.nbytes)


def _joined(one: Column, other: Column) -> Column:
    valid = None
    if one.valid is not None or other.valid is not None:
        valid = np.concatenate([np.ones(len(c), np.bool_) if c.valid is None else c.valid for c in (one, other)])
    offsets = np.concatenate([one.offsets, other.offsets[1:] + len(one.data)])
    return Column(np.concatenate([one.data, other.data]), offsets, valid)


class NumberedTexts(ArrowTexts):
    """Numbers of values in a dictionary."""

    def __init__(self, numbers: Content, kind: type[np.generic], dictionary: Dictionary) -> None:
        self._content, self._kind, self._dictionary = numbers, np.dtype(kind), dictionary

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        numbers = np.frombuffer(self._content.read(count * self._kind.itemsize), self._kind)
        if valid.any() and not 0 <= numbers[valid].min() <= numbers[valid].max() < len(self._dictionary):
            raise ValueError("a number leads outside of its dictionary")
        self._numbers, self._valid = numbers.astype(np.int64), valid.copy()
        lengths = np.zeros(count, np.int64)
        lengths[valid], self._valid[valid] = self._dictionary.measure(self._numbers[valid])
        return lengths, self._valid

    def text(self, first: int, last: int) -> pa.Buffer | bytes:
        return self._dictionary.text(self._numbers[first:last][self._valid[first:last]])


def texts_of(
    kind: Any, masks: list[Content], contents: list[Content], rows: int, dictionary: Dictionary | None
) -> ArrowTexts:
    """The texts of a column of this type, whose buffers hold these contents."""
    texts: ArrowTexts
    if pt.is_null(kind):
        texts = NullTexts()
    elif pt.is_dictionary(kind):
        assert dictionary is not None
        texts = NumberedTexts(contents[0], kind.index_type.to_pandas_dtype(), dictionary)
    elif pt.is_string_view(kind) or pt.is_binary_view(kind):
        texts = ViewedTexts(contents, rows)
    elif pt.is_fixed_size_binary(kind):
        texts = FixedTexts(contents[0], kind.byte_width)
    else:
        wide = pt.is_large_string(kind) or pt.is_large_binary(kind)
        texts = PlainTexts(contents[0], contents[1], np.dtype("<i8" if wide else "<i4"))
    texts.masks = masks
    return texts
