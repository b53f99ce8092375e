"""A sample of the sources: places spread evenly over all their bytes, read, and encoded with one engine.

Sources of one format and compression are a kind, and each kind has places of its own. A large file is entered at
several of them; where sources are small, a place is a few neighbours.
"""

from __future__ import annotations

import random
import re
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Reading
from shardmill.errors import SourceError
from shardmill.inspection.at_once import at_once
from shardmill.inspection.excerpts import UNIT, Excerpt, Look, clock
from shardmill.inspection.looking import look_into
from shardmill.run.dealing import join
from shardmill.storage import Source
from shardmill.storage.names import compression_of, format_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine

BUCKETS = 24
"""Of document sizes: bucket i holds those of up to 4 ** i bytes, and more than fit in the one before."""
_TOGETHER, _TOGETHER_AFAR = 64, 8  # small sources at one place
_AFAR = 32  # places in remote sources at the most: each is a row group, or half a megabyte, to be fetched
_FEWEST = 6  # places for a kind, however small its share
_EXPANDS = 3  # times that compressed text is larger than it is stored, about
_MANY = 2000  # sources: beyond that not all of them are opened, however small they are
_RAW = 64 * 1024  # bytes of an excerpt that are kept to look for separators


Visit = tuple[list[int], list[float] | None]
"""Sources, and the shares of each at which to look; None: all of it is read."""


@dataclass
class Unit:
    """What was found at one place; the variance between units gives the margin."""

    stored: float = 0.0
    text: int = 0
    tokens: int = 0
    documents: int = 0
    """Empty and rejected ones included; of text without a separator none, there a source is a document."""
    empty: int = 0
    rejected: int = 0
    replaced: int = 0
    fallbacks: int = 0
    feeding: float = 0.0
    """Seconds of work to find where documents end, or to decompress; `reading` and `encoding` are the workers'."""
    reading: float = 0.0
    encoding: float = 0.0


@dataclass
class Kind:
    """The sources of one format and compression, and what was found in some of them."""

    format: str
    compression: str
    members: Sequence[int]
    """Indices in the plan."""
    sizes: NDArray[np.int64]
    remote: bool = False
    units: list[Unit] = field(default_factory=list)
    sizes_seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    """Documents of the sample in each bucket."""
    reasons: Counter[str] = field(default_factory=Counter)
    raw: list[bytes] = field(default_factory=list)
    """Beginnings of excerpts of plain text."""
    looked: int = 0
    """Sources that were opened."""
    whole: bool = False
    """All of it was read: what was counted is exact."""
    doubts: list[tuple[float, float]] = field(default_factory=list)
    """Of each source that was looked into: stored bytes that its excerpts stand for, and how far that may be off."""
    errors: list[SourceError] = field(default_factory=list)

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def weight(self) -> int:
        """Bytes of text, roughly."""
        return self.stored * self.expands

    @property
    def together(self) -> int:
        """Small sources that one look takes."""
        return _TOGETHER_AFAR if self.remote else _TOGETHER

    @property
    def expands(self) -> int:
        return _EXPANDS if self.compression or self.format == "parquet" else 1


