"""Rare things are found where the obvious twin finds them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardmill.byte_search import numpy_occurrences, occurrences, sparse_nonzero

SOUGHT = ["<|endoftext|>", "\n\n", "\n", "aaa", "---", "ab", "aba", "ä", "中a", "x\n"]


def test_places_are_those_of_flatnonzero_whatever_the_length() -> None:
    disorder = np.random.default_rng(5)
    for size in (0, 1, 7, 8, 9, 64, 1_000, 4_099):
        for share in (0.0, 0.01, 0.5, 1.0):
            flags = disorder.random(size) < share
            assert sparse_nonzero(flags).tolist() == np.flatnonzero(flags).tolist()


@pytest.mark.parametrize("sought", SOUGHT)
def test_occurrences_are_those_that_split_takes(sought: str) -> None:
    disorder = random.Random(sought)
    parts = [sought, sought[:1], sought[-1:], sought[1:], "b", "\n", " word", "a", "中", "-"]
    for _ in range(2_000):
        raw = "".join(disorder.choices(parts, k=disorder.randint(0, 30))).encode()
        data = np.frombuffer(raw, np.uint8)
        pieces = raw.split(sought.encode())
        ends = np.cumsum([len(piece) for piece in pieces[:-1]]) + len(sought.encode()) * np.arange(len(pieces) - 1)
        assert occurrences(data, sought.encode()).tolist() == ends.tolist()
        assert numpy_occurrences(data, sought.encode()).tolist() == ends.tolist()
