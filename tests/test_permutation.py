"""The order of shuffled files and of the loader: every number once, invertible, and as even as a fair shuffle."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.permutation import Permutation

pytestmark = pytest.mark.thorough

SIZE, SEEDS = 40_000, 24
Order = Callable[[int], NDArray[np.int64]]


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 255, 256, 257, 65_536, 100_003])
def test_every_number_has_one_place_and_the_inverse_finds_it(size: int) -> None:
    permutation = Permutation(size, 7, "train")
    numbers = permutation(np.arange(size))
    assert sorted(numbers.tolist()) == list(range(size))
    assert (permutation.places(numbers) == np.arange(size)).all()


def test_every_key_gives_another_order() -> None:
    keys: list[tuple[int | str, ...]] = [
        (0,),
        (1,),
        ("0",),
        (0, 0),
        (0, 1),
        (1, 0),
        (-1,),
        (2**70,),
        (0, "train"),
        (0, "val"),
    ]
    orders = {tuple(Permutation(1000, *key)(np.arange(1000)).tolist()) for key in keys}
    assert len(orders) == len(keys)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_of_few_numbers_every_order_is_equally_likely(size: int) -> None:
    orders = factorial(size)
    expected = max(40, 3000 // orders)
    found = Counter(tuple(Permutation(size, seed)(np.arange(size)).tolist()) for seed in range(expected * orders))
    assert len(found) == orders
    squares = sum((count - expected) ** 2 / expected for count in found.values())
    assert abs(squares - (orders - 1)) / (2 * (orders - 1)) ** 0.5 < 5


@pytest.mark.parametrize("size", [8, 16, 40, 64, 128])
def test_every_number_is_equally_likely_at_every_place(size: int) -> None:
    counts, trials = np.zeros((size, size)), 3000
    for seed in range(trials):
        counts[np.arange(size), Permutation(size, seed)(np.arange(size))] += 1
    squares = ((counts - trials / size) ** 2).sum() / (trials / size)
    assert abs(squares - size * (size - 1)) / (2**0.5 * (size - 1)) < 5


def unevenness(order: Order) -> float:
    """The largest z of some statistics, over several seeds, each of which a fair shuffle keeps below 5."""
    worst = 0.0
    for statistic in (_drift, _jump, _neighbours, _parity, _pairs, _steps):
        values = [statistic(order(seed)) for seed in range(SEEDS)]
        mean, spread = float(np.mean(values)), float(np.std(FAIR[statistic], ddof=1)) or 1.0
        worst = max(
            worst,
            abs(mean - float(np.mean(FAIR[statistic]))) / (spread * (1 / SEEDS + 1 / len(FAIR[statistic])) ** 0.5),
        )
    return worst


def _drift(order: NDArray[np.int64]) -> float:
    """How far numbers stay near their old place."""
    return float(np.abs(order - np.arange(SIZE)).mean())


def _jump(order: NDArray[np.int64]) -> float:
    """How far neighbours in the new order were apart."""
    return float(np.abs(np.diff(order)).mean())


def _neighbours(order: NDArray[np.int64]) -> float:
    """How many neighbours in the new order were neighbours before."""
    return float(np.count_nonzero(np.abs(np.diff(order)) <= 10))


def _parity(order: NDArray[np.int64]) -> float:
    """How often even and odd numbers alternate."""
    return float(np.count_nonzero(np.diff(order % 2)))


def _pairs(order: NDArray[np.int64]) -> float:
    """How many differences there are, bit by bit, between two neighbouring places."""
    return float(len(np.unique(order[0::2] ^ order[1::2])))


def _steps(order: NDArray[np.int64]) -> float:
    """How many differences there are between two neighbouring places."""
    return float(len(np.unique(np.diff(order))))


FAIR = {
    statistic: [statistic(np.random.default_rng(1000 + seed).permutation(SIZE)) for seed in range(60)]
    for statistic in (_drift, _jump, _neighbours, _parity, _pairs, _steps)
}


def _buffer(seed: int) -> NDArray[np.int64]:
    """A buffer of 10,000 numbers: one is drawn, and the next takes its place."""
    random, held = np.random.default_rng(seed), list(range(10_000))
    out = []
    for number in range(10_000, SIZE):
        i = int(random.integers(10_000))
        out.append(held[i])
        held[i] = number
    return np.array([*out, *random.permutation(held)])


def _blocks(seed: int) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return np.concatenate([10_000 * i + random.permutation(10_000) for i in random.permutation(SIZE // 10_000)])


def _congruence(seed: int) -> NDArray[np.int64]:
    return (np.arange(SIZE) * 28_657 + 12_345 * seed) % SIZE


def _affine(seed: int) -> NDArray[np.int64]:
    """A Feistel network whose rounds only shift and add bits, cut to size."""
    left, right = np.arange(65_536) >> 8, np.arange(65_536) & 255
    for i in range(8):
        left, right = right, left ^ (((right << 1) ^ (right >> 3) ^ (seed * 31 + i)) & 255)
    order = (left << 8) | right
    return order[order < SIZE]


BAD = {"buffer": _buffer, "blocks": _blocks, "linear congruence": _congruence, "affine network": _affine}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_fair_shuffle_is_found_out(name: str) -> None:
    assert all(sorted(BAD[name](seed).tolist()) == list(range(SIZE)) for seed in (0, 1))
    assert unevenness(BAD[name]) > 20


def test_the_order_is_as_even_as_a_fair_shuffle() -> None:
    assert unevenness(lambda seed: Permutation(SIZE, seed)(np.arange(SIZE))) < 5


def test_orders_of_neighbouring_seeds_have_nothing_in_common() -> None:
    orders = [Permutation(10_000, seed)(np.arange(10_000)) for seed in range(6)]
    for one, other in itertools.combinations(orders, 2):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.05
