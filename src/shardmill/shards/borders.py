"""Where a shard ends: one rule for all formats, without any files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ShardLimit(NamedTuple):
    """When a shard is full."""

    tokens: int = 0
    """Its size in tokens; 0: it is never full."""
    cuts_documents: bool = True
    """It has exactly so many tokens. Otherwise it ends with the first document that makes it at least so large."""
    per_document: int = 0
    """What a document adds to its size besides its tokens, counted in tokens."""


class Taken(NamedTuple):
    """How much goes to the open shard."""

    tokens: int
    documents: int
    """Documents that end in these tokens."""
    full: bool
    """The shard ends here."""


def take(limit: ShardLimit, held_tokens: int, held_documents: int, tokens: int, ends: NDArray[np.int64]) -> Taken:
    """How many of the next tokens go to a shard that holds some already.

    `ends`: where documents end, counted from the first of the next tokens; in order, above 0.
    """
    if limit.tokens and limit.cuts_documents:
        size = min(tokens, limit.tokens - held_tokens)
        return Taken(size, int(np.searchsorted(ends, size, side="right")), held_tokens + size == limit.tokens)
    if limit.tokens and len(ends):
        sizes = held_tokens + ends + limit.per_document * (held_documents + np.arange(1, len(ends) + 1))
        last = int(np.searchsorted(sizes, limit.tokens))
        if last < len(ends):
            return Taken(int(ends[last]), last + 1, full=True)
    return Taken(tokens, len(ends), full=False)


def groups(lengths: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Documents in groups of about `size` tokens; a longer one is alone."""
    long = lengths > size
    group = (np.cumsum(lengths) - 1) // size + np.cumsum(long) + np.cumsum(np.append(False, long[:-1]))
    return np.split(lengths, np.flatnonzero(group[1:] != group[:-1]) + 1)
