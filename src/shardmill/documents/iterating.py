"""Iterates over what the calling program gave, including data of Hugging Face, pandas and polars, from any document on.

An item is one document, as a text, a mapping or any other object, or a record batch of many documents.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from shardmill.documents.chunks import Position
from shardmill.errors import SourceError
from shardmill.python_sources import PythonSource, is_arrow

_ASKED = 100  # rows of a batch, for a dataset that cannot be sliced
_FIRST, _MOST = 64, 1 << 15  # rows of the first slice, and of any slice, for one that can
_SLICE = 1 << 21  # bytes of a slice, about
_TINY = 1 << 17  # bytes of a batch below which the costs of a chunk are more than those of a copy
# Types whose data is in memory before the run, so that it is not copied.
_IN_MEMORY = (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, list, tuple)


class Items:
    """The items of an iterable from a document on. All methods are called by one thread."""

    def __init__(self, given: PythonSource, field: str, start: Position) -> None:
        self._field, self._name, self._start = field, given.name, start.offset
        self.state = start.state
        """What a later run needs to continue after the last document that was marked."""
        self.between = True
        """The item that was yielded last is the end of what was taken from the iterable."""
        made = given.open()
        self.resident = isinstance(made, _IN_MEMORY) or type(made).__module__.split(".")[0] == "polars"
        if is_dataset := hasattr(made, "with_format") and hasattr(made, "iter"):
            made = _with_wanted_columns(made, field)
        self._skip, self._stateful = start.offset, None
        if is_dataset and hasattr(made, "__len__"):
            first = min(start.offset, len(made))
            self._skip -= first
            self._iterator = _dataset_rows(made, first)
            return
        # Not of a dataset: if it shuffles in a buffer, its state lacks the buffer, and nothing tells that it does.
        if not is_dataset and hasattr(made, "state_dict") and hasattr(made, "load_state_dict"):
            self._stateful = made
            saved = json.loads(start.state) if start.state else {}
            if "state" in saved:
                made.load_state_dict(saved["state"])
                self._skip -= saved["documents"]
        self._iterator = iter(_batches(made) if is_dataset else _asked(made))

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterator:
            if isinstance(item, str) or not is_arrow(item):
                if self._skip:
                    self._skip -= 1
                else:
                    yield item
                continue
            parts = _parts(item, self._field)
            del item
            for part in parts:
                self.between = isinstance(parts, list) and part is parts[-1]
                rows = part.num_rows if isinstance(part, pa.RecordBatch) else 1
                if self._skip < rows:
                    yield part.slice(self._skip) if self._skip else part
                self._skip = max(0, self._skip - rows)
                del part
            self.between = True
        if self._skip:
            raise SourceError(
                f"there are {self._start - self._skip:,} documents, and {self._start:,} were read when this run began",
                place=self._name,
                hint="give the same documents again, or start anew with `overwrite=True`",
            )

    @property
    def stateful(self) -> bool:
        """Whether the iterable has a state, so that a later run does not read these documents again."""
        return self._stateful is not None

    def mark(self, documents: int) -> None:
        """Remember the state of the iterable, if it has one, after so many documents."""
        if self._stateful is None:
            return
        saved = {"documents": documents, "state": self._stateful.state_dict()}
        try:
            written = json.dumps(saved)
            readable = json.loads(written) == saved
        except (TypeError, ValueError):
            readable = False
        # A state that is not JSON cannot be written to the journal: then a later run reads from the start and skips.
        self._stateful, self.state = (self._stateful, written) if readable else (None, "")

    def close(self) -> None:
        """Close a generator in the thread in which it ran: its resources may belong to that thread."""
        if inspect.isgenerator(self._iterator):
            self._iterator.close()


def _asked(made: Any) -> Iterable[Any]:
    """The iterable of something that cannot be sliced, in batches if it has them."""
    items: Iterable[Any] = [made] if is_arrow(made) else made
    if hasattr(made, "collect_batches"):  # a LazyFrame of polars
        items = made.collect_batches(maintain_order=True)
    return items


def _batches(dataset: Any) -> Iterable[Any]:
    """The rows of an IterableDataset, as tables if their types are known.

    Without types, a table would have those of its first rows, and a later row may have others.
    """
    rows: Iterable[Any] = dataset.with_format("arrow").iter(_ASKED) if dataset.features else dataset.with_format(None)
    return rows


def _with_wanted_columns(dataset: Any, field: str) -> Any:
    """A Hugging Face dataset with the text column alone; a Dataset in Arrow format."""
    if hasattr(dataset, "__len__") and dataset.format["type"] == "custom":
        return dataset  # a transform of the user's, which may need any column and returns Python objects
    names = [name for name in (field, field.partition(".")[0]) if name in (dataset.column_names or ())]
    dataset = dataset.select_columns(names[:1]) if names else dataset
    return dataset.with_format("arrow") if hasattr(dataset, "__len__") else dataset


def _dataset_rows(dataset: Any, first: int) -> Iterator[Any]:
    """The rows of a Dataset from `first` on: tables, or what the user's transform makes of each row."""
    if dataset.format["type"] == "custom":
        return iter(dataset.select(range(first, len(dataset))))
    return _slices(len(dataset), first, lambda begin, end: dataset[begin:end])


