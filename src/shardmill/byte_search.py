"""Searches for rare values in long arrays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from shardmill import core
from shardmill.core import find

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sparse_nonzero(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return what `np.flatnonzero` does, in two thirds of its time if few flags are set: eight flags are one word."""
    even = len(flags) & ~7
    eights = flags[:even].view(np.uint64)
    words = np.flatnonzero(eights != 0)
    found = np.flatnonzero(eights[words].view(np.bool_))
    rest = np.flatnonzero(flags[even:])
    return np.concatenate([words[found >> 3] * 8 + (found & 7), rest + even])


def occurrences(data: NDArray[np.uint8], pattern: bytes) -> NDArray[np.int64]:
    """Return where `pattern` begins, as `bytes.split` finds it: from the left, without overlaps."""
    return find(data, pattern) if core.available() else numpy_occurrences(data, pattern)


def numpy_occurrences(data: NDArray[np.uint8], pattern: bytes) -> NDArray[np.int64]:
    """`occurrences` without the core."""
    size = len(pattern)
    rarest = min(range(size), key=lambda i: _frequency(pattern[i]))
    last = len(data) - size
    if last < 0:
        return np.empty(0, np.int64)
    at = sparse_nonzero(data[rarest : last + rarest + 1] == pattern[rarest])
    for i in range(size):
        if i != rarest:
            at = at[data[at + i] == pattern[i]]
    if len(at) < 2 or int(np.diff(at).min()) >= size:
        return at
    return np.fromiter((match.start() for match in re.finditer(re.escape(pattern), data.data)), np.int64)


def _frequency(byte: int) -> int:
    """A guess at how common a byte is in text: letters and spaces most, then control characters and digits."""
    if byte > 127 or 97 <= byte <= 122 or byte == 32:
        return 2
    return 1 if byte < 32 or chr(byte).isalnum() else 0
