"""Text from the calling program: an iterable of texts, mappings or Arrow data.

Only the feeder's thread iterates it. A position counts documents; where the iterable has a `state_dict`, that says how
to come to a document without those before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.documents.arrow_columns import columns_of, find_column
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Position, Section, excerpt
from shardmill.documents.columns import BAD_ROW_TEXT, LONG_TEXT, ROW_TEXT, Column, chunk_of_rows
from shardmill.documents.content import ContentHash
from shardmill.documents.iterating import Items
from shardmill.documents.reading import Memory, Reader, Room
from shardmill.documents.records import field_of, kind_of
from shardmill.errors import SourceError, UsageError
from shardmill.python_sources import PythonSource
from shardmill.storage import Source

_ROWS = 1 << 15  # rows of an Arrow batch that are measured at once; they take about 60 bytes each meanwhile
_SHOWN = 20  # names of fields that an error lists
_DECIDED = 100  # documents without the field after which it is taken to have another name


class PythonReader(Reader):
    """A PythonSource as chunks that carry their rows."""

    unit = "document"

    def __init__(self, index: int, source: Source, field: str, room: Room, given: PythonSource) -> None:
        self._index, self._source, self._field, self._room, self._given = index, source, field, room, given

    def chunks(self, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on; exceptions of the iterable are not caught.

        Where nothing else tells whether a later run gets the same documents, the state after a chunk is a hash of all
        documents so far. That run reads them again, and this raises SourceError if they are others.
        """
        before = json.loads(start.state).get("sha256", "") if start.state else ""
        content = ContentHash(self._field) if self._given.unversioned and (before or not start.offset) else None
        begin = start if content is None else Position()
        row, through = begin.offset, 0
        values = _Values(self._field, self._source.name, first=row == 0)
        with closing(Items(self._given, self._field, begin)) as items:
            if items.stateful and not before:
                content = None
            for column, between in self._columns(items, values, max(1, size)):
                if content is not None:
                    head = column.slice(0, max(0, min(len(column), start.offset - row)))
                    content.add(head)
                    row += len(head)
                    if len(head) and row == start.offset and content.hexdigest() != before:
                        raise self._other_documents(f"the first {row:,} documents are not the same as")
                    column = column.slice(len(head), len(column)) if len(head) else column
                    if not len(column):
                        continue
                    content.add(column)
                through += column.size
                chunk = chunk_of_rows(self._index, row, column, through, self._room.largest)
                row = chunk.end
                if between:
                    items.mark(row)
                state = items.state if content is None else json.dumps({"sha256": content.hexdigest()})
                yield chunk._replace(after=Position(row, state=state))
        if row < start.offset:
            raise self._other_documents(f"there are {row:,} documents, and {start.offset:,} were read")

    def _other_documents(self, what: str) -> SourceError:
        return SourceError(
            f"{what} when this run began",
            place=self._source.name,
            kept="",  # the run cannot be resumed without the documents as they were
            hint="give the same documents again, or start anew with `overwrite=True`",
        )

    def read(self, chunk: Chunk) -> Documents:
        assert isinstance(chunk.work, Column)
        return chunk.work.documents(self._field)

    def _columns(self, items: Items, values: _Values, size: int) -> Iterator[tuple[Column, bool]]:
        """Columns of about `size`; with each whether it ends with the last item that was taken from the iterable."""
        with closing(Memory(self._room, self._source.name)) as memory:
            # A loop over documents: a program that gives them one by one has made an object for each already.
            for item in items:
                if isinstance(item, pa.RecordBatch):
                    if values.total:
                        yield values.taken(more=True), False
                    memory.need("a batch", 0 if items.resident else item.nbytes)
                    done = 0
                    for column in self._slices(item, size, copied=not items.resident):
                        done += len(column)
                        yield column, done == item.num_rows and items.between
                    # Freed before the next one is made.
                    del item, column
                    memory.need("a batch", 0)
                    continue
                text, reason = (item, "") if isinstance(item, str) else values.judge(item)
                most = len(text) if text.isascii() else 4 * len(text)
                if most > size:
                    # In a chunk of its own, so that memory can be asked for.
                    if values.total:
                        yield values.taken(more=True), False
                    if len(text) > self._room.largest:
                        yield Column.too_large(len(text)), True
                        continue
                    memory.need("a document", most if most > LONG_TEXT else 0)
                values.add(text, reason, item)
                if (values.weight >= size and not values.undecided) or most > size:
                    yield values.taken(), True
                    memory.need("a document", 0)
            if values.total:
                yield values.taken(), True

    def _slices(self, batch: pa.RecordBatch, size: int, *, copied: bool) -> Iterator[Column]:
        path = find_column(batch.schema, self._field, self._source.name)
        batch = batch.select([path[0]])
        # Before anything is converted: a frame may be one batch of gigabytes.
        step = max(1, min(_ROWS, batch.num_rows * size // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, step):
            # Copied where a slice would keep its whole batch, with all columns, in memory until it is written.
            yield from columns_of(batch.slice(first, step), path, size, copied=copied)


class _Values:
    """Texts and mappings, collected until they are enough for a chunk."""

    def __init__(self, field: str, name: str, *, first: bool) -> None:
        """`first`: the next document is the first of its source."""
        self._field, self._name = field, name
        self._path = tuple(field.split("."))
        self._texts: list[bytes] = []
        self._bad: dict[int, tuple[str, str]] = {}
        self._fields: list[str] | None = [] if first else None
        """The fields of all documents so far, as long as these are mappings without the text field; else None."""
        self.weight = 0

    @property
    def total(self) -> int:
        return len(self._texts)

    @property
    def undecided(self) -> bool:
        """Whether the field may have another name. No chunk is made until that is known: a later run, or one with
        smaller chunks, must come to the same result.
        """
        return self._fields is not None and self.total < _DECIDED

    def judge(self, item: Any) -> tuple[str, str]:
        """The text of a document that is not a `str`, or the reason why it has none."""
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
        encoded = b""
        if not reason:
            try:
                encoded = str.encode(text)
            except UnicodeEncodeError:
                reason = f"lone surrogate in {'the text' if isinstance(item, str) else f'field `{self._field}`'}"
        if self._fields is not None and " is missing" not in reason:
            self._fields = None
        if reason:
            shown = text or (item if isinstance(item, (bytes, bool, int, float)) else "")
            self._bad[self.total] = reason, _excerpt(shown)
            self.weight += BAD_ROW_TEXT
        self._texts.append(encoded)
        self.weight += ROW_TEXT + len(encoded)

    def taken(self, *, more: bool = False) -> Column:
        """All that was collected, and begin anew. `more`: a document of another kind follows.

        SourceError where no record has the field.
        """
        if self._fields and not more:
            raise SourceError(
                f"no record has the field `{self._field}`",
                place=self._name,
                hint=f"the fields are {', '.join(f'`{name}`' for name in self._fields)}: choose with `text_field`",
            )
        self._fields = None
        valid = np.ones(self.total, np.bool_)
        valid[list(self._bad)] = False
        lengths = np.fromiter(map(len, self._texts), np.int64, self.total)
        column = replace(Column.of(b"".join(self._texts), lengths, valid), reasons=self._bad)
        self._texts, self._bad, self.weight = [], {}, 0
        return column


def _excerpt(value: Any) -> str:
    if isinstance(value, str):
        return excerpt(value[:80].encode("utf-8", "replace"))
    return excerpt(value[:320]) if isinstance(value, bytes) else str(value)[:80]
