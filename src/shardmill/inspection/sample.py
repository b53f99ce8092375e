"""A sample of the sources, read by the ordinary readers and encoded with one engine.

Sources of one format and compression are a kind. Places are drawn at equal distances over all bytes of a kind.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardmill.detection import format_of
from shardmill.documents import footer_bytes
from shardmill.input_formats import INPUT_FORMATS
from shardmill.inspection import places as reading_places
from shardmill.inspection.places import Looking, SampledPlace, SampledSource, expansion
from shardmill.storage import Fetcher, RetryPolicy, Source, compression_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

STREAM_UNITS = 8
"""Units of text for each time that a stream, which can only be read from its start, is drawn."""
_FEWEST = 6  # places for a kind, however small its share
_REMOTE = 32  # the most places in remote sources
_INSTEAD = 64  # small sources that are read instead of one place
_THREADS = 8  # for remote sources
_WINDOW = 2 << 20  # bytes that are fetched ahead; at the end of a place they were fetched in vain


@dataclass
class Kind:
    """The sources of one format and compression, and what was found in some of them."""

    format: str
    compression: str
    remote: bool
    members: Sequence[int]
    """Indices in the plan."""
    sizes: NDArray[np.int64]
    """Stored bytes of each."""
    looked: list[SampledSource] = field(default_factory=list)
    """Sources that were opened."""
    cpu_seconds: float = 0.0
    """To read and encode the sample."""

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def expanded(self) -> int:
        """Bytes of text, about."""
        return self.stored * expansion(self.format, self.compression)

    @property
    def places(self) -> list[SampledPlace]:
        return [place for source in self.looked for place in source.places]

    @property
    def encoded(self) -> int:
        """Bytes of text that were encoded."""
        return sum(place.encoded for place in self.places)

    @property
    def whole(self) -> bool:
        """Everything was read: what was counted is exact."""
        return not self.stored or (len(self.looked) == len(self.members) and all(one.whole for one in self.looked))

    @property
    def rows(self) -> int | None:
        """Number of documents, where footers or batches of all files say it."""
        rows = [one.rows for one in self.looked]
        return sum(filter(None, rows)) if len(rows) == len(self.members) and None not in rows else None

    @property
    def column(self) -> float:
        """The share of the stored bytes that a run reads."""
        size = sum(one.source.size or 0 for one in self.looked)
        return sum(one.column * (one.source.size or 0) for one in self.looked) / size if size else 1.0


def take_sample(
    sources: Sequence[Source], looking: Looking, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:  # fmt: skip
    """Return the kinds of the sources, each with about its share of `places`, after at most about `seconds`."""
    kinds = _kinds(sources)
    total = sum(kind.expanded for kind in kinds)
    for kind in kinds:
        if kind.stored:
            share, began = kind.expanded / total, time.process_time()
            wanted = max(_FEWEST, round(places * share))
            wanted = min(wanted, _REMOTE) if kind.remote else wanted
            _sample(kind, wanted, sources, looking, time.monotonic() + seconds * max(0.1, share))
            kind.cpu_seconds = time.process_time() - began
    return kinds


def _kinds(sources: Sequence[Source]) -> list[Kind]:
    """The kinds by the names of the sources alone: to open a hundred thousand files would take minutes."""
    found: dict[tuple[str, str, bool], tuple[array[int], array[int]]] = {}
    for i, source in enumerate(sources):
        format = source.input_format if source.input_format != "auto" else format_of(source.path)
        key = format, compression_of(source.path), source.remote
        members, sizes = found.setdefault(key, (array("q"), array("q")))
        members.append(i)
        sizes.append(source.size or 0)
    kinds = [Kind(*key, members, np.array(sizes)) for key, (members, sizes) in found.items()]
    return sorted(kinds, key=lambda kind: -kind.expanded)


def _sample(kind: Kind, places: int, sources: Sequence[Source], looking: Looking, until: float) -> None:
    """Read some sources of a kind, at so many places or a few more."""
    rng, unit = random.Random(len(kind.members)), reading_places.UNIT
    most = places * (1 if kind.remote else _INSTEAD)
    everything = kind.expanded <= places * unit and len(kind.members) <= most
    drawn = {} if everything else _draw(kind, places, most, rng)

    def ended() -> bool:
        return time.monotonic() > until

    def read(one: tuple[SampledSource, list[float] | None]) -> SampledSource:
        looked, shares = one
        # A few compressed megabytes may hold gigabytes.
        units = 2 * places if shares is None else min(2 * places, len(shares) * STREAM_UNITS)
        looked.read(shares, units * unit)
        return looked

    # In the order of the plan, since sources are kept packed, many together.
    indices = [(kind.members[member], drawn.get(member)) for member in (drawn or range(len(kind.members)))]
    chosen = [(SampledSource(index, sources[index], looking, ended), shares) for index, shares in indices]
    rng.shuffle(chosen)
    at_once, text = _THREADS if kind.remote else 1, 0
    with ThreadPoolExecutor(_THREADS, "shardmill-look") as pool:
        for i in range(0, len(chosen), at_once):
            some = chosen[i : i + at_once]
            kind.looked += pool.map(read, some) if kind.remote else map(read, some)
            text += sum(place.text for looked in kind.looked[i:] for place in looked.places)
            if ended() or text > 2 * places * unit:
                break
    # Together the places stand for all of the kind.
    sampled = sum(place.weight * place.covered for place in kind.places)
    for place in kind.places:
        place.weight = 1.0 if kind.whole or not sampled else place.weight * kind.stored / sampled
    formats: Counter[tuple[str, str]] = Counter()
    for looked in kind.looked:
        formats[looked.format, looked.compression] += bool(looked.format) * (1 + (looked.source.size or 0))
    if any(formats.values()):
        kind.format, kind.compression = max(formats, key=formats.__getitem__)


def _draw(kind: Kind, places: int, most: int, rng: random.Random) -> dict[int, list[float]]:
    """Draw at equal distances over the bytes of a kind, at most so many times.

    Return the sources that were hit, each with the shares of it at which it was.
    """
    about, unit = INPUT_FORMATS.get(kind.format), reading_places.UNIT
    stream = bool(kind.compression) or (about is not None and about.text and not about.sectioned)
    # Small sources are drawn more often, so that as much text is read.
    largest = STREAM_UNITS * unit if stream else unit
    text = float(np.minimum(kind.sizes * (kind.expanded / kind.stored), largest) @ kind.sizes) / kind.stored
    count = max(1, min(most, round(places * unit / max(1.0, text))))
    targets = (np.arange(count) + rng.random()) * (kind.stored / count)
    ends = np.cumsum(kind.sizes)
    hits = np.minimum(np.searchsorted(ends, targets, side="right"), len(ends) - 1)
    shares = 1 - (ends[hits] - targets) / np.maximum(1, kind.sizes[hits])
    drawn: dict[int, list[float]] = {}
    for hit, share in zip(hits.tolist(), shares.tolist(), strict=True):
        drawn.setdefault(hit, []).append(share)
    for some in drawn.values():
        rng.shuffle(some)  # so that what is read before the time is over is from all over the source
    return drawn


def looking_fetcher() -> Fetcher:
    """Return a fetcher that gives up within seconds, not minutes."""
    given = RetryPolicy.from_environment()
    policy = RetryPolicy(min(3, given.tries), 20.0, given.pause, 5.0, min(10.0, given.timeout))
    return Fetcher((), _WINDOW, policy, footer_bytes=footer_bytes)
