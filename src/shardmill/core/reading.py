"""The core's functions for reading: JSON Lines, separators, UTF-8, normal forms, hashes of documents, parquet pages.

simd=False uses plain C, which gives the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.core import checked, library

TAKEN, BLANK, LEFT = range(3)
ODD_KINDS = ("control", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>", r"\x1e")
"""What `odd_counts` counts: control characters that text seldom holds, and texts that separate documents."""
_NEWLINE = 10


class JsonLines(NamedTuple):
    """One field of some lines, for the lines that the fast parser could read."""

    text: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Line i has the text text[offsets[i] : offsets[i + 1]], which is empty unless its verdict is TAKEN."""
    verdicts: NDArray[np.uint8]
    """TAKEN, BLANK, or LEFT to Python's parser."""
    starts: NDArray[np.int64]
    """Where each line begins, and where the last one ends."""


def json_lines(block: bytes, path: Sequence[str], *, simd: bool = True) -> JsonLines:
    """The field at the path of each line that the fast parser can read; the others are LEFT."""
    functions = library()
    most = functions.sm_count(block, len(block), _NEWLINE, simd) + (block[-1:] != b"\n")
    # Half of a surrogate pair, which a command line may hold, becomes bytes that no valid line has.
    names = [name.encode("utf-8", "surrogatepass") for name in path]
    joined, ends = b"".join(names), np.cumsum([len(name) for name in names], dtype=np.int64)
    text = np.empty(len(block), np.uint8)
    starts, offsets = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    verdicts = np.empty(most, np.uint8)
    count = functions.sm_json_lines(
        block,
        len(block),
        joined,
        ends.ctypes.data,
        len(names),
        text.ctypes.data,
        len(text),
        starts.ctypes.data,
        offsets.ctypes.data,
        verdicts.ctypes.data,
        most,
        simd,
    )
    checked(count)
    offsets, starts = offsets[: count + 1], starts[: count + 1]
    return JsonLines(text[: offsets[-1]], offsets, verdicts[:count], starts)


def is_utf8(data: bytes | NDArray[np.uint8], *, simd: bool = True) -> bool:
    """Whether the bytes are UTF-8."""
    held = np.frombuffer(data, np.uint8)
    return bool(library().sm_utf8_valid(held.ctypes.data, len(held), simd))


def count(data: bytes, byte: int, *, simd: bool = True) -> int:
    """How often a byte occurs."""
    return int(library().sm_count(data, len(data), byte, simd))


def find(data: NDArray[np.uint8], separator: bytes, *, simd: bool = True) -> NDArray[np.int64]:
    """Where the separator occurs, as `bytes.split` finds it: from the left, without overlaps."""
    data = np.ascontiguousarray(data)
    room = len(data) // 32  # more than that is rare, and searched for again: counting first would cost more
    while True:
        places = np.empty(room, np.int64)
        count = checked(
            library().sm_find(data.ctypes.data, len(data), separator, len(separator), places.ctypes.data, room, simd)
        )
        if count <= room:
            return places[:count].copy()
        room = count


def not_normal(data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int) -> NDArray[np.bool_]:
    """Which rows may not be in the normal form C, as the library `tokenizers` makes it; of the others it is certain."""
    flags = np.empty(len(offsets) - 1, np.uint8)
    data, offsets = np.ascontiguousarray(data), np.ascontiguousarray(offsets, np.int64)
    checked(
        library().sm_not_normal(data.ctypes.data, len(data), offsets.ctypes.data, len(flags), gap, flags.ctypes.data)
    )
    return flags.view(np.bool_)


def odd_counts(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int, ends: NDArray[np.int64], *, simd: bool = True
) -> NDArray[np.int64] | None:
    """How often each of ODD_KINDS occurs in the rows up to each of the ends; None: nowhere."""
    data, offsets = np.ascontiguousarray(data), np.ascontiguousarray(offsets, np.int64)
    ends, rows = np.ascontiguousarray(ends, np.int64), len(offsets) - 1
    counts = np.zeros((len(ends), len(ODD_KINDS)), np.int64)
    found = checked(library().sm_odd(
        data.ctypes.data, len(data), offsets.ctypes.data, rows, gap, ends.ctypes.data, len(ends), counts.ctypes.data,
        simd,
    ))  # fmt: skip
    return counts if found else None


def content_hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, gap: int = 0) -> NDArray[np.uint64]:
    """A 64-bit hash of the first 64 KiB of each row, for `run/splits.py`."""
    rows = len(offsets) - 1
    hashes = np.empty(rows, np.uint64)
    data, offsets = np.ascontiguousarray(data), np.ascontiguousarray(offsets, np.int64)
    seed &= 0xFFFF_FFFF_FFFF_FFFF
    checked(
        library().sm_content_hash(data.ctypes.data, len(data), offsets.ctypes.data, rows, gap, seed, hashes.ctypes.data)
    )
    return hashes


def gathered(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Copy these parts of the data, one after another; an error where one is not inside it."""
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int64)
    out = np.empty(max(0, int(lengths.sum())), np.uint8)
    end = library().sm_gather(
        data.ctypes.data, len(data), starts.ctypes.data, lengths.ctypes.data, len(starts), out.ctypes.data, len(out)
    )
    checked(end)
    return out


def read_parts(
    file: int,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Read parts of an open file, each to its place in `out`. False: the file is too short for one of them.

    An error where a place is outside of `out`, or the file cannot be read.
    """
    columns = [np.ascontiguousarray(column, np.int64) for column in (starts, lengths, places)]
    rows = len(columns[0])
    if not len(columns[1]) == len(columns[2]) == rows or not out.flags.c_contiguous:
        checked(-1)
    found = library().sm_read_parts(file, *(column.ctypes.data for column in columns), rows, out.ctypes.data, len(out))
    return checked(found) == rows
