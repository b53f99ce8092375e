"""Parts of a source that can be read by themselves, which is what samples are made of.

The parts of a source cover it, and a record belongs to the one in which it begins. So parts that are drawn with the
probability of what they weigh are a sample without bias, however long a record is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardmill.documents.chunks import Position

# A part that weighs more than so many times what was asked for is divided; a group that is read whole is known exactly.
LARGE_PART = 16
Parts = Sequence[tuple[int, int]]
"""Rows, and what they weigh: bytes that are about those of their text."""


class Stretch(NamedTuple):
    """The records that begin from one place of a source to another."""

    start: Position
    """Where reading begins: perhaps at the beginning of a record that reaches into it."""
    begin: int
    """Bytes of text, or rows, as `end` is."""
    end: int
    share: float
    """Of all of the source, by what the stretches were drawn by."""


def cell(size: int, share: float, width: int) -> tuple[int, int]:
    """Begin and end of the part that a share (0 to 1) falls into, where all parts have about this width."""
    count = max(1, round(size / max(1, width)))
    number = min(int(share * count), count - 1)
    return size * number // count, size * (number + 1) // count


def pick(parts: Parts, share: float, size: int) -> tuple[int, int, float, float]:
    """The parts, joined to about `size`, that a share of their weight falls into.

    Gives the first, the one behind the last, the share of them at which it falls, and their share of all.
    """
    weights = np.array([max(1, weight) for _, weight in parts], np.int64)
    ends = np.cumsum(weights)
    total = int(ends[-1])
    joined = (ends - weights) // max(1, size)
    hit = min(int(np.searchsorted(ends, share * total, side="right")), len(parts) - 1)
    first, last = (int(np.searchsorted(joined, joined[hit], side=side)) for side in ("left", "right"))
    begin, end = int(ends[first] - weights[first]), int(ends[last - 1])
    return first, last, min(1.0, max(0.0, (share * total - begin) / (end - begin))), (end - begin) / total


def evenly(part: tuple[int, int], size: int) -> Parts:
    """A part divided into pieces of equally many rows that weigh about `size`."""
    rows, weight = part
    count = max(1, min(rows, weight // max(1, size)))
    bounds = [rows * i // count for i in range(count + 1)]
    return [(end - begin, weight // count) for begin, end in pairwise(bounds)]
