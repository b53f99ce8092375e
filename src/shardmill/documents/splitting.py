"""Bytes of text as rows of valid UTF-8, split at a separator or at given places, without a loop over documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardmill.byte_search import occurrences
from shardmill.documents.chunks import Documents
from shardmill.storage import PLAIN_PYTHON, REPLACEMENT, is_valid, replaced


def split_documents(raw: bytes, separator: bytes, *, gaps: bool = False) -> tuple[Documents, NDArray[np.int64]]:
    """The documents between separators, and where in `raw` each begins; an empty piece at the end is none.

    With `gaps` they are left where they are if that can be done and is worth it: nothing is copied.
    """
    if (
        gaps
        and len(raw) > PLAIN_PYTHON
        and is_valid(raw)
        and (found := occurrences(np.frombuffer(raw, np.uint8), separator)) is not None
    ):
        return _as_they_stand(raw, separator, found)
    data, offsets = _split(raw, separator)
    starts = offsets[:-1] + len(separator) * np.arange(len(offsets) - 1)
    if _are_valid(data, offsets):
        return Documents(data, offsets), starts
    if REPLACEMENT not in separator and is_valid(separator):
        # A separator of whole characters is found in the replaced text exactly where it stood before.
        fixed, _ = replaced(raw)
        before = _replacements(data, offsets)
        data, offsets = _split(fixed, separator)
        return Documents(data, offsets, repairs=_replacements(data, offsets) - before), starts
    bounds = offsets.tolist()
    return _fixed(data[a:b].tobytes() for a, b in pairwise(bounds)), starts


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


def _as_they_stand(raw: bytes, separator: bytes, found: NDArray[np.int64]) -> tuple[Documents, NDArray[np.int64]]:
    starts = np.concatenate([np.zeros(1, np.int64), found + len(separator)])
    offsets = starts if starts[-1] == len(raw) else np.append(starts, len(raw) + len(separator))
    return Documents(np.frombuffer(raw, np.uint8), offsets, gap=separator), offsets[:-1]


def _split(raw: bytes, separator: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # A tenth of a second, which text that is split otherwise is spared.
    import pyarrow as pa
    import pyarrow.compute as pc

    if not raw:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = pa.py_buffer(np.array([0, len(raw)], np.int64))
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(raw)])
    pieces = pc.split_pattern(whole, pattern=separator).values
    _, ends, data = pieces.buffers()
    offsets = np.frombuffer(ends, np.int64, len(pieces) + 1)
    if offsets[-1] == offsets[-2]:
        offsets = offsets[:-1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)), offsets


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


def _replacements(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often U+FFFD stands in each row."""
    first, second, third = REPLACEMENT
    found = np.flatnonzero((data[:-2] == first) & (data[1:-1] == second) & (data[2:] == third))
    row = np.searchsorted(offsets, found, side="right") - 1
    return np.bincount(row[found + len(REPLACEMENT) <= offsets[row + 1]], minlength=len(offsets) - 1)


def join(found: list[Documents]) -> Documents:
    """The rows of several chunks as one."""
    if len(found) == 1:
        return found[0]
    if not found:
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64))
    if any(d.gap for d in found):
        found = [_packed(d) for d in found]
    data = np.concatenate([d.data[d.offsets[0] : d.offsets[-1]] for d in found])
    if len(data) and max(map(len, found)) == 1 == min(map(len, found)):  # tiny files
        sizes = np.array([d.offsets[1] - d.offsets[0] for d in found], np.int64)
    else:
        sizes = np.concatenate([np.diff(d.offsets) for d in found])
    tail = None if found[0].tail is None else np.concatenate([d.tail for d in found if d.tail is not None])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Documents(data, offsets, spans=any(d.spans for d in found), tail=tail)


def _packed(documents: Documents) -> Documents:
    """The same without what stands between the rows."""
    if not documents.gap:
        return documents
    ends = documents.offsets[1:] - len(documents.gap)
    between = (ends[:-1, None] + np.arange(len(documents.gap))).ravel()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.lengths)])
    return replace(documents, data=np.delete(documents.data, between), offsets=offsets, gap=b"")
