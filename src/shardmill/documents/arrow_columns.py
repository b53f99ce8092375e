"""pyarrow's arrays of any string-like type as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.documents.columns import Column, gathered, runs
from shardmill.errors import SourceError


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

    ArrowInvalid for offsets out of range: a damaged file may hold any, and other functions do not check them.
    """
    array = _array_at(batch, path)
    valid, coded = valid_rows(array), pt.is_dictionary(array.type)
    data, offsets = layout(array.dictionary if coded else array)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if coded:
        indices = array.indices.cast(pa.int64())
        numbers = np.frombuffer(indices.buffers()[1], np.int64, len(indices), 8 * indices.offset)
        valid[valid] = valid_rows(array.dictionary)[numbers[valid]]  # a value may be null too
        numbers = numbers[valid]
        (starts, lengths), ends = np.zeros((2, len(valid)), np.int64), offsets[numbers + 1]
        starts[valid] = offsets[numbers]
        lengths[valid] = ends - offsets[numbers]
    for first, last in runs(lengths, valid, size):
        if coded:
            text = gathered(data, starts[first:last], lengths[first:last])
        else:
            text = data[offsets[first] : offsets[last]]
            text = text.copy() if copied else text
        yield Column.of(text, lengths[first:last], valid[first:last])


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


# Between numpy and Arrow, where pyarrow's own functions would import pandas if it is installed: a third of a second.


def valid_rows(array: pa.Array) -> NDArray[np.bool_]:
    """Which rows are not null."""
    valid = array.is_valid()
    bits = np.frombuffer(valid.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=valid.offset + len(valid), bitorder="little")[valid.offset :].view(np.bool_)


def layout(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The data and offsets of an array of large_binary, beginning at 0."""
    _, ends, data = array.buffers()
    if ends is None or len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(ends, np.int64, len(array) + 1, 8 * array.offset)
    view = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return view[offsets[0] : offsets[-1]], offsets - offsets[0]
