"""A text column of an Arrow batch, read from its buffers some rows after the others, and the dictionary of one."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.documents.batches import Texts
from shardmill.documents.columns import numbers_array, valid_rows
from shardmill.storage import STREAM_BLOCK

# Pieces of a dictionary are put together up to this size: few pieces, and little that is copied.
PIECE = 1 << 23


class Content:
    """What a buffer holds, decompressed as far as it is asked for.

    A decompressor takes a megabyte, and a batch of views has hundreds of buffers: it is there only while it is used.
    """

    def __init__(self, stored: Any, length: int, codec: str) -> None:
        self.length = length
        """Its bytes, as the buffer says."""
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
    """A column, some rows after the others."""

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Bytes of text in each of the next rows, and which of them are not null."""
        raise NotImplementedError


class PlainTexts(ArrowTexts):
    """Offsets and text, read side by side."""

    def __init__(self, offsets: Content, data: Content, kind: np.dtype[Any]) -> None:
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


class FixedTexts(PlainTexts):
    """Texts of the same length."""

    def __init__(self, data: Content, width: int) -> None:
        self._data, self._width = data, width

    def lengths(self, count: int, valid: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        self._ends = self._width * np.arange(count + 1)
        return np.full(count, self._width, np.int64), valid


class ViewedTexts(ArrowTexts):
    """Views: length, and either the text itself or where in which buffer it stands."""

    def __init__(self, contents: list[Content], rows: int) -> None:
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


class Piece(NamedTuple):
    """Some consecutive values of a dictionary."""

    begin: int
    values: pa.Array
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_] | None

    @classmethod
    def of(cls, begin: int, values: pa.Array) -> Piece:
        offsets = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
        valid = valid_rows(values) if values.null_count else None
        return cls(begin, values, offsets, valid)


class Dictionary:
    """The values of a dictionary, which may grow. Small pieces are put together, large ones are not copied again."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.bytes = 0
        """Bytes of memory that it takes."""

    def __len__(self) -> int:
        return self._pieces[-1].begin + len(self._pieces[-1].values) if self._pieces else 0

    def clear(self) -> None:
        self._pieces.clear()
        self.bytes = 0

    def add(self, values: pa.Array) -> None:
        self._pieces.append(Piece.of(len(self), values))
        while len(self._pieces) > 1:
            one, other = self._pieces[-2:]
            if one.values.nbytes > min(PIECE, 2 * other.values.nbytes):
                break
            self._pieces[-2:] = [Piece.of(one.begin, pa.concat_arrays([one.values, other.values]))]
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
        parts = [piece.values.take(numbers_array(numbers[rows] - piece.begin)) for rows, piece in found]
        values = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([rows for rows, _ in found]))
            values = pa.concat_arrays(parts).take(numbers_array(order))
        return values.buffers()[2] or b""

    def _by_piece(self, numbers: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Piece]]:
        """Which rows are in which piece."""
        begins = np.array([piece.begin for piece in self._pieces], np.int64)
        where = np.searchsorted(begins, numbers, side="right") - 1
        return [(np.flatnonzero(where == piece), self._pieces[piece]) for piece in np.unique(where).tolist()]


class NumberedTexts(ArrowTexts):
    """Numbers of values in a dictionary."""

    def __init__(self, numbers: Content, kind: type[np.generic], dictionary: Dictionary) -> None:
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
