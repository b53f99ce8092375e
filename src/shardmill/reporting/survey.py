"""One pass over a split in bounded memory: how long documents are, which tokens they have, and which are worth a look.

All of it by the array, a block at a time. A split of more tokens than are wanted is sampled: stretches of it are read,
and a document counts in the stretch where it begins, so that neither long nor short ones are favoured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardmill.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset import Dataset
    from shardmill.tokens import Tokenizer

BLOCK = 1 << 18  # tokens that are looked at in one go: their arrays stay in the cache of a core
STRETCH = 1 << 22  # tokens of a stretch of a sample
_BEYOND = 1 << 24  # tokens read beyond a stretch to find where its last document ends
EXACT = 1 << 16  # lengths that are counted one by one; longer ones in the last
PER_OCTAVE = 4  # bins of lengths between a power of two and the next
RATIO_BIN, RATIO_BINS = 0.1, 121  # bytes per token; the last bin holds all that is more
ALONG = 100  # parts of the dataset over which bytes per token are told
OUTLIERS = ("longest", "shortest", "most compressible", "least compressible")
LEAST_TOKENS = 64  # tokens that a document must have for its bytes per token to say something


class Seen(NamedTuple):
    """A document that was chosen."""

    start: int
    stop: int
    """In the tokens of its split, with its end-of-text token."""
    tokens: int
    """Without it."""
    bytes: int
    number: int | None
    """None: only a sample was read, so nobody counted."""


@dataclass
class SplitSurvey:
    """What was found in one split."""

    name: str
    tokens: int
    documents: int
    looked: int = 0
    """Tokens that were read."""
    seen: int = 0
    """Documents whose beginning and end were read."""
    content: int = 0
    """Tokens of those, without end-of-text tokens."""
    separated: bool = True
    """False: nothing says where documents end."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each id occurs."""
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(EXACT, np.int64))
    octaves: NDArray[np.int64] = field(default_factory=lambda: np.zeros(64 * PER_OCTAVE, np.int64))
    ratios: NDArray[np.int64] = field(default_factory=lambda: np.zeros(RATIO_BINS, np.int64))
    along: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, ALONG), np.int64))
    """Tokens and bytes of text in each part of the split."""
    random: list[Seen] = field(default_factory=list)
    outliers: dict[str, list[Seen]] = field(default_factory=dict)

    @property
    def sampled(self) -> bool:
        return self.looked < self.tokens

    def quantile(self, share: float) -> int:
        """The length that this share of documents does not exceed; from `EXACT` on by the start of its bin."""
        total = int(self.lengths.sum())
        if not total:
            return 0
        at = int(np.searchsorted(np.cumsum(self.lengths), share * total))
        if at < EXACT - 1:
            return at
        at = int(np.searchsorted(np.cumsum(self.octaves), share * total))
        return int(2 ** (at / PER_OCTAVE))


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """How many bytes of text each id stands for; nothing for the end-of-text token."""
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
    data: Dataset, name: str, sizes: NDArray[np.uint16], *, most: int, seed: int, draws: int, outliers: int
) -> SplitSurvey:
    """Look at a split: at all of it, or at `most` of its tokens; `draws` documents are drawn with the `seed`."""
    split = data[name]
    found = SplitSurvey(name, len(split), split.described["documents"], counts=np.zeros(len(sizes), np.int64))
    try:
        split.documents.ends(0, 0, np.empty(0, data.dtype))
    except UsageError:  # no end-of-text tokens and no index
        found.separated = False
    random = np.random.default_rng([seed, *name.encode()])
    chosen = _Choice(random, draws, outliers)
    eot = data.eot_id if data.eot != "none" else None
    for start, stop in _stretches(len(split), most, random):
        _look(data, found, chosen, sizes, eot, start, stop)
    if found.separated:
        found.random, found.outliers = chosen.random(), chosen.outliers()
    return found


