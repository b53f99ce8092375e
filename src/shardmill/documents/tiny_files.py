"""Tiny text files by the thousand, without an object for each: what is odd about one is left to the ordinary readers.

An ordinary reader makes a hundred small Python calls for a file, which for a kilobyte is ten times all other work.
"""

from __future__ import annotations

import codecs
import os
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from shardmill.documents.chunks import Documents
from shardmill.documents.reading import Reading
from shardmill.documents.splitting import rows_between
from shardmill.storage.compressed import MARKS
from shardmill.storage.feeds import FLAGS, SMALL, is_as_found
from shardmill.storage.names import COMPRESSION_ENDINGS, TEXT_ENDINGS
from shardmill.storage.opening import ARROW_MARK, FOREIGN, PARQUET_MARK
from shardmill.storage.source import Source
from shardmill.storage.unicode import BOM

MOST = 4096
"""Files in a bunch; 1: there are none."""

# What open_source looks for at the start of a text file: it is compressed, in another encoding, or no text at all.
_MARKS = (
    *MARKS,
    *(codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE),
    *(mark for mark, _, _ in FOREIGN),
    *(PARQUET_MARK, ARROW_MARK),
)
_STARTS = frozenset(mark[:2] for mark in (*_MARKS, BOM))
_TEXT = frozenset(TEXT_ENDINGS)
# One worker reads while the others encode: two that open files by the thousand hand the interpreter's lock to and fro.
_TURN = threading.Lock()


class Bunch(NamedTuple):
    """Consecutive sources that are read together, each of them one document or empty."""

    first: int
    """Index in the plan."""
    sources: list[Source]

    @property
    def indices(self) -> range:
        return range(self.first, self.first + len(self.sources))


def bunch_at(first: int, sources: Sequence[Source], reading: Reading, size: int) -> Bunch | None:
    """The sources from `first` on that can be read together, up to about `size` bytes; None: fewer than two."""
    if reading.separator is not None or reading.tail is not None:
        return None
    last = first
    for last in range(first, min(first + MOST, len(sources))):
        if not _is_tiny_text(sources[last]) or (size := size - (sources[last].size or 0)) < 0:
            break
    else:
        last += 1
    return Bunch(first, list(sources[first:last])) if last - first > 1 else None


def _is_tiny_text(source: Source) -> bool:
    """Whether it is a small file of this machine that its name or the user says is plain text; not always told."""
    if source.size is None or source.size > SMALL or "://" in source.path:
        return False
    stem, _, ending = source.path.rpartition(".")
    ending = ending.lower()
    if source.input_format == "auto":
        return ending in _TEXT and stem != "" and stem[-1] not in "/\\:"
    return source.input_format == "text" and ending not in COMPRESSION_ENDINGS


def read_bunch(bunch: Bunch) -> Documents | None:
    """A row for each file; None where they have to be read one by one: something is odd about one of them."""
    with _TURN:
        parts = _contents(bunch.sources)
    if parts is None:
        return None
    for i in [i for i, part in enumerate(parts) if part[:2] in _STARTS]:
        if parts[i].startswith(_MARKS):
            return None
        parts[i] = parts[i].removeprefix(BOM)
    if any([part[257:262] == b"ustar" for part in parts]):  # noqa: C419 - a generator takes twice as long
        return None
    bounds = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)
    return rows_between(b"".join(parts), bounds)


def _contents(sources: list[Source]) -> list[bytes] | None:
    """The bytes of each file; None when one cannot be read or is not as it was found."""
    parts = []
    try:
        for source in sources:
            descriptor = os.open(source.path, FLAGS)
            try:
                part = os.read(descriptor, source.size or 0)
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if len(part) != source.size or not is_as_found(source, status):
                return None
            parts.append(part)
    except OSError:  # the ordinary reader meets it again, and says what it is and where
        return None
    return parts
