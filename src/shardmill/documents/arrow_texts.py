"""A text column of an Arrow IPC batch, read from its buffers some rows at a time, and the dictionary of one."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.documents.columns import Column, Texts, gathered
from shardmill.storage import STREAM_BLOCK

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
            raise ValueError("the offsets of a column are out of range")
        data.skip(int(self._ends[0]))

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        ends = np.frombuffer(self._offsets.read(count * self._kind.itemsize), self._kind)
        self._ends = np.concatenate([self._ends[-1:], ends], dtype=np.int64)
        lengths = np.diff(self._ends)
        if (lengths < 0).any() or self._ends[-1] > self._data.length:
            raise ValueError("the offsets of a column are out of range")
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
    """The values of a dictionary, which may grow: a large bytearray does so without being copied."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._text, self._offsets, self._valid = bytearray(), bytearray(8), bytearray()

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def bytes(self) -> int:
        """Bytes of memory that it takes."""
        return len(self._text) + len(self._offsets) + len(self._valid)

    def add(self, values: Column) -> None:
        self._offsets.extend((values.offsets[1:] + len(self._text)).data)
        self._text.extend(values.data.data)
        self._valid.extend((np.ones(len(values), np.bool_) if values.valid is None else values.valid).data)

    def measure(self, numbers: _Numbers) -> tuple[_Numbers, _Flags]:
        """Bytes of the values with these numbers, and which are not null."""
        offsets, valid = np.frombuffer(self._offsets, np.int64), np.frombuffer(self._valid, np.bool_)[numbers]
        return (offsets[numbers + 1] - offsets[numbers]) * valid, valid

    def text(self, numbers: _Numbers) -> NDArray[np.uint8]:
        """The values with these numbers, one after another."""
        offsets = np.frombuffer(self._offsets, np.int64)
        return gathered(np.frombuffer(self._text, np.uint8), offsets[numbers], offsets[numbers + 1] - offsets[numbers])


class NumberedTexts(ArrowTexts):
    """Numbers of values in a dictionary."""

    def __init__(self, numbers: Content, kind: type[np.generic], dictionary: Dictionary) -> None:
        self._content, self._kind, self._dictionary = numbers, np.dtype(kind), dictionary

    def _measure(self, count: int, valid: _Flags) -> tuple[_Numbers, _Flags]:
        numbers = np.frombuffer(self._content.read(count * self._kind.itemsize), self._kind)
        if valid.any() and not 0 <= numbers[valid].min() <= numbers[valid].max() < len(self._dictionary):
            raise ValueError("an index is outside of the dictionary")
        self._numbers, self._valid = numbers.astype(np.int64), valid.copy()
        lengths = np.zeros(count, np.int64)
        lengths[valid], self._valid[valid] = self._dictionary.measure(self._numbers[valid])
        return lengths, self._valid

    def text(self, first: int, last: int) -> NDArray[np.uint8]:
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
