"""What a sample says of the whole: documents, text and tokens with their margins, and the size of each output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardmill.shards import DOCUMENT, FORMATS, HEADER_BYTES, SPLITS, format_named

if TYPE_CHECKING:
    from shardmill.inspection.sample import Kind

_ERRORS = 3  # standard errors in a margin
_FEWEST_PLACES = 6  # fewer say nothing about their variance
_LEAST_MARGIN = 0.002  # a share of the number, due to where places begin and end


@dataclass(frozen=True)
class Amount:
    """A number, exact if its margin is 0.

    Another margin is three standard errors: the truth is nearly always within it, to either side. None: only the
    beginning of a source was read, or very few places, so nothing is known about the error.
    """

    value: int = 0
    margin: int | None = 0

    @property
    def exact(self) -> bool:
        return self.margin == 0

    def __add__(self, other: Amount) -> Amount:
        known = self.margin is not None and other.margin is not None
        margin = round(math.hypot(self.margin or 0, other.margin or 0)) if known else None
        return Amount(self.value + other.value, margin)


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
        if not kind.whole and not kind.compression and not any(place.replaced for place in places):
            text = Amount(kind.stored)
        documents = Amount(len(kind.members))
        blank = sum(1 for one in kind.looked if one.source.size and not any(place.text for place in one.places))
        written = Amount(round(full * (1 - blank / max(1, len(kind.looked)))))
    else:
        documents = _total(kind, [place.documents for place in places], begin=True)
        if documents.value < full and not kind.whole:
            documents = Amount(full, documents.margin)
        documents = documents if kind.rows is None else Amount(kind.rows)
        seen = sum(place.documents * place.weight for place in places)
        bad = sum((place.empty + place.rejected) * place.weight for place in places)
        share = max(0.0, 1 - bad / seen) if seen else 1.0
        written = Amount(round(documents.value * share), documents.margin)
    # What was not encoded is taken to be like the rest.
    encoded = sum(place.encoded for place in places)
    ratio = sum(place.tokens for place in places) / max(1, encoded)
    tokens = _total(kind, [place.tokens + ratio * (place.text - place.encoded) for place in places])
    return Expected(text, documents, written, tokens + written if eot else tokens)


def _total(kind: Kind, values: Sequence[float], *, begin: bool = False) -> Amount:
    """Return the sum over all of the kind, by the ratio of the values to the stored bytes in the sample.

    `begin`: what is counted begins at a place, so it is divided by the size of the place; other values by the bytes of
    the records.
    """
    places, found = kind.places, np.array(values, float)
    weights = np.array([place.weight for place in places])
    stored = np.array([place.size if begin else place.covered for place in places])
    sampled = float(weights @ stored) if places else 0.0
    if kind.whole or not sampled:
        return Amount(round(sum(values)))
    ratio = float(weights @ found) / sampled
    total = round(ratio * kind.stored)
    n = len(places)
    if n < _FEWEST_PLACES or any(one.begun or one.partly for one in kind.looked):
        return Amount(total, None)
    differences = weights * (found - ratio * stored)
    error = math.sqrt(float(differences @ differences) * n / (n - 1)) / sampled * kind.stored
    return Amount(total, max(1, round(_ERRORS * error + _LEAST_MARGIN * total)))


def working_seconds(kinds: Sequence[Kind], expects: Sequence[Expected], workers: int) -> float:
    """Return the seconds that reading and encoding take at the speed of the sample, times the workers."""
    each = (kind.cpu_seconds / max(1, kind.encoded) for kind in kinds)
    return sum(seconds * holds.text.value for seconds, holds in zip(each, expects, strict=True)) / workers


def output_sizes(expects: Expected, width: int, vocab_size: int, shard_tokens: int) -> dict[str, int]:
    """Bytes that each output format takes; `width` is that of a token."""
    tokens, documents = expects.tokens.value, expects.written.value
    return {name: format_named(name).size(tokens, documents, width, vocab_size, shard_tokens) for name in FORMATS}


def table_size(expects: Expected) -> int:
    """Bytes of the documents tables, which every dataset has once."""
    return len(SPLITS) * HEADER_BYTES + expects.written.value * DOCUMENT.itemsize
