"""One pass over a split in bounded memory: lengths of documents, counts of tokens, and documents to show.

Arrays are processed block by block. Of a split that is too large, stretches are read, and a document counts in the
stretch where it begins, so that neither long nor short documents are favoured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.errors import UsageError
from shardmill.reporting.duplicates import token_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset import Dataset, Split
    from shardmill.reporting.duplicates import Duplicates
    from shardmill.tokens import Tokenizer

BLOCK = 1 << 18  # tokens that are looked at in one go: their arrays stay in the cache of a core
STRETCH = 1 << 22  # tokens of a stretch of a sample
_BEYOND = 1 << 24  # tokens read beyond a stretch to find where its last document ends
PER_OCTAVE = 4  # bins of lengths between a power of two and the next
EXACT = 1 << 16  # shorter documents are counted by their exact length
LENGTHS = np.append(np.arange(EXACT), EXACT * 2 ** (np.arange(32 * PER_OCTAVE) / PER_OCTAVE))
"""The least length of each bin of lengths."""
RATIO_BIN, RATIO_BINS = 0.1, 121  # bytes per token; the last bin holds all that is more
POSITIONS = 100  # parts of a split whose bytes per token are plotted
OUTLIERS = ("longest", "shortest", "most compressible", "least compressible")
_UINT64 = (1 << 64) - 1
LEAST_TOKENS = 64  # tokens that a document must have for its bytes per token to say something


class ChosenDocument(NamedTuple):
    """A document that was chosen."""

    start: int
    stop: int
    """In the tokens of its split, with its end-of-text token."""
    tokens: int
    """Without it."""
    bytes: int
    number: int | None
    """None: only a sample was read, so documents were not counted."""


class DocumentRows(NamedTuple):
    """Consecutive documents that were read whole."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    """Of the tokens of each; 0 for a document without tokens."""
    number: int | None
    """Of the first, as in `ChosenDocument`."""

    @property
    def ratio(self) -> NDArray[np.float64]:
        """Bytes per token."""
        return np.asarray(self.bytes / np.maximum(self.tokens, 1), np.float64)

    def seen(self, i: int) -> ChosenDocument:
        start, stop, tokens, amount = (int(column[i]) for column in self[:4])
        return ChosenDocument(start, stop, tokens, amount, None if self.number is None else self.number + i)


@dataclass
class SplitSurvey:
    """What was found in one split."""

    name: str
    tokens: int
    documents: int
    tokens_read: int = 0
    """Tokens that were read."""
    documents_read: int = 0
    """Documents whose beginning and end were read."""
    separated: bool = True
    """False: nothing says where documents end."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each id occurs."""
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(LENGTHS), np.int64))
    """Documents in each bin of lengths."""
    ratios: NDArray[np.int64] = field(default_factory=lambda: np.zeros(RATIO_BINS, np.int64))
    by_position: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, POSITIONS), np.int64))
    """Tokens and bytes of text in each part of the split."""
    random: list[ChosenDocument] = field(default_factory=list)
    outliers: dict[str, list[ChosenDocument]] = field(default_factory=dict)

    @property
    def sampled(self) -> bool:
        return self.tokens_read < self.tokens

    def count(self, rows: DocumentRows) -> None:
        """Add some documents."""
        self.documents_read += len(rows.tokens)
        self.lengths += np.bincount(np.searchsorted(LENGTHS, rows.tokens, "right") - 1, minlength=len(LENGTHS))
        ratio = np.minimum((rows.ratio / RATIO_BIN).astype(np.int64), RATIO_BINS - 1)
        self.ratios += np.bincount(ratio, minlength=RATIO_BINS)

    def quantile(self, share: float) -> int:
        """Return the length that this share of documents does not exceed; from `EXACT` on the start of its bin."""
        return int(LENGTHS[np.searchsorted(np.cumsum(self.lengths), share * self.lengths.sum())])

    def octaves(self) -> NDArray[np.int64]:
        """Return the number of documents in each of `PER_OCTAVE` bins between powers of two."""
        octave = np.floor(np.log2(np.maximum(LENGTHS, 1)) * PER_OCTAVE + 1e-9).astype(np.int64)
        return np.bincount(octave, self.lengths).astype(np.int64)


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """Return the bytes of text of each id; 0 for the end-of-text token."""
    sizes = np.zeros(tokenizer.largest_id + 1, np.uint16)
    for id_ in range(len(sizes)):
        try:
            sizes[id_] = len(tokenizer.token_bytes(id_))
        except (KeyError, IndexError, ValueError):  # ids that are none: there are gaps in some vocabularies
            continue
    if tokenizer.eot is not None:
        sizes[tokenizer.eot] = 0
    return sizes


def survey(
    data: Dataset,
    name: str,
    sizes: NDArray[np.uint16],
    duplicates: Duplicates,
    *,
    max_tokens: int,
    seed: int,
    draws: int,
    outliers: int,
) -> SplitSurvey:
    """Survey a split, or a sample of `max_tokens` of its tokens; draw some documents with the `seed`."""
    split = data[name]
    found = SplitSurvey(name, len(split), split.described["documents"], counts=np.zeros(len(sizes), np.int64))
    try:
        split.documents.ends(0, 0, np.empty(0, data.dtype))
    except UsageError:  # no end-of-text tokens and no index
        found.separated = False
    random = np.random.default_rng([seed, *name.encode()])
    chosen = _Choice(random, {"random": draws, **dict.fromkeys(OUTLIERS, outliers)})
    for start, stop in _stretches(len(split), max_tokens, random):
        for rows in _read_stretch(split, found, sizes, start, stop):
            found.count(rows)
            chosen.offer(rows)
            duplicates.add(name, rows.hashes[rows.tokens > 0])
    if found.separated:
        found.random = sorted(chosen.best("random"))  # in the order of the split
        found.outliers = {kind: chosen.best(kind) for kind in OUTLIERS}
    return found


