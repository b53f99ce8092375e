"""A pseudo-random order of any number of things that needs no memory, and its inverse.

A Feistel network permutes the numbers below a power of two. A result that is too large is permuted again until it is
small enough. That is a permutation whatever the round function is: no number occurs twice, and none is left out.
Files that are shuffled and the loader use the same order.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 12
_ROUNDS_OF_FEW, _FEW = 32, 256
"""Few numbers have few bits, and need more rounds until every order is equally likely (tests/test_permutation.py)."""
_BLOCK = 1 << 14  # numbers that are permuted at once, so that they stay in the CPU's cache


class Permutation:
    """Of the numbers 0 … size - 1, chosen by a key."""

    def __init__(self, size: int, *key: int | str) -> None:
        self.size = size
        bits = max(2, max(1, size - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << bits // 2) - 1)
        self._high = np.uint64((1 << bits - bits // 2) - 1)
        rounds = _ROUNDS_OF_FEW if size < _FEW else _ROUNDS
        digest = hashlib.shake_256(json.dumps(key).encode()).digest(8 * rounds)
        self._keys = list(enumerate(np.frombuffer(digest, "<u8")))

    def __call__(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers at some places of the order."""
        return self._permuted(places, self._keys)

    def places(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of some numbers in the order."""
        return self._permuted(numbers, self._keys[::-1])

    def _permuted(self, values: NDArray[Any], keys: list[tuple[int, np.uint64]]) -> NDArray[np.int64]:
        out = np.empty(len(values), np.int64)
        for start in range(0, len(values), _BLOCK):
            some = self._round_trip(values[start : start + _BLOCK].astype(np.uint64), keys)
            outside = np.flatnonzero(some >= self.size)
            while len(outside):
                some[outside] = self._round_trip(some[outside], keys)
                outside = outside[some[outside] >= self.size]
            out[start : start + _BLOCK] = some
        return out

    def _round_trip(self, values: NDArray[np.uint64], keys: list[tuple[int, np.uint64]]) -> NDArray[np.uint64]:
        high, low = values >> self._low_bits, values & self._low
        for i, key in keys:
            if i % 2:
                low = low ^ (mix(high ^ key) & self._low)
            else:
                high = high ^ (mix(low ^ key) & self._high)
        return (high << self._low_bits) | low


class Permutations:
    """One permutation of the numbers below each of some sizes; many of them are applied at once."""

    def __init__(self, sizes: NDArray[Any], *key: int | str) -> None:
        self._sizes = sizes.astype(np.int64)
        self._key = key

    def __call__(self, which: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return what each number becomes in a permutation, which is chosen by its place in `sizes`."""
        out = np.empty(len(numbers), np.int64)
        few = self._sizes[which] < _FEW
        for rounds, chosen in ((_ROUNDS_OF_FEW, np.flatnonzero(few)), (_ROUNDS, np.flatnonzero(~few))):
            for start in range(0, len(chosen), _BLOCK):
                some = chosen[start : start + _BLOCK]
                out[some] = self._permuted(which[some], numbers[some], rounds)
        return out

    def _permuted(self, which: NDArray[Any], numbers: NDArray[Any], rounds: int) -> NDArray[np.uint64]:
        digest = hashlib.shake_256(json.dumps([*self._key, rounds]).encode()).digest(8 * rounds)
        keys, own = np.frombuffer(digest, "<u8"), mix(which.astype(np.uint64))
        sizes, values = self._sizes[which].astype(np.uint64), numbers.astype(np.uint64)
        # The number of bits of the largest number, two at the least.
        bits = np.maximum(np.frexp(np.maximum(self._sizes[which] - 1, 1).astype(np.float64))[1], 2).astype(np.uint64)
        low_bits = bits // np.uint64(2)
        one = np.uint64(1)
        low, high = (one << low_bits) - one, (one << (bits - low_bits)) - one
        at = np.arange(len(values))
        while len(at):
            right, left = values[at] & low[at], values[at] >> low_bits[at]
            for number, key in enumerate(keys):
                if number % 2:
                    right ^= mix(left ^ key ^ own[at]) & low[at]
                else:
                    left ^= mix(right ^ key ^ own[at]) & high[at]
            values[at] = (left << low_bits[at]) | right
            at = at[values[at] >= sizes[at]]
        return values


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood's splitmix64: every bit of the result depends on every bit of the number."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def mixed(value: int) -> int:
    """`mix` for a single number."""
    return int(mix(np.array([value & ((1 << 64) - 1)], np.uint64))[0])
