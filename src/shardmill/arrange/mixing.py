"""In which order documents of several sources make a mixture with given shares of tokens.

`due(source, n)` is how many tokens of a source belong to the first n of the mixture: a line whose slope is the source's
share, with a knot where a stage begins. The key of a document is the token of the mixture at which its middle is due,
so a mixture is a sort by key, and any place can be found without the places before it. A source that is repeated goes
on counting its tokens from one epoch to the next.

All is computed in whole numbers: shares have a common denominator, and keys are counted in 1 / KEY_UNITS of a token,
rounded down. Documents with the same key stand in the order of their sources, and then in the order of their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_UNITS = 1 << 16
"""Keys of one token."""
NEVER = (1 << 64) - 1
"""The key of a document that is not due before token MOST_TOKENS, or never, since its source has no share any more."""
MOST_TOKENS = 1 << 48
MOST_PARTS = 1 << 20
"""The largest common denominator of all shares."""
_LOW_BITS = 20  # of a number of tokens, so that its product with a share fits into 64 bits


@dataclass(frozen=True)
class Stage:
    """Weights from one token of the mixture on; only their ratio counts."""

    start: int
    weights: tuple[Fraction, ...]


@dataclass(frozen=True)
class _Knot:
    """Where a stage begins, for one source."""

    start: int
    """Token of the mixture."""
    due: int
    """Parts of tokens of the source that are due before it: `parts` are one token."""
    share: int
    """Parts of each token of the stage that belong to the source."""


class Mixture:
    """The shares of some sources, in stages."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """UsageError if stages are not in order, or weights are not usable."""
        _check(stages)
        shares = [[weight / sum(stage.weights) for weight in stage.weights] for stage in stages]
        self._parts = lcm(*(share.denominator for line in shares for share in line))
        if self._parts > MOST_PARTS:
            raise UsageError(
                f"these weights have a common denominator of {self._parts:,}, more than {MOST_PARTS:,}",
                hint="round them to fewer digits",
            )
        self.sources = len(stages[0].weights)
        self._knots = [
            _knots([stage.start for stage in stages], [int(line[source] * self._parts) for line in shares])
            for source in range(self.sources)
        ]

    def shares(self, source: int) -> list[Fraction]:
        """Return the share of a source in each stage."""
        return [Fraction(knot.share, self._parts) for knot in self._knots[source]]

    def due(self, source: int, tokens: int | Fraction) -> Fraction:
        """Return how many tokens of a source belong to the first tokens of the mixture."""
        knot = [knot for knot in self._knots[source] if knot.start <= tokens][-1]
        return Fraction(knot.due + (tokens - knot.start) * knot.share) / self._parts

    def epochs(self, source: int, tokens: int, size: int) -> Fraction:
        """Return how often a source of `size` tokens is used in the first tokens of the mixture."""
        if not size and self.due(source, tokens):
            raise UsageError("a source without tokens cannot have a share")
        return self.due(source, tokens) / size if size else Fraction(0)

    def bound(self, source: int, longest: Sequence[int]) -> Fraction:
        """Return by how many tokens a source may be off its share, after any document of the mixture.

        `longest`: tokens of the longest document of each source. When all documents with keys up to some token are
        out, each source is off by at most half of its longest document, and the other sources move that token.
        """
        others = sum(longest) - longest[source]
        halves = [(1 - share) * longest[source] + share * others for share in self.shares(source)]
        return max(halves) / 2 + Fraction(1, KEY_UNITS)

    def keys(self, source: int, before: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the keys of documents of a source, ascending if they follow each other.

        `before`: tokens of the source before each document, over all epochs; less than 2^57.
        """
        middles = 2 * before.astype(np.uint64) + lengths.astype(np.uint64)  # in half tokens
        knots = self._knots[source]
        begins = np.array([-(-2 * knot.due // self._parts) for knot in knots], np.uint64)
        stages = np.searchsorted(begins, middles, side="right") - 1
        keys = np.empty(len(middles), np.uint64)
        for number, knot in enumerate(knots):
            here = np.flatnonzero(stages == number)
            if len(here):
                keys[here] = self._keys_after(knot, middles[here])
        return keys

    def _keys_after(self, knot: _Knot, middles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The keys of documents whose middles are due after a knot, and before the next."""
        if not knot.share:
            return np.full(len(middles), NEVER, np.uint64)
        # Half tokens that are due at the knot: whole ones, and a part of one.
        whole, part = divmod(2 * knot.due, self._parts)
        wanted = 2 * knot.share  # parts of a half token that come with each token of the mixture
        tokens, rest = _scaled(middles - np.uint64(whole), self._parts, part, wanted)
        tokens += np.uint64(knot.start)
        keys = tokens * np.uint64(KEY_UNITS) + rest * np.uint64(KEY_UNITS) // np.uint64(wanted)
        return np.where(tokens < np.uint64(MOST_TOKENS), keys, np.uint64(NEVER))


def merge(keys: Sequence[NDArray[np.uint64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return source and number of every document in the order of the mixture, given the keys of each source."""
    order = np.argsort(np.concatenate(keys), kind="stable")
    starts = np.cumsum([0, *map(len, keys)])
    sources = np.searchsorted(starts, order, side="right") - 1
    return sources, order - starts[sources]


def _scaled(
    values: NDArray[np.uint64], factor: int, less: int, divisor: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return quotient and remainder of (values · factor - less) / divisor, in steps that fit into 64 bits.

    `factor` and `less` are at most MOST_PARTS, `divisor` twice that. Quotients above MOST_TOKENS are too small, but not
    below it.
    """
    bits, one = np.uint64(_LOW_BITS), np.uint64(1)
    high, low = values >> bits, values & ((one << bits) - one)
    quotient, remainder = np.divmod(high * np.uint64(factor), np.uint64(divisor))
    rest = (remainder << bits) + low * np.uint64(factor)
    # What `less` lacks is borrowed from the high part.
    borrowed = (rest < np.uint64(less)).astype(np.uint64)
    rest += (borrowed << bits) * np.uint64(divisor) - np.uint64(less)
    more, remainder = np.divmod(rest, np.uint64(divisor))
    quotient = np.minimum(quotient - borrowed, np.uint64(MOST_TOKENS >> _LOW_BITS))
    return (quotient << bits) + more, remainder


def _knots(starts: list[int], shares: list[int]) -> list[_Knot]:
    knots, due = list[_Knot](), 0
    for number, (start, share) in enumerate(zip(starts, shares, strict=True)):
        if number:
            due += (start - starts[number - 1]) * shares[number - 1]
        knots.append(_Knot(start, due, share))
    return knots


def _check(stages: Sequence[Stage]) -> None:
    starts = [stage.start for stage in stages]
    if not starts or starts[0] or any(after <= before for before, after in pairwise(starts)):
        raise UsageError("the first stage of a mixture begins at token 0, and each other one after the one before")
    if len({len(stage.weights) for stage in stages}) > 1:
        raise UsageError("every stage has a weight for every source")
    if any(min(stage.weights, default=-1) < 0 or not sum(stage.weights) for stage in stages):
        raise UsageError("weights are not negative, and one of each stage is more than 0")
