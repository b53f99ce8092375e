"""A sample of the sources, read by the ordinary readers and encoded with one engine.

Sources of one format and compression are a kind. All of a kind is divided into places: sections or rows of a source, or
small sources together. Places are drawn with the probability of their size, spread over all of the kind.
"""

from __future__ import annotations

import random
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Reading, join
from shardmill.sampling import places as reading_places
from shardmill.sampling.download import at_once
from shardmill.sampling.places import BUCKETS, EXPANDS, SampledPlace, SampledSource
from shardmill.storage import Source, compression_of, format_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine

_LARGEST = 2 << 20  # bytes of a record that is looked at
_TOGETHER, _TOGETHER_AFAR = 64, 8  # small sources at one place
_AFAR = 32  # places in remote sources at the most: each is a row group, or half a megabyte, to be fetched
_FEWEST = 6  # places for a kind, however small its share
_MANY = 2000  # sources: beyond that not all of them are opened, however small they are
_FOOTERS, _FOOTERS_AFAR, _FOOTERS_TIME = 4096, 64, 3.0  # files whose footers are all read, and seconds for it
_PATIENCE = 3  # times that a sample may take on the clock what it may take of the CPU
_EIGHTHS = 8  # parts of a stream between which the variance is that of the rest

Draw = tuple[list[int], list[float] | None]
"""Some neighbouring sources of a kind, and the shares of them that were hit; None: all of it is wanted."""


@dataclass
class Kind:
    """The sources of one format and compression, and what was found in some of them."""

    format: str
    compression: str
    members: Sequence[int]
    """Indices in the plan."""
    sizes: NDArray[np.int64]
    measures: NDArray[np.int64]
    """What each source is measured by, and so drawn by: its stored bytes, or what is nearer to its bytes of text."""
    remote: bool = False
    rows: int | None = None
    """Documents, where footers or headers of all files say how many there are."""
    places: list[SampledPlace] = field(default_factory=list)
    whole: bool = False
    """All of it was read: what was counted is exact."""
    looked: list[SampledSource] = field(default_factory=list)
    """Sources that were opened."""
    replaced: int = 0
    """Invalid UTF-8 sequences."""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def measured(self) -> int:
        return int(self.measures.sum())

    @property
    def expanded(self) -> int:
        """Bytes of text, about."""
        return self.stored * (EXPANDS if self.compression or self.format == "parquet" else 1)

    @property
    def unseen(self) -> float:
        """The share of what was read from its start that was not reached."""
        streams = [one for one in self.looked if not one.entered]
        return sum(one.unseen for one in streams) / max(1, sum(one.source.size or 0 for one in streams))

    @property
    def column(self) -> float:
        """The share of the stored bytes that a run reads: of parquet the text column alone."""
        listed = [one for one in self.looked if one.parts]
        size = sum(one.source.size or 0 for one in listed)
        return sum(part.stored for one in listed for part in one.parts) / size if size else 1.0

    @property
    def opening(self) -> float:
        """Seconds to open all sources, where that is more than to read a beginning."""
        listed = [one.opening for one in self.looked if one.parts]
        return sum(listed) / len(listed) * len(self.members) if listed else 0.0


