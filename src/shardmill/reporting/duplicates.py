"""Documents that occur more than once, by a hash of their tokens, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 1 << 19  # hashes that are kept
_STEP, _TOKEN, _MIX = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def token_hashes(tokens: NDArray[np.unsignedinteger], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a hash of each token and its place in its document; their sum is the hash of the document."""
    mixed = tokens.astype(np.uint64) * _TOKEN + places.astype(np.uint64) * _STEP
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(31)
    mixed *= _TOKEN
    return mixed


class Duplicates:
    """Counts equal documents of several splits.

    At most `most` different hashes are kept. If there are more, only hashes below a limit count, which is halved as
    often as needed: they are a random sample of the documents, and a document is in it with all its copies.
    """

    def __init__(self, splits: Sequence[str], most: int = MOST) -> None:
        self._splits, self._most = list(splits), most
        self._values: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._counts = np.empty((0, len(splits)), np.int64)
        self._halved = 0

    @property
    def exact(self) -> bool:
        return self._halved == 0

    def add(self, split: str, hashes: NDArray[np.uint64]) -> None:
        """Count some documents of a split."""
        for first in range(0, len(hashes), self._most):
            self._merge(self._splits.index(split), self._sampled(hashes[first : first + self._most]))
            while len(self._values) > self._most:
                self._halved += 1
                kept = self._sampled(self._values)
                self._values, self._counts = kept, self._counts[: len(kept)]  # the values are sorted

    def repeated(self, split: str) -> int:
        """Return how many documents of a split occur in it before; about, unless `exact`."""
        counts = self._counts[:, self._splits.index(split)]
        return int(np.maximum(counts - 1, 0).sum()) << self._halved

    def shared(self, split: str, other: str) -> int:
        """Return how many documents of a split occur in the other one too; about, unless `exact`."""
        here, there = (self._counts[:, self._splits.index(name)] for name in (split, other))
        return int(here[there > 0].sum()) << self._halved

    def _sampled(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes <= np.uint64((1 << 64 - self._halved) - 1)]

    def _merge(self, split: int, hashes: NDArray[np.uint64]) -> None:
        values, where = np.unique(np.concatenate([self._values, hashes]), return_inverse=True)
        counts = np.zeros((len(values), len(self._splits)), np.int64)
        counts[where[: len(self._values)]] = self._counts
        counts[:, split] += np.bincount(where[len(self._values) :], minlength=len(values))
        self._values, self._counts = values, counts
