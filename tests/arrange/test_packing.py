"""Packing from the histogram of lengths: as good as placing piece by piece, and every piece has a place of its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardmill.arrange import PackingPlan, count_pieces
from shardmill.errors import UsageError


def pieces_of(length: int, row: int) -> list[int]:
    """Full rows and a rest."""
    return [row] * (length // row) + ([length % row] if length % row else [])


def one_by_one(lengths: list[int], row: int) -> list[int]:
    """The free space of each row after best fit decreasing, one piece after the other."""
    free = list[int]()
    for size in sorted((piece for length in lengths for piece in pieces_of(length, row)), reverse=True):
        enough = [(space, i) for i, space in enumerate(free) if space >= size]
        if enough:
            free[min(enough)[1]] -= size
        else:
            free.append(row - size)
    return free


def places(plan: PackingPlan) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Size, row and offset of every piece."""
    sizes = np.repeat(np.arange(plan.row + 1), plan.counts)
    numbers = np.concatenate([np.arange(count) for count in plan.counts.tolist()])
    return sizes, *plan.slots(sizes, numbers)


def check(lengths: list[int], row: int) -> PackingPlan:
    plan = PackingPlan(count_pieces(np.array(lengths, np.int64), row), row)
    sizes, rows, offsets = places(plan)
    free, used = one_by_one(lengths, row), np.zeros((plan.rows, row), np.int64)
    for size, at, offset in zip(sizes.tolist(), rows.tolist(), offsets.tolist(), strict=True):
        assert offset + size <= row
        used[at, offset : offset + size] += 1
    assert used.max(initial=0) <= 1  # no two pieces share a token
    filled = used.sum(1)
    # Rows begin with a piece, and all free space is at their end.
    assert all((line[:size] == 1).all() for line, size in zip(used, filled.tolist(), strict=True))
    assert sorted((row - filled).tolist()) == sorted(free)
    assert plan.padding == sum(free) and plan.rows == len(free)
    return plan


@given(st.integers(1, 24), st.lists(st.integers(1, 80), max_size=60))
@settings(max_examples=300, deadline=None)
def test_free_space_is_that_of_best_fit_decreasing_piece_by_piece(row: int, lengths: list[int]) -> None:
    check(lengths, row)


@pytest.mark.parametrize("row", [1, 2, 7, 64, 257])
def test_many_pieces_of_few_sizes_are_placed_as_one_by_one(row: int) -> None:
    rng = random.Random(row)
    for _ in range(8):
        sizes = rng.choices(range(1, 3 * row + 1), k=rng.randint(1, 4))
        check(rng.choices(sizes, k=300), row)


def test_only_documents_longer_than_a_row_are_cut() -> None:
    counts = count_pieces(np.array([5, 10, 11, 20, 37]), 10)
    assert {size: count for size, count in enumerate(counts.tolist()) if count} == {1: 1, 5: 1, 7: 1, 10: 7}
    parts = count_pieces(np.array([5, 10]), 10) + count_pieces(np.array([11, 20, 37]), 10)
    assert (parts == counts).all()


def test_documents_of_web_text_leave_little_padding() -> None:
    lengths = np.random.default_rng(1).lognormal(5.4, 1.2, 200_000).astype(np.int64) + 1
    plan = PackingPlan(count_pieces(lengths, 2_049), 2_049)
    assert plan.padding / (plan.rows * 2_049) < 0.001


def test_a_plan_for_a_hundred_million_documents_and_long_rows_is_small() -> None:
    """Only the histogram counts."""
    row = 65_536
    counts = np.random.default_rng(2).integers(0, 3_000, row + 1).astype(np.int64)
    counts[0] = 0
    plan = PackingPlan(counts, row)
    assert int(counts.sum()) > 9e7 and plan.rows * row == int((counts * np.arange(row + 1)).sum()) + plan.padding
    sizes = np.array([1, 500, row // 2, row])
    assert (plan.slots(sizes, counts[sizes] - 1).rows < plan.rows).all()
    assert len(plan) < 5 * row


def test_nothing_to_pack_is_no_row() -> None:
    plan = PackingPlan(count_pieces(np.array([], np.int64), 8), 8)
    assert (plan.rows, plan.padding) == (0, 0)
    assert len(plan.slots(np.array([], np.int64), np.array([], np.int64)).rows) == 0


def test_a_piece_that_the_plan_does_not_have_is_refused() -> None:
    plan = PackingPlan(count_pieces(np.array([3, 3, 5]), 8), 8)
    for size, number in ((3, 2), (4, 0), (0, 0), (9, 0), (3, -1)):
        with pytest.raises(UsageError):
            plan.slots(np.array([size]), np.array([number]))
    with pytest.raises(UsageError, match="every size"):
        PackingPlan(np.zeros(5, np.int64), 8)
