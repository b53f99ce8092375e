"""Mixtures by tokens: exact keys, and shares that hold after every document."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.arrange import KEY_UNITS, NEVER, Mixture, Stage, merge
from shardmill.errors import UsageError


def stages(*lines: tuple[int, list[str]]) -> list[Stage]:
    return [Stage(start, tuple(map(Fraction, weights))) for start, weights in lines]


def due_token(parts: list[Stage], source: int, middle: Fraction) -> Fraction | None:
    """Walk through the stages until the middle of a document is due; None: it never is."""
    due = Fraction(0)
    for stage, following in pairwise([*parts, None]):
        assert stage is not None
        share = stage.weights[source] / sum(stage.weights)
        end = None if following is None else due + (following.start - stage.start) * share
        if share and (end is None or middle < end):
            return stage.start + (middle - due) / share
        due = due if end is None else end
    return None


def expected_key(token: Fraction | None) -> int:
    return NEVER if token is None or token >= 2**48 else floor(token * KEY_UNITS)


MIXTURES = {
    "two": stages((0, ["0.7", "0.3"])),
    "three": stages((0, ["7", "2", "1"])),
    "equal": stages((0, ["1"] * 12)),
    "one of ninety": stages((0, ["0.9", *["0.01"] * 10])),
    "a millionth": stages((0, ["0.999999", "0.000001"])),
    "stages": stages((0, ["1", "0"]), (5_000, ["1", "1"]), (5_001, ["0", "1"]), (40_000, ["1/3", "2/3"])),
    "never again": stages((0, ["1", "1"]), (20_000, ["0", "1"])),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_key_is_the_token_at_which_the_middle_is_due(name: str) -> None:
    parts, rng = MIXTURES[name], random.Random(name)
    mixture = Mixture(parts)
    for source in range(mixture.sources):
        before = [0, 0, 1, *(rng.randrange(10 ** rng.randint(1, 16)) for _ in range(300)), 2**56]
        lengths = [1, 2, *(rng.randrange(1, 10 ** rng.randint(1, 9)) for _ in range(302))]
        found = mixture.keys(source, np.array(before), np.array(lengths))
        for t, length, key in zip(before, lengths, found.tolist(), strict=True):
            token = due_token(parts, source, t + Fraction(length, 2))
            assert key == expected_key(token), (t, length)


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), min_size=1, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_keys_are_exact_for_any_weights(weights: list[int], documents: list[tuple[int, int]]) -> None:
    parts = [Stage(0, tuple(map(Fraction, weights)))]
    before, lengths = (np.array(column) for column in zip(*documents, strict=True))
    for source in range(len(weights)):
        expected = [due_token(parts, source, t + Fraction(length, 2)) for t, length in documents]
        found = Mixture(parts).keys(source, before, lengths).tolist()
        assert found == list(map(expected_key, expected))


def sizes(kind: str, rng: random.Random) -> list[int]:
    """Documents of one source."""
    if kind == "one token":
        return [1] * 400
    if kind == "giants":
        return rng.choices([1, 3, 200], weights=[50, 50, 1], k=300)
    return [int(rng.lognormvariate(4, 1.3)) + 1 for _ in range(300)]


def worst_excess(name: str, kind: str, *, by_middle: bool) -> Fraction:
    """By how much the worst source, after any document, is farther from its share than the bound allows."""
    mixture, rng = Mixture(MIXTURES[name]), random.Random(name + kind)
    total = 60_000 if len(MIXTURES[name]) > 1 else 12_000
    keys, lengths, longest = [], list[list[int]](), list[int]()
    for source in range(mixture.sources):
        documents = [*sizes(kind, rng), 200]
        longest.append(max(documents))
        repeated = list[int]()
        while sum(repeated) < mixture.due(source, total) + 2 * longest[-1]:
            rng.shuffle(documents)  # every epoch has an order of its own
            repeated += documents
        lengths.append(repeated)
        before = np.concatenate([[0], np.cumsum(repeated)[:-1]])
        keys.append(mixture.keys(source, before, np.array(repeated) * by_middle))
        assert (keys[-1][1:] >= keys[-1][:-1]).all()
    bounds = [mixture.bound(source, longest) for source in range(mixture.sources)]
    taken, out, worst = [0] * mixture.sources, 0, Fraction(-(10**9))
    for source, number in zip(*(column.tolist() for column in merge(keys)), strict=True):
        taken[source] += lengths[source][number]
        out += lengths[source][number]
        if out > total:
            break
        for other, bound in enumerate(bounds):
            worst = max(worst, abs(taken[other] - mixture.due(other, out)) - bound)
    return worst


@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "never again"])
@pytest.mark.parametrize("kind", ["web", "giants", "one token"])
def test_after_every_document_each_source_is_within_the_bound_of_its_share(name: str, kind: str) -> None:
    """Small sources are repeated, so this goes over many epochs and stages."""
    assert worst_excess(name, kind, by_middle=True) <= 0


def test_by_where_documents_begin_shares_would_be_outside_of_the_bound() -> None:
    assert worst_excess("two", "giants", by_middle=False) > 0


def test_the_order_is_a_merge_in_which_no_source_is_reordered() -> None:
    mixture = Mixture(MIXTURES["three"])
    rng = random.Random(5)
    keys = []
    for source in range(3):
        lengths = np.array(sizes("web", rng))
        keys.append(mixture.keys(source, np.cumsum(lengths) - lengths, lengths))
    sources, numbers = merge(keys)
    slow = sorted((int(key), source, n) for source, line in enumerate(keys) for n, key in enumerate(line.tolist()))
    assert [(source, number) for _, source, number in slow] == list(
        zip(sources.tolist(), numbers.tolist(), strict=True)
    )


def test_documents_with_the_same_key_stand_in_the_order_of_their_sources() -> None:
    sources, numbers = merge([np.array([5, 5, 9], np.uint64), np.array([5, 7], np.uint64)])
    assert (sources.tolist(), numbers.tolist()) == ([0, 0, 1, 1, 0], [0, 1, 0, 1, 2])


def test_half_a_document_is_the_bound_of_two_sources_with_equal_documents() -> None:
    small = Fraction(1, KEY_UNITS)
    assert Mixture(MIXTURES["two"]).bound(0, [100, 100]) == 50 + small
    assert (
        Mixture(MIXTURES["three"]).bound(2, [100, 100, 100])
        == (Fraction(9, 10) * 100 + Fraction(2, 10) * 100) / 2 + small
    )


def test_all_tokens_of_a_mixture_are_due_and_epochs_follow() -> None:
    mixture = Mixture(MIXTURES["stages"])
    for tokens in (0, 1, 4_999, 5_000, 5_001, 39_999, 40_000, 10**15):
        assert sum(mixture.due(source, tokens) for source in range(2)) == tokens
    assert mixture.due(0, 5_001) == 5_000 + Fraction(1, 2)
    assert mixture.epochs(0, 5_000, 2_000) == Fraction(5, 2)
    assert mixture.shares(1) == [0, Fraction(1, 2), 1, Fraction(2, 3)]
    assert Mixture(MIXTURES["never again"]).epochs(0, 10**9, 0 + 10_000) == 1
    with pytest.raises(UsageError, match="without tokens"):
        mixture.epochs(1, 10**6, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        stages((1, ["1"])),
        stages((0, ["1"]), (0, ["1"])),
        stages((0, ["1", "1"]), (9, ["1"])),
        stages((0, ["1", "-1"])),
        stages((0, ["0", "0"])),
        stages((0, [])),
        stages((0, ["1/2000003", "1"])),
    ],
)
def test_a_mixture_that_means_nothing_is_refused(wrong: list[Stage]) -> None:
    with pytest.raises(UsageError):
        Mixture(wrong)
