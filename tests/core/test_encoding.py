"""The compiled core gives the ids that the reference gives, for every scheme, with and without SIMD."""

from __future__ import annotations

import random

import pytest

from tests.core.models import VOCABULARIES, check, needs_core, ranks
from tests.encoding.hard import RUNS, disorder, run

pytestmark = needs_core
SURROUNDINGS = ["{}", "a{}", "{}a", " {}", "{} ", "A{}b", "1{}2", "!{}'s", "\n{}\n", "{0}{0}'S", "'{}", "é{}中", " {}  x"]


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_disorder_is_encoded_as_the_reference_does(scheme):
    check(scheme, disorder(scheme, 4000))


@pytest.mark.parametrize("scheme", VOCABULARIES)
@pytest.mark.parametrize("kind", RUNS)
def test_runs_longer_than_a_block_and_than_a_window_are_encoded_as_the_reference_does(scheme, kind):
    check(scheme, [run(kind, size, size) for size in (30, 63, 64, 65, 130, 700, 2050, 5000)])


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_strings_made_of_tokens_are_encoded_as_the_reference_does(scheme):
    rng = random.Random(scheme)
    tokens = sorted(ranks(scheme))
    joined = [b"".join(rng.choices(tokens, k=rng.randint(1, 4))) for _ in range(6000)]
    check(scheme, [text.decode(errors="ignore") for text in joined])
