"""Which document goes to which split, and where a run with `--limit` ends.

Unless `--val` says otherwise, a document's split is a function of its text and the seed, never of its place. Duplicates
have the same hash, so they are in the same split, and the split of a document does not change when files are added,
renamed or divided differently. The hash covers only the first 64 KiB, so the split of a document that does not fit into
memory is known from its first piece. Of these bytes it covers 16 words of eight bytes, spread evenly (all of a text of
up to 128 bytes), which takes less than a microsecond per document. Documents that differ only elsewhere are in the same
split, which is right for near-duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill import core
from shardmill.core import content_hash as core_hash
from shardmill.documents import SPAN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Documents
    from shardmill.options import Val
    from shardmill.run.batch import Rows, Stream

PREFIX = SPAN
"""Bytes that decide the split, of a span as of a document."""
_WORDS = 16
_SHORT = 64
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_TOGETHER = 4096  # rows: their words make two megabytes
_FACTORS = np.cumprod(np.full(_WORDS, 0xD1342543DE82EF95, dtype=np.uint64))


class Share(NamedTuple):
    """The part of a batch that goes to one split."""

    split: str
    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    """Where documents end in this split, counted from the start of `tokens`."""
    documents: int
    """A document counts in the split where it ends."""
    bytes: int


def shares(stream: Stream, *, spans: bool, first: int = 0, split: str | None = None) -> Iterator[Share]:
    """Divide a batch's tokens among the splits. Val takes the next `first` of them, whatever the rows say.

    `spans`: the rows of one document may go to several splits, and it ends in each of them with its last row there.
    `split`: that of a document which began in an earlier batch.
    """
    for name, tokens in stream.tokens.items():
        mine = stream.rows.val if name == "val" else ~stream.rows.val
        rows = stream.rows if mine.all() else stream.rows[mine]
        stops = np.cumsum(rows.length)
        ends = np.cumsum(stream.rows.length * mine)[_last_of_each(stream.rows, mine)] if spans else stops[rows.closes]
        border = min(first, len(tokens))
        for target, start, end in (("val", 0, border), (split or name, border, len(tokens))):
            if start < end:
                here = slice(None) if end - start == len(tokens) else (stops > start) & (stops <= end)
                yield Share(
                    target,
                    tokens[start:end],
                    ends[(ends > start) & (ends <= end)] - start,
                    int(np.count_nonzero(rows.closes[here])),
                    int(rows.bytes[here].sum()),
                )


def _last_of_each(rows: Rows, mine: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each document its last row among `mine`; for the last document only if it ends in these rows."""
    some = np.flatnonzero(mine & (rows.length > 0))  # an empty file ends nothing
    document = np.cumsum(rows.opens)[some]
    closed = rows.closes[np.flatnonzero(rows.length)[-1:]]
    last: NDArray[np.int64] = some[np.append(document[1:] != document[:-1], closed)[: len(some)]]
    return last


class Limit(NamedTuple):
    """How much `--limit` still allows; None: any number."""

    documents: int | None
    tokens: int | None

    @property
    def nothing(self) -> bool:
        return self.reached_by(0, 0)

    def reached_by(self, documents: int, tokens: int) -> bool:
        """Whether so much is all that is allowed, or more."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def cut(self, rows: Rows, *, spans: bool) -> Rows:
        """The rows up to the one that reaches the limit, which then ends a document; their lengths without EOT."""
        ended = np.cumsum(rows.closes)
        enough = np.zeros(len(rows), dtype=np.bool_)
        if self.documents is not None:
            enough |= ended >= self.documents
        if self.tokens is not None:
            reached = np.cumsum(rows.length) + ended >= self.tokens
            # A span may be the last, so that a limit in tokens also works for text that is one document.
            enough |= reached if spans else reached & rows.closes
        if enough.any():
            rows = rows[: int(np.argmax(enough)) + 1]
            rows.closes[-1] = True
        return rows


def val_rows(documents: Documents, val: Val, seed: int) -> NDArray[np.bool_]:
    """Which rows go to val: by their place in the source, by their content, or none."""
    if documents.tail is not None:
        return documents.tail
    if val.fraction:
        return in_val(documents.data, documents.offsets, val.fraction, seed, len(documents.gap))
    return np.zeros(len(documents), dtype=np.bool_)


def in_val(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], fraction: float, seed: int, gap: int = 0
) -> NDArray[np.bool_]:
    """For each row data[offsets[i] : offsets[i+1] - gap] whether its content puts it into val."""
    if fraction >= 1:
        return np.ones(len(offsets) - 1, dtype=np.bool_)
    return content_hash(data, offsets, seed, gap) < np.uint64(int(fraction * 2.0**64))


def content_hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, gap: int = 0) -> NDArray[np.uint64]:
    """A 64-bit hash of each row."""
    return core_hash(data, offsets, seed, gap) if core.available() else numpy_hash(data, offsets, seed, gap)


def numpy_hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, gap: int = 0) -> NDArray[np.uint64]:
    """`content_hash` in numpy, for when there is no core."""
    starts = offsets[:-1]
    lengths = np.minimum(np.diff(offsets) - gap, PREFIX)
    hashes = np.full(len(starts), np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF), dtype=np.uint64)
    _stir(hashes, lengths.astype(np.uint64))
    for some, words in (
        (np.flatnonzero(lengths < 8), 0),
        (np.flatnonzero((lengths >= 8) & (lengths <= _SHORT)), _SHORT // 8),
        (np.flatnonzero(lengths > _SHORT), _WORDS),
    ):
        if len(some):
            part = hashes[some]
            if words:
                _hash_words(part, data, starts[some], lengths[some], words)
            else:
                _hash_bytes(part, data, starts[some], lengths[some])
            hashes[some] = part
    _stir(hashes, np.zeros_like(hashes))
    return hashes


def _hash_words(
    hashes: NDArray[np.uint64],
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    words: int,
) -> None:
    # Every byte offset as the start of a little-endian word: a view, nothing is copied.
    every: NDArray[np.uint64] = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    steps = np.arange(words)
    for first in range(0, len(starts), _TOGETHER):
        some = slice(first, first + _TOGETHER)
        at = starts[some, None] + (lengths[some, None] - 8) * steps // (words - 1)
        # Odd factors: one word that differs is enough for another sum.
        _stir(hashes[some], (every[at] * _FACTORS[:words]).sum(axis=1, dtype=np.uint64))


def _hash_bytes(
    hashes: NDArray[np.uint64], data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    word = np.zeros(len(starts), dtype=np.uint64)
    last = len(data) - 1
    for i in range(7):
        byte = data[np.minimum(starts + i, last)].astype(np.uint64) if last >= 0 else word
        word |= np.where(i < lengths, byte << np.uint64(8 * i), np.uint64(0))
    _stir(hashes, word)


def _stir(hashes: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    hashes ^= words
    hashes *= _PRIME
    hashes ^= hashes >> _SHIFT
    hashes *= _PRIME
    hashes ^= hashes >> np.uint64(32)