def _stretches(tokens: int, max_tokens: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield all of it, or stretches of `max_tokens` tokens together: one at random in each of equal parts."""
    if tokens <= max_tokens:
        yield 0, tokens
        return
    number = max(1, max_tokens // STRETCH)
    size = min(STRETCH, max_tokens)
    parts = np.linspace(0, tokens, number + 1).astype(np.int64).tolist()
    for low, high in itertools.pairwise(parts):
        start = low + int(random.integers(0, max(1, high - low - size)))
        yield start, min(start + size, tokens)


def _read_stretch(
    split: Split, found: SplitSurvey, sizes: NDArray[np.uint16], start: int, stop: int
) -> Iterator[DocumentRows]:
    """Count the tokens of a stretch, and yield the documents that begin in it.

    Of the document that is open between two blocks only counts are kept, whatever its length.
    """
    data = split.dataset
    whole = start == 0 and stop == len(split)
    inside = start == 0  # in a document whose beginning was seen
    open_start, open_tokens, open_bytes, open_hash, number = start, 0, 0, 0, 0
    step = min(BLOCK, max(64, len(split) // POSITIONS))  # small ones in small steps: `by_position` has a hundred parts
    at = start
    while at < len(split) and (at < stop or (found.separated and inside and open_start < stop and at < stop + _BEYOND)):
        end = min(at + step, stop if at < stop else at + step, len(split))
        block = split.tokens.read(at, end)
        if int(block.max(initial=0)) >= len(sizes):
            raise UsageError(
                "the dataset holds ids that the tokenizer does not have", hint="`shardmill verify` says where"
            )
        # Bytes of text before each token. With EOT before documents one may end where a block begins.
        text = np.concatenate([[0], np.cumsum(sizes.take(block), dtype=np.int64)])
        eots = np.flatnonzero(block == data.eot_id) if data.eot != "none" else np.empty(0, np.int64)
        if at < stop:
            found.counts += np.bincount(block, minlength=len(sizes))
            found.tokens_read += len(block)
            found.by_position[:, at * POSITIONS // len(split)] += len(block) - len(eots), text[-1]
        ends = split.documents.ends(at, end, block) - at if found.separated else np.empty(0, np.int64)
        if at >= stop:
            ends = ends[:1]  # only the document that was open is still wanted
        hashes = _summed_hashes(block, eots, np.concatenate([[open_start - at], ends]))
        if len(ends):
            starts = np.concatenate([[open_start], ends[:-1] + at])
            texts, eots_before = text[ends], np.searchsorted(eots, ends)
            tokens, amounts = np.diff(ends - eots_before, prepend=0), np.diff(texts, prepend=0)
            sums = np.diff(hashes[ends], prepend=np.uint64(0))
            tokens[0] += open_tokens
            amounts[0] += open_bytes
            sums[:1] += np.uint64(open_hash)  # as an array, which wraps around without a warning
            seen = slice(0 if inside else 1, None)
            first = number if whole else None
            yield DocumentRows(starts[seen], ends[seen] + at, tokens[seen], amounts[seen], sums[seen], first)
            number += len(ends)
            open_tokens = len(block) - int(ends[-1]) - (len(eots) - int(eots_before[-1]))
            open_bytes, open_hash = text[-1] - texts[-1], int(hashes[-1]) - int(hashes[ends[-1]]) & _UINT64
            open_start, inside = at + int(ends[-1]), True
        else:
            open_tokens, open_bytes = open_tokens + len(block) - len(eots), open_bytes + text[-1]
            open_hash = open_hash + int(hashes[-1]) & _UINT64
        at = end
    if at == len(split) and inside and open_tokens and found.separated and open_start < stop:
        last = np.array([[open_start], [at], [open_tokens], [open_bytes]], np.int64)
        yield DocumentRows(
            last[0], last[1], last[2], last[3], np.array([open_hash], np.uint64), number if whole else None
        )


def _summed_hashes(block: NDArray[Any], eots: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the sum of the hashes before each token of a block, and of all. `begins`: where its documents begin."""
    counts = np.diff(np.append(np.maximum(begins, 0), len(block)))
    places = np.arange(len(block)) - np.repeat(begins, counts)
    hashes = token_hashes(block, places)
    hashes[eots] = 0
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])


class _Choice:
    """Chooses the documents to show: some at random, and the outliers."""

    def __init__(self, random: np.random.Generator, kept: dict[str, int]) -> None:
        """`kept`: how many documents of each kind."""
        self._random, self._kept = random, kept
        self._best: dict[str, list[tuple[float, ChosenDocument]]] = {kind: [] for kind in kept}

    def offer(self, rows: DocumentRows) -> None:
        tokens, long = rows.tokens, rows.tokens >= LEAST_TOKENS
        ranks = {
            "random": np.where(tokens > 0, self._random.random(len(tokens)), np.inf),
            "longest": -tokens.astype(np.float64),
            "shortest": np.where(tokens > 0, tokens, np.inf),
            "most compressible": np.where(long, -rows.ratio, np.inf),
            "least compressible": np.where(long, rows.ratio, np.inf),
        }
        for kind, rank in ranks.items():
            first = np.argsort(rank, kind="stable")[: self._kept[kind]].tolist()
            best = self._best[kind] + [(float(rank[i]), rows.seen(i)) for i in first if rank[i] < np.inf]
            self._best[kind] = sorted(best)[: self._kept[kind]]

    def best(self, kind: str) -> list[ChosenDocument]:
        return [one for _, one in self._best[kind]]
