"""pyarrow's arrays of any string-like type as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.documents.columns import Column, runs
from shardmill.errors import SourceError

_RESERVED = 16 << 20  # bytes that Arrow may reserve at once for the values of a dictionary


def find_column(schema: pa.Schema, field: str, name: str) -> tuple[str, ...]:
    """The path of the text column: a column of that very name, or `a.b` for b inside the struct a.

    SourceError if there is none, or if it does not hold text.
    """
    path: tuple[str, ...] = (field,) if field in schema.names else tuple(field.split("."))
    kind: pa.DataType = pa.struct(list(schema))
    for step in path:
        if pt.is_struct(kind) and len(kind.get_all_field_indices(step)) > 1:
            raise SourceError(f"there are two columns `{field}`", place=name, hint="rename one of them")
        if not pt.is_struct(kind) or kind.get_field_index(step) < 0:
            columns = ", ".join(f"`{column}`" for column in schema.names[:20]) or "none"
            raise SourceError(
                f"there is no column `{field}`",
                place=name,
                hint=f"the columns are {columns}: choose with `--text-field`",
            )
        kind = stored_kind(kind.field(kind.get_field_index(step)).type)
    value = kind.value_type if pt.is_dictionary(kind) else kind
    if not (_is_text(value) or pt.is_null(value)):
        raise SourceError(f"the column `{field}` holds {kind}, not text", place=name, hint="choose with `--text-field`")
    return path


def stored_kind(kind: pa.DataType) -> pa.DataType:
    """The type that an extension type is stored as; any other type as it is."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_text(kind: pa.DataType) -> bool:
    tests = (pt.is_string, pt.is_large_string, pt.is_string_view, pt.is_binary, pt.is_large_binary, pt.is_binary_view)
    return any(test(kind) for test in tests) or pt.is_fixed_size_binary(kind)


def columns_of(batch: pa.RecordBatch, path: Sequence[str], size: int, *, copied: bool) -> Iterator[Column]:
    """The texts at the path in columns of about `size`; `copied`: these do not keep the batch in memory.

    ArrowInvalid for offsets that lead elsewhere: a damaged file may hold any, and other functions trust them.
    """
    array = _array_at(batch, path)
    sizes = _text_bytes(array)
    for first, last in runs(sizes, valid_rows(array), size):
        part = array.slice(first, last - first)
        part = _decoded(part) if pt.is_dictionary(part.type) else part
        data, offsets = layout(part)
        yield Column(data.copy() if copied else data, offsets, valid_rows(part) if part.null_count else None)


def _array_at(batch: pa.RecordBatch, path: Sequence[str]) -> pa.Array:
    """The array at the path as large_binary or a dictionary of it, its offsets checked. A null struct gives a null."""
    batch.validate()
    array = _storage(batch.column(path[0]))
    for step in path[1:]:
        array = _storage(pc.struct_field(array, [step]))
    if pt.is_dictionary(array.type):
        array = pa.DictionaryArray.from_arrays(array.indices, _checked(array.dictionary))
        array.validate(full=True)
        return array
    return _checked(array)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _checked(array: pa.Array) -> pa.Array:
    if pt.is_string_view(array.type):
        array = array.cast(pa.binary_view())
    elif pt.is_string(array.type):
        array = array.cast(pa.binary())
    elif pt.is_large_string(array.type):
        array = array.cast(pa.large_binary())
    array.validate(full=True)
    return (array.cast(pa.binary()) if pt.is_fixed_size_binary(array.type) else array).cast(pa.large_binary())


def _text_bytes(array: pa.Array) -> NDArray[np.int64]:
    """Bytes of text in each row; a dictionary's rows are not decoded for that."""
    if pt.is_dictionary(array.type):
        lengths = _text_bytes(array.dictionary)
        indices = array.indices.cast(pa.int64())
        numbers = np.frombuffer(indices.buffers()[1], np.int64, len(indices), 8 * indices.offset)
        if array.null_count:
            numbers = np.where(valid_rows(array), numbers, len(lengths))
        return np.append(lengths, 0)[numbers]
    sizes = np.diff(_offsets(array))
    if array.null_count:  # there may be bytes behind a null
        sizes[~valid_rows(array)] = 0
    return sizes


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    """The values that a dictionary's rows stand for.

    Arrow reserves the mean length of an entry for each row: 800 MB for 50 short rows beside one entry of 32 MB. So few
    rows are decoded at once where entries are long.
    """
    mean = array.dictionary.nbytes // max(1, len(array.dictionary))
    rows = max(1, _RESERVED // max(1, mean))
    if len(array) <= rows:
        return array.dictionary_decode()
    return pa.concat_arrays([array.slice(first, rows).dictionary_decode() for first in range(0, len(array), rows)])


# Between numpy and Arrow, where pyarrow's own functions would import pandas if it is installed: a third of a second.


def valid_rows(array: pa.Array) -> NDArray[np.bool_]:
    """Which rows are not null."""
    valid = array.is_valid()
    bits = np.frombuffer(valid.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=valid.offset + len(valid), bitorder="little")[valid.offset :].view(np.bool_)


def layout(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The data and offsets of an array of large_binary, beginning at 0."""
    offsets, data = _offsets(array), array.buffers()[2]
    view = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return view[offsets[0] : offsets[-1]], offsets - offsets[0]


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """Where each row of an array of large_binary begins in its data, and where the last ends."""
    ends = array.buffers()[1]
    if ends is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(ends, np.int64, len(array) + 1, 8 * array.offset)


def large_binary(data: object, offsets: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of the texts between the offsets."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    ends = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [mask, ends, pa.py_buffer(data)])


def taken(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    """Some rows of an array, in the given order."""
    numbers = pa.py_buffer(np.ascontiguousarray(rows, np.int64))
    return array.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, numbers]))