def _slices(count: int, first: int, rows: Callable[[int, int], Any]) -> Iterator[Any]:
    """The rows from `first` on, in tables of about two megabytes."""
    step = _FIRST
    while first < count:
        part = rows(first, min(first + step, count))
        first += step
        size = part.nbytes if isinstance(part, pa.Table) else 0
        step = max(1, min(2 * step, _MOST, step * _SLICE // max(1, size)))
        yield part


def _parts(item: Any, field: str) -> list[pa.RecordBatch] | Iterator[Any]:
    """Arrow data of any kind as record batches; a single column is taken for the texts."""
    if isinstance(item, pa.RecordBatch):
        return [item]
    if isinstance(item, pa.Table):
        return _table_batches(item)
    if hasattr(item, "iloc"):
        return _pandas_rows(item, field)
    if not isinstance(item, (pa.Array, pa.ChunkedArray)):
        if not hasattr(item, "__arrow_c_stream__"):
            return [pa.record_batch(item)]
        try:
            batches: Iterator[pa.RecordBatch] = iter(pa.RecordBatchReader.from_stream(item))
            return batches
        except pa.ArrowInvalid:  # no table
            item = pa.chunked_array(item)
    return _table_batches(pa.table({field: item}))


def _table_batches(table: pa.Table) -> list[pa.RecordBatch] | Iterator[pa.RecordBatch]:
    """The batches of a table, tiny ones joined: a selection of rows has one for each, and each would be a chunk."""
    batches: list[pa.RecordBatch] = table.to_batches()
    size = table.nbytes
    if len(batches) <= 1 or size // len(batches) > _TINY:
        return batches
    if size <= 2 * _SLICE:
        joined: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        return joined
    step = max(1, table.num_rows * _SLICE // size)
    slices = (table.slice(first, step) for first in range(0, table.num_rows, step))
    return (batch for part in slices for batch in part.combine_chunks().to_batches())


def _pandas_rows(frame: Any, field: str) -> Iterator[Any]:
    """The texts of a pandas DataFrame or Series, in slices: pandas may hold them as Python objects, which are copied.

    Where Arrow cannot hold them, since not all are texts, each row is a mapping.
    """
    if not hasattr(frame, "columns"):
        frame = frame.to_frame(field)
    names = [name for name in (field, field.partition(".")[0]) if name in frame.columns]
    if not names:
        yield from (dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False))
        return
    column = frame[names[0]]
    kind = pa.large_string() if column.dtype == object and names[0] == field else None

    def rows(begin: int, end: int) -> pa.Table | list[Any]:
        values = column.iloc[begin:end]
        try:
            return pa.table({names[0]: pa.array(values, kind, from_pandas=True)})
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return [{names[0]: value} for value in values]

    for part in _slices(len(column), 0, rows):
        yield from part.to_batches() if isinstance(part, pa.Table) else part