def _stretches(tokens: int, most: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """All of it, or stretches that together have `most` tokens: one at random in each equal part."""
    if tokens <= most:
        yield 0, tokens
        return
    number = max(1, most // STRETCH)
    size = min(STRETCH, most)
    parts = np.linspace(0, tokens, number + 1).astype(np.int64).tolist()
    for low, high in itertools.pairwise(parts):
        start = low + int(random.integers(0, max(1, high - low - size)))
        yield start, min(start + size, tokens)


def _look(
    data: Dataset,
    found: SplitSurvey,
    chosen: _Choice,
    sizes: NDArray[np.uint16],
    eot: int | None,
    start: int,
    stop: int,
) -> None:
    """One stretch. Of the document that is open between two blocks only counts are kept, whatever its length."""
    split = data[found.name]
    whole = start == 0 and stop == len(split)
    inside = start == 0  # in a document whose beginning was seen
    open_start, open_tokens, open_bytes, number = start, 0, 0, 0
    step = min(BLOCK, max(64, len(split) // ALONG))  # small ones in small steps: `along` has a hundred parts
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
        marks = np.flatnonzero(block == eot) if eot is not None else np.empty(0, np.int64)
        if at < stop:
            found.counts += np.bincount(block, minlength=len(sizes))
            found.looked += len(block)
            part = at * ALONG // len(split)
            found.along[:, part] += len(block) - len(marks), text[-1]
        ends = split.documents.ends(at, end, block) - at if found.separated else np.empty(0, np.int64)
        if at >= stop:
            ends = ends[:1]  # only the document that was open is still wanted
        if len(ends):
            starts = np.concatenate([[open_start], ends[:-1] + at])
            texts, behind = text[ends], np.searchsorted(marks, ends)
            lengths = np.diff(ends - behind, prepend=0)
            amounts = np.diff(texts, prepend=0)
            lengths[0] += open_tokens
            amounts[0] += open_bytes
            skip = 0 if inside else 1
            rows = (starts[skip:], ends[skip:] + at, lengths[skip:], amounts[skip:])
            _count(found, chosen, *rows, number if whole else None)
            number += len(ends)
            open_tokens, open_bytes = len(block) - int(ends[-1]) - (len(marks) - int(behind[-1])), text[-1] - texts[-1]
            open_start, inside = at + int(ends[-1]), True
        else:
            open_tokens, open_bytes = open_tokens + len(block) - len(marks), open_bytes + text[-1]
        at = end
    if at == len(split) and inside and open_tokens and found.separated and open_start < stop:
        last = [np.array([value], np.int64) for value in (open_start, at, open_tokens, open_bytes)]
        _count(found, chosen, last[0], last[1], last[2], last[3], number if whole else None)


def _count(
    found: SplitSurvey,
    chosen: _Choice,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    lengths: NDArray[np.int64],
    amounts: NDArray[np.int64],
    number: int | None,
) -> None:
    """Some documents that were seen whole."""
    found.seen += len(lengths)
    found.content += int(lengths.sum())
    found.lengths += np.bincount(np.minimum(lengths, EXACT - 1), minlength=EXACT)
    octave = np.floor(np.log2(np.maximum(lengths, 1)) * PER_OCTAVE + 1e-9).astype(np.int64)
    found.octaves += np.bincount(octave, minlength=len(found.octaves))
    ratio = amounts / np.maximum(lengths, 1)
    found.ratios += np.bincount(np.minimum((ratio / RATIO_BIN).astype(np.int64), RATIO_BINS - 1), minlength=RATIO_BINS)
    chosen.offer(starts, stops, lengths, amounts, number)


class _Choice:
    """The documents that are worth a look: some at random, and the outliers. Never more than asked for are kept."""

    def __init__(self, random: np.random.Generator, draws: int, outliers: int) -> None:
        self._random = random
        self._kept = {"random": draws, **dict.fromkeys(OUTLIERS, outliers)}
        self._best: dict[str, list[tuple[float, Seen]]] = {kind: [] for kind in self._kept}

    def offer(
        self,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        lengths: NDArray[np.int64],
        amounts: NDArray[np.int64],
        number: int | None,
    ) -> None:
        ratio = amounts / np.maximum(lengths, 1)
        long = lengths >= LEAST_TOKENS
        nowhere = np.inf
        ranks = {
            "random": np.where(lengths > 0, self._random.random(len(lengths)), nowhere),
            "longest": -lengths.astype(np.float64),
            "shortest": np.where(lengths > 0, lengths, nowhere),
            "most compressible": np.where(long, -ratio, nowhere),
            "least compressible": np.where(long, ratio, nowhere),
        }
        for kind, rank in ranks.items():
            kept = self._kept[kind]
            first = np.argpartition(rank, kept - 1)[:kept] if 0 < kept < len(rank) else np.arange(len(rank))
            best = self._best[kind]
            for i in first.tolist():
                if rank[i] < nowhere:
                    seen = Seen(
                        int(starts[i]),
                        int(stops[i]),
                        int(lengths[i]),
                        int(amounts[i]),
                        None if number is None else number + i,
                    )
                    best.append((float(rank[i]), seen))
            best.sort()
            del best[kept:]

    def random(self) -> list[Seen]:
        """In the order of the split."""
        return sorted(one for _, one in self._best["random"])

    def outliers(self) -> dict[str, list[Seen]]:
        return {kind: [one for _, one in self._best[kind]] for kind in OUTLIERS}
