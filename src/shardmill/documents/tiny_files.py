"""Tiny text files, thousands of them in one chunk; files that are not plain UTF-8 are left to the ordinary readers.

An ordinary reader makes a hundred small Python calls for a file, which for a kilobyte is ten times all other work.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING

import numpy as np

from shardmill.detection import may_be_other_than_text
from shardmill.documents.chunks import Chunk, Documents, Lease, Position, Work, overhead
from shardmill.documents.reading import Reader, Reading
from shardmill.documents.text import rows_between
from shardmill.input_formats import INPUT_FORMATS
from shardmill.source_list import Sources
from shardmill.storage import BOM, COMPRESSION_ENDINGS, FLAGS, SMALL, Source, is_unchanged

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 4096
"""Files in a chunk; 0: all files are read one by one."""
_TEXT = frozenset(INPUT_FORMATS["text"].endings.split())


@dataclass(frozen=True)
class Files(Work):
    """The text of some files; file i is text[bounds[i] : bounds[i + 1]]."""

    text: bytes
    bounds: NDArray[np.int64]


class TinyFiles(Reader):
    """A reader of many sources: its chunks hold whole files, each of them one document or empty.

    The feeder reads them: two threads that open files by the thousand slow each other down by the interpreter's lock.
    """

    def __init__(self, sources: Sources, reading: Reading, size: int, stopped: threading.Event | None = None) -> None:
        """`stopped`: set when the run ends, so that no more files are read."""
        self._sources, self._size, self._stopped = sources, size, stopped
        self._off = reading.separator is not None or reading.tail is not None or reading.limited

    def chunk_at(self, first: int, stop: int) -> Chunk | None:
        """The files from `first` on, and before `stop`, that can be read together; None: the first one cannot."""
        parts: list[bytes] = []
        left = self._size
        for source in islice(self._sources.iter_from(first), 0 if self._off else min(MOST, stop - first)):
            size = source.size or 0
            if (parts and size > left) or not _is_tiny_text(source) or (part := _content(source, size)) is None:
                break
            parts.append(part)
            left -= size
            if self._stopped is not None and self._stopped.is_set():
                break
        if not parts:
            return None
        bounds = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)
        lease, work = Lease(self._size - left, overhead(len(parts))), Files(b"".join(parts), bounds)
        return Chunk(first, 0, Position(), lease, work, whole=len(parts))

    def read(self, chunk: Chunk) -> Documents:
        """A row for each file."""
        assert isinstance(chunk.work, Files)
        return rows_between(chunk.work.text, chunk.work.bounds)


def _is_tiny_text(source: Source) -> bool:
    """Whether it is a small local file that is plain text by its name or by the user's choice; False if unsure."""
    if source.size is None or source.size > SMALL or "://" in source.path:
        return False
    stem, _, ending = source.path.rpartition(".")
    ending = ending.lower()
    if source.input_format == "auto":
        return ending in _TEXT and stem != "" and stem[-1] not in "/\\:"
    return source.input_format == "text" and ending not in COMPRESSION_ENDINGS


def _content(source: Source, size: int) -> bytes | None:
    """The text of a file; None where the ordinary reader has to look, which says what is wrong and where."""
    try:
        descriptor = os.open(source.path, FLAGS)
        try:
            content = os.read(descriptor, size)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if len(content) != size or not is_unchanged(source, status) or may_be_other_than_text(content):
        return None
    return content.removeprefix(BOM)
