"""Which documents go to val: a function of their content and the seed, never of where they stood.

Duplicates hash alike, so they fall on one side; and the split of a document does not change when files are
added, renamed or cut in another way. Only the first 64 KiB of a document are looked at, so that the split of one that
does not fit in memory is known from its first piece; of those, 16 words of eight bytes spread evenly (all of a text of
up to 128 bytes), so that it costs less than a microsecond a document. Two documents that differ nowhere else share
a side, which for near-duplicates is what one wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardmill import core
from shardmill.core.reading import content_hash as core_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFIX = 65536
_WORDS = 16
_SHORT = 64
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_TOGETHER = 4096  # rows: their words make two megabytes
_FACTORS = np.cumprod(np.full(_WORDS, 0xD1342543DE82EF95, dtype=np.uint64))


def in_val(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], fraction: float, seed: int, gap: int = 0
) -> NDArray[np.bool_]:
    """For each row data[offsets[i] : offsets[i+1] - gap] whether its content puts it into val."""
    if fraction >= 1:
        return np.ones(len(offsets) - 1, dtype=np.bool_)
    return content_hash(data, offsets, seed, gap) < np.uint64(int(fraction * 2.0**64))


def content_hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, gap: int = 0) -> NDArray[np.uint64]:
    """A 64-bit hash of each row."""
    return core_hash(data, offsets, seed, gap) if core.available() else numpy_hash(data, offsets, seed, gap)


def numpy_hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, gap: int = 0) -> NDArray[np.uint64]:
    """The same where there is no core."""
    starts = offsets[:-1]
    lengths = np.minimum(np.diff(offsets) - gap, PREFIX)
    hashes = np.full(len(starts), np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF), dtype=np.uint64)
    _stir(hashes, lengths.astype(np.uint64))
    for some, words in (
        (np.flatnonzero(lengths < 8), 0),
        (np.flatnonzero((lengths >= 8) & (lengths <= _SHORT)), _SHORT // 8),
        (np.flatnonzero(lengths > _SHORT), _WORDS),
    ):
        if len(some):
            part = hashes[some]
            if words:
                _hash_words(part, data, starts[some], lengths[some], words)
            else:
                _hash_bytes(part, data, starts[some], lengths[some])
            hashes[some] = part
    _stir(hashes, np.zeros_like(hashes))
    return hashes


def _hash_words(
    hashes: NDArray[np.uint64],
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    words: int,
) -> None:
    # Every byte offset as the start of a little-endian word: a view, nothing is copied.
    every: NDArray[np.uint64] = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    steps = np.arange(words)
    for first in range(0, len(starts), _TOGETHER):
        some = slice(first, first + _TOGETHER)
        at = starts[some, None] + (lengths[some, None] - 8) * steps // (words - 1)
        # Odd factors: one word that differs is enough for another sum.
        _stir(hashes[some], (every[at] * _FACTORS[:words]).sum(axis=1, dtype=np.uint64))


def _hash_bytes(
    hashes: NDArray[np.uint64], data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    word = np.zeros(len(starts), dtype=np.uint64)
    last = len(data) - 1
    for i in range(7):
        byte = data[np.minimum(starts + i, last)].astype(np.uint64) if last >= 0 else word
        word |= np.where(i < lengths, byte << np.uint64(8 * i), np.uint64(0))
    _stir(hashes, word)


def _stir(hashes: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    hashes ^= words
    hashes *= _PRIME
    hashes ^= hashes >> _SHIFT
    hashes *= _PRIME
    hashes ^= hashes >> np.uint64(32)
