"""Tiny text files, thousands of them in one chunk: what is odd about one is left to the ordinary readers.

An ordinary reader makes a hundred small Python calls for a file, which for a kilobyte is ten times all other work.
"""

from __future__ import annotations

import codecs
import os
from itertools import accumulate, islice
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents.chunks import Chunk, Documents, beside
from shardmill.documents.reading import Reader, Reading
from shardmill.documents.text import rows_between
from shardmill.input_formats import ARROW_MARK, INPUT_FORMATS, PARQUET_MARK
from shardmill.storage import (
    BOM,
    COMPRESSION_ENDINGS,
    FLAGS,
    FOREIGN,
    MARKS,
    SMALL,
    Source,
    Sources,
    is_as_found,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 4096
"""Files in a chunk; 0: all files are read one by one."""

# What open_source looks for at the start of a text file: it is compressed, in another encoding, or no text at all.
_MARKS = (
    *MARKS,
    *(codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE),
    *(mark for mark, _, _ in FOREIGN),
    *(PARQUET_MARK, ARROW_MARK),
)
_STARTS = frozenset(mark[:2] for mark in (*_MARKS, BOM))
_TEXT = frozenset(INPUT_FORMATS["text"].endings.split())


class TinyFiles(Reader):
    """A reader of many sources: its chunks hold whole files, each of them one document or empty.

    The feeder reads them, since two threads that open files by the thousand hand the interpreter's lock to and fro.
    """

    def __init__(self, sources: Sources, reading: Reading, size: int) -> None:
        self._sources, self._size = sources, size
        self._needless = reading.separator is not None or reading.tail is not None or reading.limited
        self._stopped = reading.fetcher.stopped if reading.fetcher else None

    def chunk_at(self, first: int, stop: int) -> Chunk | None:
        """The files from `first` on, and before `stop`, that can be read together; None: that one cannot."""
        parts: list[bytes] = []
        left = self._size
        for source in islice(self._sources.iter_from(first), 0 if self._needless else min(MOST, stop - first)):
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
        payload = b"".join(parts), bounds
        count = len(parts)
        return Chunk(first, 0, 0, self._size - left, whole=count, beside=beside(count), payload=payload)

    def read(self, chunk: Chunk) -> Documents:
        """A row for each file."""
        contents: tuple[bytes, NDArray[np.int64]] = chunk.payload
        return rows_between(*contents)


def _is_tiny_text(source: Source) -> bool:
    """Whether it is a small file of this machine that its name or the user says is plain text; not always told."""
    if source.size is None or source.size > SMALL or "://" in source.path:
        return False
    stem, _, ending = source.path.rpartition(".")
    ending = ending.lower()
    if source.input_format == "auto":
        return ending in _TEXT and stem != "" and stem[-1] not in "/\\:"
    return source.input_format == "text" and ending not in COMPRESSION_ENDINGS


def _content(source: Source, size: int) -> bytes | None:
    """The text of a file; None where the ordinary reader has to look: it finds what is odd, and says what and where."""
    try:
        descriptor = os.open(source.path, FLAGS)
        try:
            content = os.read(descriptor, size)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if len(content) != size or not is_as_found(source, status) or content[257:262] == b"ustar":
        return None
    if content[:2] in _STARTS:
        return None if content.startswith(_MARKS) else content.removeprefix(BOM)
    return content
