"""pyarrow's arrays of any string-like type as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from shardmill.core import gathered
from shardmill.documents.columns import Column, runs
from shardmill.documents.records import fields_hint
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
            hint = fields_hint(schema.names, "columns") if schema.names else "there are no columns"
            raise SourceError(f"there is no column `{field}`", place=name, hint=hint)
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


def whole_column(batch: pa.RecordBatch, path: Sequence[str]) -> Column:
    """All texts at the path, which share the memory of the batch unless they are in a dictionary.

    ArrowInvalid for offsets out of range: a damaged file may hold any, and other functions do not check them.
    """
    [column] = columns_of(batch, path, 1 << 62, copied=False) if len(batch) else [Column.joined([])]
    return column


def columns_of(
    batch: pa.RecordBatch,
    path: Sequence[str],
    size: int,
    *,
    copied: bool,
    need: Callable[[int], None] = lambda size: None,
) -> Iterator[Column]:
    """The same in columns of about `size`; `copied`: these do not keep the batch in memory.

    `need` is called with the bytes of each column before it is made.
    """
    array = _array_at(batch, path)
    valid, coded = valid_rows(array), pt.is_dictionary(array.type)
    views = pt.is_binary_view(array.type)
    if views:  # each may lead anywhere in the buffers, and several to the same place
        lengths = np.where(valid, np.frombuffer(array.buffers()[1], "<i4")[::4][array.offset :][: len(array)], 0)
        lengths = lengths.astype(np.int64)
    else:
        data, offsets = layout(array.dictionary if coded else array)
        starts, lengths = offsets[:-1], np.diff(offsets)
    if coded:
        kind = array.indices.type.to_pandas_dtype()
        numbers = np.frombuffer(array.indices.buffers()[1], kind, len(array), array.indices.offset * kind().itemsize)
        valid[valid] = valid_rows(array.dictionary)[numbers[valid]]  # a value may be null too
        numbers = np.where(valid, numbers, 0).astype(np.int64)
        starts, lengths = (np.where(valid, some[numbers], 0) if len(some) else numbers for some in (starts, lengths))
    for first, last in runs(lengths, valid, size):
        need(int(lengths[first:last].sum()))
        if coded:
            # Not Arrow's `take`, which reserves the mean length of an entry for each row: that may be gigabytes.
            text = gathered(data, starts[first:last], lengths[first:last])
        elif views:
            text, _ = layout(array.slice(first, last - first).cast(pa.large_binary()))
        else:
            text = data[offsets[first] : offsets[last]]
            text = text.copy() if copied else text
        yield Column.of(text, lengths[first:last], valid[first:last])


def _array_at(batch: pa.RecordBatch, path: Sequence[str]) -> pa.Array:
    """The array at the path as binary, large_binary, binary_view or a dictionary of large_binary, its offsets checked.

    A null struct gives a null.
    """
    batch.validate()
    array = _storage(batch.column(path[0]))
    for step in path[1:]:
        import pyarrow.compute as pc

        array = _storage(pc.struct_field(array, [step]))
    if pt.is_dictionary(array.type):
        array = pa.DictionaryArray.from_arrays(array.indices, _checked(array.dictionary).cast(pa.large_binary()))
        array.validate(full=True)
        return array
    return _checked(array)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _checked(array: pa.Array) -> pa.Array:
    # A view of other type costs nothing; a cast imports pyarrow.compute, a tenth of a second.
    if pt.is_string_view(array.type):
        array = array.cast(pa.binary_view())
    elif pt.is_string(array.type):
        array = array.view(pa.binary())
    elif pt.is_large_string(array.type):
        array = array.view(pa.large_binary())
    array.validate(full=True)
    if pt.is_binary(array.type) or pt.is_large_binary(array.type) or pt.is_binary_view(array.type):
        return array
    return (array.cast(pa.binary()) if pt.is_fixed_size_binary(array.type) else array).cast(pa.large_binary())


# Between numpy and Arrow, where pyarrow's own functions would import pandas if it is installed: a third of a second.


def valid_rows(array: pa.Array) -> NDArray[np.bool_]:
    """Which rows are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def layout(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The data and offsets of an array of binary or large_binary, beginning at 0."""
    _, ends, data = array.buffers()
    if ends is None or len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    kind = np.dtype(np.int64 if pt.is_large_binary(array.type) else np.int32)
    offsets = np.frombuffer(ends, kind, len(array) + 1, kind.itemsize * array.offset)
    view = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return view[offsets[0] : offsets[-1]], offsets - np.int64(offsets[0])
