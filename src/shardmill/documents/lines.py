"""Where the lines of a chunk begin and end, found without a loop over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.byte_search import places

_NEWLINE, _RETURN, _SPACE, _TAB, _OPEN, _CLOSE = b"\n\r \t{}"

WHITE = b" \t\r"
# Each pass takes one white space from the lines that still have one; most files need none, or one for \r\n.
PASSES = 4


class Lines(NamedTuple):
    """The lines that are not blank, without the white space around them."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Of each: which line it is, blank ones counted."""
    plain: NDArray[np.bool_]
    """Of each: it begins with { and ends with }. An object that begins in such a line cannot go on in the next."""
    total: int
    """All lines, blank ones included."""


def find_lines(raw: bytes) -> Lines:
    """The lines of the bytes; the last may lack its newline."""
    data = np.frombuffer(raw, np.uint8)
    ends = places(data == _NEWLINE)
    if len(raw) and raw[-1] != _NEWLINE:
        ends = np.append(ends, len(raw))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else ends
    count = len(ends)
    numbers = np.arange(count)
    padded = numbers
    for _ in range(PASSES):
        padded = padded[(ends[padded] > starts[padded]) & _white(data[np.maximum(ends[padded] - 1, 0)])]
        if not len(padded):
            break
        ends[padded] -= 1
    for i in padded:
        ends[i] = starts[i] + len(raw[starts[i] : ends[i]].rstrip(WHITE))
    padded = numbers
    for _ in range(PASSES):
        padded = padded[(ends[padded] > starts[padded]) & _white(data[np.minimum(starts[padded], len(data) - 1)])]
        if not len(padded):
            break
        starts[padded] += 1
    for i in padded:
        starts[i] = ends[i] - len(raw[starts[i] : ends[i]].lstrip(WHITE))
    full = ends > starts
    if not full.all():
        starts, ends, numbers = starts[full], ends[full], numbers[full]
    plain = (data[starts] == _OPEN) & (data[ends - 1] == _CLOSE) if len(starts) else np.empty(0, np.bool_)
    return Lines(starts, ends, numbers, plain, count)


def _white(byte: NDArray[np.uint8]) -> NDArray[np.bool_]:
    white: NDArray[np.bool_] = (byte == _SPACE) | (byte == _TAB) | (byte == _RETURN)
    return white