def take_sample(
    sources: Sequence[Source], reading: Reading, engine: Engine, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:
    """The kinds of the sources, each with a sample of about its share of `places`, in at most about `seconds`."""
    kinds = _kinds(sources)
    total = sum(kind.weight for kind in kinds)
    started = time.monotonic()
    spent = 0
    for kind in kinds:
        if not kind.stored:
            kind.whole = True
            continue
        spent += kind.weight
        # Kinds share the time as they share the bytes, and what one leaves over goes to the next.
        until = started + seconds * max(spent / total, 0.1)
        wanted = max(_FEWEST, places * kind.weight // total)
        _sample_kind(kind, sources, reading, engine, min(wanted, _AFAR) if kind.remote else wanted, until)
    return kinds


def _kinds(sources: Sequence[Source]) -> list[Kind]:
    """Told by the names alone: to open a hundred thousand files would take minutes."""
    found: dict[tuple[str, str], array[int]] = {}
    for i, source in enumerate(sources):
        format = source.input_format if source.input_format != "auto" else format_of(source.path)
        found.setdefault((format, compression_of(source.path)), array("q")).append(i)
    kinds = []
    for (format, compression), members in found.items():
        sizes = np.array([sources[i].size or 0 for i in members], np.int64)
        kinds.append(Kind(format, compression, members, sizes, any(sources[i].remote for i in members)))
    return sorted(kinds, key=lambda kind: -kind.weight)


def _sample_kind(
    kind: Kind, sources: Sequence[Source], reading: Reading, engine: Engine, places: int, until: float
) -> None:
    everything = kind.weight <= places * UNIT and len(kind.members) <= _MANY
    visits = _everything(kind) if everything else _places(kind, places)
    most = 2 * places * UNIT  # a few compressed megabytes may hold gigabytes
    random.Random(0).shuffle(visits)
    formats: Counter[str] = Counter()
    compressions: Counter[str] = Counter()
    complete = everything

    def ended() -> bool:
        return time.monotonic() > until

    def look(visit: Visit) -> list[tuple[int, Look]]:
        members, shares = visit
        if ended() and kind.looked:
            return []
        return [
            (member, look_into(kind.members[member], sources[kind.members[member]], reading, shares, ended, most))
            for member in members
        ]

    for looks in at_once(look, visits, kind.remote):
        if not looks or (ended() and kind.units):
            complete = False
            break
        held: list[Excerpt] = []
        for member, look_at in looks:
            kind.looked += 1
            complete = complete and look_at.whole
            if look_at.error is not None:
                kind.errors.append(look_at.error)
            if look_at.format:
                formats[look_at.format] += int(kind.sizes[member])
                compressions[look_at.compression] += int(kind.sizes[member])
            stands_for = sum(excerpt.stored for excerpt in look_at.excerpts)
            kind.doubts.append((stands_for, look_at.doubt * stands_for))
            for excerpt in look_at.excerpts:
                held.append(excerpt)
                if sum(len(one.documents.data) for one in held) >= UNIT // 2:
                    kind.units.append(_unit(kind, held, engine))
                    held = []
        if held:
            kind.units.append(_unit(kind, held, engine))
    kind.whole = complete
    if formats:
        kind.format = max(formats, key=formats.__getitem__)
        kind.compression = max(compressions, key=compressions.__getitem__)


def _everything(kind: Kind) -> list[Visit]:
    """All sources, small neighbours together."""
    visits: list[Visit] = []
    size = 0
    for member, more in enumerate(kind.sizes.tolist()):
        if not visits or size + more > UNIT or len(visits[-1][0]) >= kind.together:
            visits.append(([], None))
            size = 0
        visits[-1][0].append(member)
        size += more
    return visits


def _places(kind: Kind, places: int) -> list[Visit]:
    """Sources with the shares of them at which to look, or small neighbours of which all is read."""
    draw = random.Random(len(kind.members))
    ends = np.cumsum(kind.sizes)
    targets = [(k + draw.random()) / places * int(ends[-1]) for k in range(places)]
    hit: dict[int, list[float]] = {}
    for target in targets:
        member = min(int(np.searchsorted(ends, target, side="right")), len(ends) - 1)
        size = int(kind.sizes[member])
        hit.setdefault(member, []).append((target - (int(ends[member]) - size)) / max(1, size))
    small = UNIT // kind.expands
    visits: list[Visit] = []
    chosen = sorted(hit)
    for member, following in zip(chosen, [*chosen[1:], len(ends)], strict=True):
        if kind.sizes[member] > small:
            draw.shuffle(hit[member])
            visits.append(([member], hit[member]))
        else:
            most = min(following, member + kind.together)
            last = int(np.searchsorted(ends, int(ends[member]) + small))
            visits.append((list(range(member, max(member + 1, min(most, last)))), None))
    return visits


def _unit(kind: Kind, held: list[Excerpt], engine: Engine) -> Unit:
    """Encode some excerpts together, and count."""
    started = clock()
    documents = join([excerpt.documents for excerpt in held])
    encoded = engine.encode(documents.data, documents.offsets)
    unit = Unit(encoding=clock() - started, fallbacks=encoded.fallbacks)
    unit.tokens, unit.text = int(encoded.lengths.sum()), int(documents.offsets[-1] - documents.offsets[0])
    for excerpt in held:
        found = excerpt.documents
        unit.stored += excerpt.stored
        unit.feeding += excerpt.feeding
        unit.reading += excerpt.reading
        unit.replaced += found.replaced
        kind.reasons.update(_plain(reject.reason) for reject in found.rejects)
        if excerpt.records:
            sizes = np.diff(found.offsets)
            unit.documents += excerpt.records
            unit.empty += int(np.count_nonzero(sizes == 0))
            unit.rejected += len(found.rejects)
            kind.sizes_seen += bucketed(sizes[sizes > 0])
        if excerpt.raw and len(kind.raw) < 256:
            kind.raw.append(excerpt.raw[:_RAW])
    unit.rejected += len(encoded.failed)
    kind.reasons.update(_plain(reason) for _, reason in encoded.failed)
    return unit


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def _plain(reason: str) -> str:
    """A reason without what is different in every record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
