"""Bytes of text as rows of valid UTF-8, split at a separator or at given places, without a loop over documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardmill.byte_search import occurrences
from shardmill.documents.chunks import Documents
from shardmill.storage import REPLACEMENT, is_valid, replaced


def split_documents(raw: bytes, separator: bytes) -> tuple[Documents, NDArray[np.int64]]:
    """The documents between separators, and where in `raw` each begins; an empty piece at the end is none.

    They are left where they are, with the separators in the gaps between them.
    """
    data = np.frombuffer(raw, np.uint8)
    offsets = _offsets(data, separator)
    if is_valid(separator):
        if is_valid(raw):
            return Documents(data, offsets, gap=separator), offsets[:-1]
        if REPLACEMENT not in separator:
            # A separator of whole characters is found in the replaced text exactly where it stood before.
            fixed = np.frombuffer(replaced(raw)[0], np.uint8)
            ends = _offsets(fixed, separator)
            repairs = _replacements(fixed, ends) - _replacements(data, offsets)
            return Documents(fixed, ends, repairs=repairs, gap=separator), offsets[:-1]
    return _fixed(raw.split(separator)[: len(offsets) - 1]), offsets[:-1]


def _offsets(data: NDArray[np.uint8], separator: bytes) -> NDArray[np.int64]:
    """Where the documents begin, and where one after the last would."""
    starts = np.concatenate([np.zeros(1, np.int64), occurrences(data, separator) + len(separator)])
    return starts if starts[-1] == len(data) else np.append(starts, len(data) + len(separator))


def _replacements(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often U+FFFD stands in each row."""
    rows = np.searchsorted(offsets, occurrences(data, REPLACEMENT), side="right") - 1
    return np.bincount(rows, minlength=len(offsets) - 1)


def rows_between(raw: bytes, bounds: NDArray[np.int64]) -> Documents:
    """The rows between the bounds, which stand between whole characters, so that each row is replaced on its own."""
    data = np.frombuffer(raw, np.uint8)
    if bounds[0]:
        data = data[bounds[0] :]
    offsets = bounds - bounds[0]
    if _are_valid(data, offsets):
        return Documents(data, offsets)
    ends = bounds.tolist()
    return _fixed(raw[a:b] for a, b in pairwise(ends))


def _are_valid(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Whether each row is UTF-8: all of them together are, and none begins inside a character."""
    begins = offsets[1:-1]
    return is_valid(data[offsets[0] : offsets[-1]]) and not np.any(data[begins[begins < len(data)]] & 0xC0 == 0x80)


def _fixed(pieces: Iterable[bytes]) -> Documents:
    rows = [replaced(piece) for piece in pieces]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row, _ in rows], out=offsets[1:])
    data = np.frombuffer(b"".join(row for row, _ in rows), np.uint8)
    return Documents(data, offsets, repairs=np.array([count for _, count in rows], np.int64))


def join(found: list[Documents]) -> Documents:
    """The rows of several chunks as one."""
    if len(found) == 1:
        return found[0]
    if not found:
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64))
    found = [packed(d) for d in found]
    data = np.concatenate([d.data[d.offsets[0] : d.offsets[-1]] for d in found])
    sizes = np.concatenate([np.diff(d.offsets) for d in found])
    tail = None if found[0].tail is None else np.concatenate([d.tail for d in found if d.tail is not None])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Documents(data, offsets, spans=any(d.spans for d in found), tail=tail)


def packed(documents: Documents) -> Documents:
    """The same without what stands between the rows."""
    if not documents.gap:
        return documents
    ends = documents.offsets[1:] - len(documents.gap)
    between = (ends[:-1, None] + np.arange(len(documents.gap))).ravel()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.lengths)])
    return replace(documents, data=np.delete(documents.data, between), offsets=offsets, gap=b"")
