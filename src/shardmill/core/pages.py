"""The core's functions for parquet pages. They return None or a negative number where the bytes are damaged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.core import library

Places = NDArray[np.int64]
_Data = NDArray[np.uint8]


def find_texts(data: _Data, at: int, rows: int) -> tuple[Places, Places, int]:
    """Where the texts from `at` on are, each after its length in four bytes; their lengths; where the last ends."""
    starts, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    end = library().sm_texts(data.ctypes.data, len(data), at, rows, starts.ctypes.data, lengths.ctypes.data)
    return starts, lengths, end


def gather(data: _Data, starts: Places, lengths: Places, prefixes: Places | None, out: _Data, at: int) -> int:
    """Copy texts into `out` from `at` on, each after a prefix of the one before it; returns where they end."""
    end: int = library().sm_gather(
        data.ctypes.data,
        len(data),
        starts.ctypes.data,
        lengths.ctypes.data,
        None if prefixes is None else prefixes.ctypes.data,
        len(starts),
        out.ctypes.data,
        at,
        len(out),
    )
    return end


def snappy(stored: _Data, size: int) -> _Data | None:
    """The bytes that Snappy has compressed, if they are exactly `size`."""
    out = np.empty(size, np.uint8)
    made = library().sm_snappy(stored.ctypes.data, len(stored), out.ctypes.data, size)
    return out if made == size else None
