"""A hash of the documents that a program passes, to tell whether they are the same as in an earlier call.

It depends on the texts and their order alone: the same texts in a list, a frame or a table, in whatever batches, have
the same hash.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shardmill.documents.columns import Column
    from shardmill.python_sources import PythonSource

_CHUNK = 4 << 20  # bytes of text that are hashed at once


class ContentHash:
    """The hash of all rows that were added so far."""

    def __init__(self, text_field: str) -> None:
        self._null = f"field `{text_field}` is null", ""
        self._texts, self._lengths, self._bad = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self.count = 0

    def add(self, column: Column) -> None:
        """Add the rows of a column: texts, lengths, and of each row without a text the reason."""
        lengths = np.diff(column.offsets).astype("<i8")
        valid = np.ones(len(column), np.bool_) if column.valid is None else column.valid
        for row in np.flatnonzero(~valid).tolist():
            self._bad.update(repr((self.count + row, *column.reasons.get(row, self._null))).encode())
        if column.oversize:
            lengths[0] = column.oversize
        data, _ = column.kept(valid)
        self._texts.update(np.ascontiguousarray(data).data)
        self._lengths.update(np.where(valid, lengths, -1).tobytes())
        self.count += len(column)

    def hexdigest(self) -> str:
        """The hash of what was added so far."""
        parts = (self._texts, self._lengths, self._bad)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


def content_version(given: PythonSource, text_field: str, largest: int | None) -> str:
    """The version of a source whose documents are data: their number and their hash.

    One chunk is in memory at a time. A document of more than `largest` bytes, which no run takes, counts by its size.
    """
    from shardmill.documents.chunks import Position
    from shardmill.documents.columns import Column
    from shardmill.documents.from_python import PythonReader
    from shardmill.documents.reading import FreeRoom

    content = ContentHash(text_field)
    reader = PythonReader(0, given.as_source(0), text_field, FreeRoom(largest or sys.maxsize), given)
    for chunk in reader.chunks(Position(), _CHUNK):
        assert isinstance(chunk.work, Column)
        content.add(chunk.work)
    return f"documents: {content.count}, sha256: {content.hexdigest()}"