def take_sample(
    sources: Sequence[Source], reading: Reading, engine: Engine, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:
    """The kinds of the sources, each with a sample of about its share of `places`, in at most about `seconds`."""
    reading = replace(reading, largest=min(reading.largest, _LARGEST))
    kinds = _kinds(sources)
    total = sum(kind.expanded for kind in kinds)
    began, started = reading_places.clock(), time.monotonic()
    spent = 0
    for kind in kinds:
        if not kind.stored:
            kind.whole = True
            continue
        _read_footers(kind, sources, reading)
        spent += kind.expanded
        # Kinds share the time as they share the bytes, and what one leaves over goes to the next.
        until = seconds * max(spent / total, 0.1)

        def ended(until: float = until) -> bool:
            """On a busy machine it may take longer; on one that waits for its disk too, but not for ever."""
            passed = time.monotonic() - started
            return passed > until and (passed > _PATIENCE * until or reading_places.clock() - began > until)

        wanted = max(_FEWEST, places * kind.expanded // total)
        _Sampling(kind, sources, reading, engine, min(wanted, _AFAR) if kind.remote else wanted, ended).go()
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
        kinds.append(Kind(format, compression, members, sizes, sizes, any(sources[i].remote for i in members)))
    return sorted(kinds, key=lambda kind: -kind.expanded)


def _read_footers(kind: Kind, sources: Sequence[Source], reading: Reading) -> None:
    """Of parquet, how many rows there are and how much text, about, unless that takes long or one cannot be read."""
    if kind.format != "parquet" or len(kind.members) > (_FOOTERS_AFAR if kind.remote else _FOOTERS):
        return
    until = time.monotonic() + _FOOTERS_TIME

    def footer(index: int) -> tuple[int, int] | None:
        """Rows, and about how many bytes of text."""
        if not sources[index].size:
            return 0, 0
        opened = SampledSource(index, sources[index], 0, reading)
        if time.monotonic() > until or list(opened.places([], 0)) or opened.error is not None:
            return None  # the sample will tell what is wrong with it
        return sum(part.rows for part in opened.parts), sum(part.size for part in opened.parts)

    known = [one for one in at_once(footer, kind.members, kind.remote) if one is not None]
    if len(known) == len(kind.members):
        kind.rows = sum(rows for rows, _ in known)
        measures = np.array([size for _, size in known])
        kind.measures = measures if measures.any() else kind.sizes


class _Sampling:
    """The sample of one kind."""

    def __init__(
        self,
        kind: Kind,
        sources: Sequence[Source],
        reading: Reading,
        engine: Engine,
        places: int,
        ended: Callable[[], bool],
    ) -> None:
        self._kind, self._sources, self._reading, self._engine = kind, sources, reading, engine
        self._places, self._ended = places, ended
        self._random = random.Random(len(kind.members))
        self._unit = reading_places.UNIT
        self._small = self._unit * kind.stored // max(1, kind.expanded)

    def go(self) -> None:
        kind = self._kind
        neighbours = self._neighbours()
        everything = kind.stored <= self._places * self._small and len(kind.members) <= _MANY
        draws: list[Draw] = [(members, None) for members in neighbours] if everything else self._draws(neighbours)
        self._random.shuffle(draws)
        complete = len(draws) == len(neighbours)
        for number, ((_, shares), found) in enumerate(zip(draws, at_once(self._open, draws, kind.remote), strict=True)):
            if self._ended() and kind.places:
                complete = False
                break
            places = self._read(found)
            kind.looked += [source for source, _ in found]
            entered = everything or found[0][0].entered
            for i, place in enumerate(places):
                # What stands side by side in a stream is alike: its eighths count, or the streams where there are more.
                beside = i * _EIGHTHS // len(places) if len(draws) < _EIGHTHS else 0
                place.cluster = len(kind.places) + i if entered else -1 - number * _EIGHTHS - beside
                if not everything:
                    self._weigh(place, None if entered else (len(shares or ()), sum(one.stored for one in places)))
            kind.places += places
        kind.whole = complete and all(source.whole for source in kind.looked)
        formats: Counter[tuple[str, str]] = Counter()
        for source in kind.looked:
            formats[source.format, source.compression] += bool(source.format) * (1 + (source.source.size or 0))
        if any(formats.values()):
            kind.format, kind.compression = max(formats, key=formats.__getitem__)
        if kind.looked and len(kind.looked) == len(kind.members) and all(source.parts for source in kind.looked):
            kind.rows = sum(part.rows for source in kind.looked for part in source.parts)

    def _neighbours(self) -> list[list[int]]:
        """All sources, small ones that stand side by side together."""
        found, size = list[list[int]](), 0
        most = _TOGETHER_AFAR if self._kind.remote else _TOGETHER
        for member, more in enumerate(self._kind.sizes.tolist()):
            if not found or size + more > self._small or len(found[-1]) >= most:
                found.append([])
                size = 0
            found[-1].append(member)
            size += more
        return found

    def _draws(self, neighbours: list[list[int]]) -> list[Draw]:
        """Some of them, at even distances over the whole kind, from a random place on in each distance."""
        measures = np.array([int(self._kind.measures[members].sum()) for members in neighbours])
        ends = np.cumsum(measures)
        drawn: dict[int, list[float]] = {}
        for k in range(self._places):
            target = (k + self._random.random()) / self._places * int(ends[-1])
            hit = min(int(np.searchsorted(ends, target, side="right")), len(neighbours) - 1)
            drawn.setdefault(hit, []).append((target - int(ends[hit] - measures[hit])) / max(1, int(measures[hit])))
        return [(neighbours[hit], shares) for hit, shares in drawn.items()]

    def _open(self, draw: Draw) -> list[tuple[SampledSource, Iterable[SampledPlace]]]:
        """Of what is here the documents are read when they are asked for, of what is far away at once."""
        members, shares = draw
        if shares is not None:
            self._random.shuffle(shares)  # so that what time allows is from all over it
        small = int(self._kind.sizes[members].sum()) <= self._small
        found: list[tuple[SampledSource, Iterable[SampledPlace]]] = []
        for member in members:
            index = self._kind.members[member]
            measure = int(self._kind.measures[member])
            source = SampledSource(index, self._sources[index], measure, self._reading, self._ended)
            # A few compressed megabytes may hold gigabytes.
            places = source.places(None if small else shares, 2 * self._places * self._unit)
            found.append((source, list(places) if self._kind.remote else places))
        return found

    def _read(self, found: list[tuple[SampledSource, Iterable[SampledPlace]]]) -> list[SampledPlace]:
        """The places of a source, encoded; of small sources side by side all is one place."""
        if len(found) == 1:
            source, read = found[0]
            places = [self._encoded(place) for place in read]
            for place in places:
                place.stored, place.covered = place.stored * source.scale, place.covered * source.scale
            return places
        whole = SampledPlace()
        for source, read in found:
            for place in list(read):  # all of them, since only then the scale is known
                whole.stored += place.stored * source.scale
                whole.covered += place.covered * source.scale
                for name in ("text", "begun", "chunks", "lengths", "feeding", "reading"):
                    setattr(whole, name, getattr(whole, name) + getattr(place, name))
        return [self._encoded(whole)]

    def _encoded(self, place: SampledPlace) -> SampledPlace:
        kind, chunks = self._kind, place.chunks
        sizes = np.concatenate([np.empty(0, np.int64), *place.lengths])
        place.sizes, place.empty = bucketed(sizes[sizes > 0]), int(np.count_nonzero(sizes == 0))
        kind.replaced += sum(documents.replaced(len(documents)) for documents in chunks)
        documents = join(chunks)
        started = reading_places.clock()
        encoded = self._engine.encode(documents.data, documents.offsets)
        place.encoding = reading_places.clock() - started
        place.encoded = int(documents.offsets[-1] - documents.offsets[0])
        place.tokens = float(encoded.lengths.sum()) / max(1, place.encoded) * place.text
        reasons = [reject.reason for one in chunks for reject in one.rejects]
        reasons += [reason for _, reason in encoded.failed]
        kind.reasons.update(map(_plain_reason, reasons))
        place.rejected = len(reasons)
        place.chunks, place.lengths = [], []
        return place

    def _weigh(self, place: SampledPlace, stream: tuple[int, float] | None) -> None:
        """Let it count as often as it was drawn, not by how large it is; `stream`: the hits and size of all of it."""
        hits, size = stream or (place.weight, place.stored)
        place.weight = hits * self._unit / size if size else 0.0


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def _plain_reason(reason: str) -> str:
    """A reason without what is different in every record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
