"""What a sample says of the whole: documents, text and tokens with their margins, and the size of each output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardmill.sampling.places import BUCKETS, bucketed
from shardmill.sampling.sample import Kind
from shardmill.shards import FORMATS, format_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Student's t for 95 %, by degrees of freedom; beyond the table 1.96 + 2.4 / n is within 1 %. One place has none.
_T = (3.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
# Shares of a number: the least margin, due to where places begin and end; divided by the number of places, what may be
# where no place was drawn; the assumed error of a single place.
_LEAST_MARGIN, _FEW, _ALONE = 0.001, 0.1, 0.03
_UNSEEN, _UNSEEN_DOCUMENTS = 0.02, 0.06  # assumed error, in bytes and in documents, for what was not reached


@dataclass(frozen=True)
class Amount:
    """A number; `margin` to either side covers the truth in 95 of 100 cases. No margin: it is exact."""

    value: int = 0
    margin: int = 0

    @property
    def exact(self) -> bool:
        return self.margin == 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + other.value, round(math.hypot(self.margin, other.margin)))


@dataclass(frozen=True)
class Expected:
    """What one kind of sources, or all of them, hold."""

    text: Amount = Amount()
    documents: Amount = Amount()
    """Empty and rejected ones included."""
    written: Amount = Amount()
    """Documents that will be written: each has an end-of-text token."""
    tokens: Amount = Amount()
    """With the end-of-text tokens."""

    def __add__(self, other: Expected) -> Expected:
        return Expected(
            self.text + other.text,
            self.documents + other.documents,
            self.written + other.written,
            self.tokens + other.tokens,
        )


def expected(kind: Kind, *, separated: bool, eot: bool) -> Expected:
    """Return what a kind holds. `separated`: text has a separator."""
    places = kind.places
    text = _total(kind, [place.text for place in places])
    full = int(np.count_nonzero(kind.sizes))
    if kind.format == "text" and not separated:
        if not kind.whole and not kind.compression and not kind.replaced:
            text = Amount(kind.stored)
        documents = Amount(len(kind.members))
        blank = sum(1 for one in kind.looked if not one.excerpts and one.source.size)
        written = Amount(round(full * (1 - blank / max(1, len(kind.looked)))))
    else:
        documents = _total(kind, [place.begun for place in places], documents=True)
        if documents.value < full and not kind.whole:
            documents = Amount(full, documents.margin)
        if kind.rows is not None and not any(one.error for one in kind.looked):
            documents = Amount(kind.rows)
        seen = sum(place.begun * place.weight for place in places)
        bad = sum((place.empty + place.rejected) * place.weight for place in places)
        share = max(0.0, 1 - bad / seen) if seen else 1.0
        written = Amount(round(documents.value * share), round(documents.margin * share))
    # Of a stretch that cannot be cut only the beginning is encoded.
    encoded = sum(place.encoded for place in places) >= sum(place.text for place in places)
    tokens = _total(kind, [place.tokens for place in places], whole=kind.whole and encoded)
    return Expected(text, documents, written, tokens + written if eot else tokens)


def _total(kind: Kind, values: Sequence[float], *, documents: bool = False, whole: bool | None = None) -> Amount:
    """The sum over all of the kind, by the ratio of the values to the stored bytes in the sample.

    `documents` count where they begin, so they are divided by the bytes of the places; other values by the bytes that
    the records take. `whole`: the values are exact; by default where everything was read.
    """
    places, found = kind.places, np.array(values, float)
    weights = np.array([place.weight for place in places])
    stored = np.array([place.stored if documents else place.covered for place in places])
    sampled = float(weights @ stored)
    if (kind.whole if whole is None else whole) or not sampled:
        return Amount(round(sum(values)))
    ratio = float(weights @ found) / sampled
    total = ratio * kind.measured
    # A place that stands for `counts` places is itself one of them, so nothing is unknown where all were read.
    counts = weights * np.array([max(1.0, place.text / (place.encoded or place.text or 1)) for place in places])
    unknown = np.sqrt(np.maximum(counts * (counts - 1), (counts - 1) ** 2)) * (found - ratio * stored)
    # Places side by side in a stream are alike, so the variance is that between clusters.
    _, cluster = np.unique([place.cluster for place in places], return_inverse=True)
    rest = np.bincount(cluster, unknown)
    n = len(rest)
    # The largest difference counts twice: one more long document may be where no place was drawn.
    square = float(rest @ rest + np.max(rest * rest))
    error = math.sqrt(square * n / (n - 1)) / sampled * kind.measured if n > 1 else _ALONE * total
    student = _T[n - 1] if n <= len(_T) else 1.96 + 2.4 / (n - 1)
    unseen = (_UNSEEN_DOCUMENTS if documents else _UNSEEN) * kind.unseen
    margin = math.hypot(student * error, (_LEAST_MARGIN + _FEW / n) * total, unseen * total)
    # An estimate that happens to have no variance is still an estimate.
    return Amount(round(total), max(1, round(margin)) if found.any() else 0)


def histogram(kind: Kind, expects: Expected, *, separated: bool) -> NDArray[np.int64]:
    """The documents of a kind that have text, by size; together they are those written, but for rounding."""
    seen = np.zeros(BUCKETS)
    if kind.format == "text" and not separated:
        wide = expects.text.value / max(1, kind.stored)
        seen += bucketed(np.rint(kind.sizes[kind.sizes > 0] * wide).astype(np.int64))
    for place in kind.places:
        seen += place.weight * place.sizes
    shares = seen * (expects.written.value / max(1e-9, float(seen.sum())))
    return np.rint(shares).astype(np.int64)


def output_sizes(expects: Expected, width: int, vocab_size: int, shard_tokens: int) -> dict[str, int]:
    """Bytes that each output format takes; `width` is that of a token."""
    tokens, documents = expects.tokens.value, expects.written.value
    return {name: format_named(name).size(tokens, documents, width, vocab_size, shard_tokens) for name in FORMATS}
