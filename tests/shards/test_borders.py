"""Where shards end, against a twin that looks at one token at a time."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.shards.borders import ShardLimit, Taken, take


def slow(limit: ShardLimit, held_tokens: int, held_documents: int, tokens: int, ends: set[int]) -> Taken:
    documents = 0
    for count in range(1, tokens + 1):
        documents += count in ends
        if limit.cuts_documents:
            full = held_tokens + count == limit.tokens
        else:
            size = held_tokens + count + limit.per_document * (held_documents + documents)
            full = count in ends and size >= limit.tokens
        if limit.tokens and full:
            return Taken(count, documents, full=True)
    return Taken(tokens, documents, full=False)


@pytest.mark.parametrize("seed", range(20))
def test_a_shard_ends_where_the_slow_twin_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(100):
        limit = ShardLimit(int(random.integers(0, 40)), bool(random.integers(2)), int(random.integers(0, 4)))
        held = int(random.integers(0, limit.tokens)) if limit.tokens else int(random.integers(0, 40))
        held_documents = int(random.integers(0, held + 1))
        tokens = int(random.integers(1, 60))
        ends = np.flatnonzero(random.random(tokens) < random.random()) + 1
        assert take(limit, held, held_documents, tokens, ends) == slow(
            limit, held, held_documents, tokens, set(ends.tolist())
        )


@pytest.mark.parametrize("cuts_documents", [True, False])
def test_batches_of_any_size_give_the_same_shards(cuts_documents: bool) -> None:
    random = np.random.default_rng(1)
    limit = ShardLimit(50, cuts_documents)
    ends = np.cumsum(random.integers(1, 30, 200))
    total = int(ends[-1])

    def shards(batch: int) -> list[int]:
        borders, at, held, held_documents = [], 0, 0, 0
        while at < total:
            some = min(batch, total - at)
            inside = ends[(ends > at) & (ends <= at + some)] - at
            taken = take(limit, held, held_documents, some, inside)
            at, held, held_documents = at + taken.tokens, held + taken.tokens, held_documents + taken.documents
            if taken.full:
                borders.append(at)
                held = held_documents = 0
        return borders

    assert shards(1) == shards(7) == shards(100) == shards(total)
