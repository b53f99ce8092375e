"""A pseudo-random permutation of any size that needs no memory for the order.

A Feistel network permutes the numbers below a power of four. A result that is too large is permuted again until it is
small enough. That is a permutation whatever the round function is: no number occurs twice, and none is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Permutation:
    """Of the numbers 0 … size - 1, chosen by a key."""

    def __init__(self, size: int, *key: int) -> None:
        self.size = size
        self._half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
        self._low = np.uint64((1 << self._half) - 1)
        state = 0
        for part in key:
            state = mixed(state ^ (part & _MASK))
        self._keys = [np.uint64(mixed(state + i)) for i in range(1, _ROUNDS + 1)]

    def __call__(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers at some places of the order."""
        values = self._shuffled(places.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = self._shuffled(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _shuffled(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half = np.uint64(self._half)
        left, right = values >> half, values & self._low
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._low)
        return (left << half) | right


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood's splitmix64: every bit of the result depends on every bit of the number."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mixed(value: int) -> int:
    """`mix` for a single number."""
    return int(mix(np.array([value & _MASK], np.uint64))[0])
