"""Text that the calling program hands over: texts, mappings or Arrow data, from an iterable that it made.

The feeder's thread iterates it, and nobody else. A position counts documents; where the iterable has a `state_dict`,
that says how to come to a document without those before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.documents.batches import (
    LONG_TEXT,
    NO_ROWS,
    NULL_TEXT,
    ROW_TEXT,
    Column,
    RowBatch,
    chunk_of_rows,
    read_rows,
)
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Position, Reject, Section, excerpt
from shardmill.documents.columns import column_of, find_column, slices
from shardmill.documents.iterating import Items
from shardmill.documents.reading import Memory, Reader, Reading
from shardmill.documents.records import field_of, kind_of
from shardmill.errors import SourceError, UsageError
from shardmill.storage import NamedSource, Source

_ROWS = 1 << 15  # of an Arrow batch, looked at together: they take about 60 bytes each meanwhile
_SHOWN = 20  # names of fields, at the most
_DECIDED = 100  # documents after which it is known whether the field has another name


class PythonReader(Reader):
    """One NamedSource as chunks that carry their rows."""

    unit = "document"

    def __init__(self, index: int, source: Source, reading: Reading, given: NamedSource) -> None:
        self._index, self._source, self._reading, self._given = index, source, reading, given
        self._field = reading.text_field

    def chunks(self, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on; what the iterable raises goes through as it is."""
        if self._reading.tail is not None:
            raise UsageError(
                "the end of a source can be set aside only for text, not for text from Python",
                place=self._source.name,
                hint="give `val` a fraction or `first:N`",
            )
        row, through = start.offset, 0
        values = _Values(self._field, self._source.name, first=row == 0)
        with closing(Items(self._given, self._field, start)) as items:
            for part, between in self._runs(items, values, max(1, size)):
                row += part.total
                through += part.cost
                if between:
                    items.mark(row)
                chunk = chunk_of_rows(self._index, row - part.total, part, through, self._reading.largest)
                yield chunk._replace(state=items.state)

    def read(self, chunk: Chunk) -> Documents:
        return read_rows(chunk, self._field)

    def _runs(self, items: Items, values: _Values, size: int) -> Iterator[tuple[RowBatch, bool]]:
        """The rows in runs that weigh about `size`; with each whether it is all that was taken from the iterable."""
        with closing(Memory(self._reading, self._source.name)) as memory:
            # A loop over documents: a program that gives them one by one has made an object for each already.
            for item in items:
                if isinstance(item, pa.RecordBatch):
                    if values.total:
                        yield values.taken(more=True), False
                    memory.need("a batch", 0 if items.resident else item.nbytes)
                    for part, last in _with_last(self._slices(item, size, copied=not items.resident)):
                        yield part, last and items.between
                    # Let go before the next is made.
                    del item, part
                    memory.need("a batch", 0)
                    continue
                text, reason = (item, "") if isinstance(item, str) else values.judge(item)
                most = len(text) if text.isascii() else 4 * len(text)
                if most > size:
                    # Alone, so that it can be told whether there is room for it.
                    if values.total:
                        yield values.taken(more=True), False
                    if len(text) > self._reading.largest:
                        yield RowBatch(NO_ROWS, len(text), 1), True
                        continue
                    memory.need("a document", most if most > LONG_TEXT else 0)
                values.add(text, reason, item)
                if (values.weight >= size and not values.undecided) or most > size:
                    yield values.taken(), True
                    memory.need("a document", 0)
            if values.total:
                yield values.taken(), True

    def _slices(self, batch: pa.RecordBatch, size: int, *, copied: bool) -> Iterator[RowBatch]:
        path = find_column(batch.schema, self._field, self._source.name)
        batch = batch.select([path[0]])
        # Before anything is converted: a frame may be one batch of gigabytes.
        step = max(1, min(_ROWS, batch.num_rows * size // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, step):
            # Copied where a slice would keep all of its batch, with all columns, until it is written.
            yield from slices(column_of(batch.slice(first, step), path), size, copied=copied)


class _Values:
    """Texts and mappings, gathered until they are enough for a chunk."""

    def __init__(self, field: str, name: str, *, first: bool) -> None:
        """`first`: nothing of the source was handed on before."""
        self._field, self._name = field, name
        self._path = tuple(field.split("."))
        self._texts: list[bytes] = []
        self._rejects: list[Reject] = []
        self._fields: list[str] | None = [] if first else None
        """Names that the first documents have, of which all are mappings without the field; None: not all of them."""
        self.weight = self.total = 0

    @property
    def undecided(self) -> bool:
        """Whether the field may have another name. Nothing is handed on until that is known: a later run, or one with
        smaller chunks, must come to the same end.
        """
        return self._fields is not None and self.total < _DECIDED

    def judge(self, item: Any) -> tuple[str, str]:
        """The text of what is no text itself, or why it has none."""
        if not isinstance(item, Mapping):
            if isinstance(item, os.PathLike):
                raise UsageError(
                    "the iterable gives paths, not texts", place=self._name, hint="give a list of paths: `list(…)`"
                )
            return "", f"not text but {kind_of(item)}"
        verdict = field_of(item, (self._field,) if self._field in item else self._path)
        if verdict.fields and self._fields is not None and len(self._fields) < _SHOWN:
            self._fields += [name for name in verdict.fields if name not in self._fields]
        return verdict.text or "", verdict.reason.replace("{field}", f"field `{self._field}`")

    def add(self, text: str, reason: str, item: Any) -> None:
        if not reason:
            try:
                self._texts.append(str.encode(text))
                self.weight += len(self._texts[-1])
            except UnicodeEncodeError:
                reason = f"lone surrogate in {'the text' if isinstance(item, str) else f'field `{self._field}`'}"
        if self._fields is not None and " is missing" not in reason:
            self._fields = None
        if reason:
            shown = text or (item if isinstance(item, (bytes, bool, int, float)) else "")
            self._rejects.append(Reject(self.total, -1, reason, _excerpt(shown)))
            self.weight += NULL_TEXT
        self.weight += ROW_TEXT
        self.total += 1

    def taken(self, *, more: bool = False) -> RowBatch:
        """All that was gathered; then there is nothing. `more`: a document of another kind follows.

        SourceError where no record has the field.
        """
        if self._fields and not more:
            raise SourceError(
                f"no record has the field `{self._field}`",
                place=self._name,
                hint=f"the fields are {', '.join(f'`{name}`' for name in self._fields)}: choose with `text_field`",
            )
        self._fields = None
        lengths = np.fromiter(map(len, self._texts), np.int64, len(self._texts))
        column = Column.of(b"".join(self._texts), lengths)
        rows = RowBatch(column, len(column.data), self.total, tuple(self._rejects))
        self._texts, self._rejects = [], []
        self.weight = self.total = 0
        return rows


def _excerpt(value: Any) -> str:
    if isinstance(value, str):
        return excerpt(value[:80].encode("utf-8", "replace"))
    return excerpt(value[:320]) if isinstance(value, bytes) else str(value)[:80]


def _with_last(parts: Iterator[RowBatch]) -> Iterator[tuple[RowBatch, bool]]:
    """Each with whether it is the last."""
    held = next(parts, None)
    while held is not None:
        following = next(parts, None)
        yield held, following is None
        held = following
