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
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Reading, format_reader, join
from shardmill.errors import SourceError
from shardmill.sampling import looking
from shardmill.sampling.download import at_once
from shardmill.sampling.looking import NO_TEXT, FoundInChunk, Group, Look
from shardmill.storage import Source, compression_of, format_of, open_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine

BUCKETS = 24
"""Of document sizes: bucket i holds those of up to 4 ** i bytes, and more than fit in the one before."""
_LARGEST = 2 << 20  # bytes of a record that is looked at
_TOGETHER, _TOGETHER_AFAR = 64, 8  # small sources at one place
_AFAR = 32  # places in remote sources at the most: each is a row group, or half a megabyte, to be fetched
_FEWEST = 6  # places for a kind, however small its share
_EXPANDS = 3  # times that compressed text is larger than it is stored, about
_MANY = 2000  # sources: beyond that not all of them are opened, however small they are
_FOOTERS, _FOOTERS_AFAR, _FOOTERS_TIME = 4096, 64, 3.0  # files whose footers are all read, and seconds for it
_PATIENCE = 3  # times that a sample may take on the clock what it may take of the CPU
_EIGHTHS = 8  # parts of a stream between which the variance is that of the rest


@dataclass
class Sampled:
    """What was found at one place; the variance between places gives the margin."""

    stored: float = 0.0
    """Bytes that it is of its sources, as these are measured; and that its records take."""
    covered: float = 0.0
    text: float = 0.0
    encoded: int = 0
    """Bytes of the text that were encoded: of a stretch without a place to cut it, the beginning."""
    tokens: float = 0.0
    documents: int = 0
    """That begin there, empty and rejected ones included; of text without a separator a source is a document."""
    empty: int = 0
    rejected: int = 0
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    """Documents in each bucket."""
    weight: float = 1.0
    """What is found here counts so often: a place that was drawn by its size must not count by it once more."""
    cluster: int = 0
    """Places that stand side by side in a stream are alike; the variance is that between clusters."""


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
    column: float = 1.0
    """The share of the stored bytes that a run reads: of parquet the text column alone."""
    places: list[Sampled] = field(default_factory=list)
    whole: bool = False
    """All of it was read: what was counted is exact."""
    streams: int = 0
    """Bytes of the sources that were read from their start, and of those what was not reached."""
    unseen: int = 0
    looked: int = 0
    """Sources that were opened."""
    blank: int = 0
    """Those of them that have bytes, but no text."""
    raw: list[bytes] = field(default_factory=list)
    """Beginnings of places in plain text."""
    controls: dict[str, float] = field(default_factory=dict)
    """Sources of which so large a share of the sampled text is no text."""
    replaced: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    errors: list[SourceError] = field(default_factory=list)
    too_large: tuple[int, str, str] = (0, "", "")
    """The largest record that was too large for the sample, where it is, and the way out if more memory is none."""
    opening: float = 0.0
    """Seconds to open all sources, where that is more than to read a beginning."""
    chunks: list[tuple[int, float, float]] = field(default_factory=list)
    """Bytes of text, and seconds to find it or decompress it, which one thread does, and to make documents of it."""
    encoding: list[tuple[int, float]] = field(default_factory=list)
    """Bytes of text and seconds of each call of the engine."""

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def measured(self) -> int:
        return int(self.measures.sum())

    @property
    def expands(self) -> int:
        return _EXPANDS if self.compression or self.format == "parquet" else 1


def take_sample(
    sources: Sequence[Source], reading: Reading, engine: Engine, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:
    """The kinds of the sources, each with a sample of about its share of `places`, in at most about `seconds`."""
    reading = replace(reading, largest=min(reading.largest, _LARGEST))
    kinds = _kinds(sources)
    total = sum(kind.stored * kind.expands for kind in kinds)
    began, started = looking.clock(), time.monotonic()
    spent = 0
    for kind in kinds:
        if not kind.stored:
            kind.whole = True
            continue
        _read_footers(kind, sources, reading)
        weight = kind.stored * kind.expands
        spent += weight
        # Kinds share the time as they share the bytes, and what one leaves over goes to the next.
        until = seconds * max(spent / total, 0.1)

        def ended(until: float = until) -> bool:
            """On a busy machine it may take longer; on one that waits for its disk too, but not for ever."""
            passed = time.monotonic() - started
            return passed > until and (passed > _PATIENCE * until or looking.clock() - began > until)

        wanted = max(_FEWEST, places * weight // total)
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
    return sorted(kinds, key=lambda kind: -kind.stored * kind.expands)


def _read_footers(kind: Kind, sources: Sequence[Source], reading: Reading) -> None:
    """Of parquet, how many rows there are and how much text, about, unless that takes long or one cannot be read."""
    if kind.format != "parquet" or len(kind.members) > (_FOOTERS_AFAR if kind.remote else _FOOTERS):
        return
    until = time.monotonic() + _FOOTERS_TIME

    def look(member: int) -> tuple[int, int] | None:
        if time.monotonic() > until:
            return None
        if not sources[member].size:
            return 0, 0
        opened = open_source(sources[member], reading.fetcher)
        with closing(opened.feed) as feed:
            parts = format_reader(member, sources[member], reading, opened, lambda: feed).parts(feed)
        return sum(part.rows for part in parts), sum(part.size for part in parts)

    try:
        found = list(at_once(look, kind.members, kind.remote))
    except SourceError:
        return  # looking into it will tell why
    known = [one for one in found if one is not None]
    if len(known) == len(found):
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
        self._small = looking.UNIT // kind.expands

    def go(self) -> None:
        kind = self._kind
        parts = self._parts()
        everything = kind.stored <= self._places * self._small and len(kind.members) <= _MANY
        drawn: list[tuple[list[int], list[float] | None]] = [(part, None) for part in parts]
        if not everything:
            drawn = self._drawn(parts)
        self._random.shuffle(drawn)
        complete = len(drawn) == len(parts)
        looks: list[Look] = []
        for number, (found, part) in enumerate(zip(at_once(self._look, drawn, kind.remote), drawn, strict=True)):
            if self._ended() and kind.places:
                complete = False
                break
            places = self._places_of(found)
            looks += [look for look, _ in found]
            if not everything:
                _balance(places, 0 if found[0][0].entered else len(part[1] or ()))
            stream = not everything and not found[0][0].entered
            for i, place in enumerate(places):
                # What stands side by side in a stream is alike: its eighths count, or the streams where there are more.
                beside = i * _EIGHTHS // len(places) if len(drawn) < _EIGHTHS else 0
                place.cluster = -1 - number * _EIGHTHS - beside if stream else len(kind.places) + i
            kind.places += places
        kind.whole = complete and all(look.whole for look in looks)
        self._conclude(looks)

    def _conclude(self, looks: list[Look]) -> None:
        kind = self._kind
        formats: Counter[tuple[str, str]] = Counter()
        kind.looked = len(looks)
        for look in looks:
            kind.blank += not look.text and look.source.size != 0
            kind.controls |= {look.source.name: look.controls} if look.controls > NO_TEXT else {}
            kind.raw += look.raw
            kind.errors += [look.error] if look.error is not None else []
            formats[look.format, look.compression] += 1 + (look.source.size or 0)
            kind.streams += 0 if look.entered else look.source.size or 0
            kind.unseen += look.unseen
            kind.too_large = max(kind.too_large, look.too_large)
        if known := {name: size for name, size in formats.items() if name[0]}:
            kind.format, kind.compression = max(known, key=known.__getitem__)
        listed = [look for look in looks if look.parts]
        if len(listed) == len(kind.members):
            kind.rows = sum(part.rows for look in listed for part in look.parts)
        if sizes := sum(look.source.size or 0 for look in listed):
            kind.column = sum(part.stored for look in listed for part in look.parts) / sizes
            kind.opening = sum(look.opening for look in listed) / len(listed) * len(kind.members)

    def _parts(self) -> list[list[int]]:
        """All sources, small neighbours together."""
        parts, size = list[list[int]](), 0
        most = _TOGETHER_AFAR if self._kind.remote else _TOGETHER
        for member, more in enumerate(self._kind.sizes.tolist()):
            if not parts or size + more > self._small or len(parts[-1]) >= most:
                parts.append([])
                size = 0
            parts[-1].append(member)
            size += more
        return parts

    def _drawn(self, parts: list[list[int]]) -> list[tuple[list[int], list[float] | None]]:
        """Some of them, at even distances over the whole kind, from a random place on in each distance; each with the
        shares of it that were hit."""
        measures = np.array([int(self._kind.measures[part].sum()) for part in parts])
        ends = np.cumsum(measures)
        drawn: dict[int, list[float]] = {}
        for k in range(self._places):
            target = (k + self._random.random()) / self._places * int(ends[-1])
            hit = min(int(np.searchsorted(ends, target, side="right")), len(parts) - 1)
            drawn.setdefault(hit, []).append((target - int(ends[hit] - measures[hit])) / max(1, int(measures[hit])))
        return [(parts[hit], shares) for hit, shares in drawn.items()]

    def _look(self, part: tuple[list[int], list[float] | None]) -> list[tuple[Look, Iterable[Group]]]:
        """Of what is here the documents are read when they are asked for, of what is far away at once."""
        members, shares = part
        looks: list[tuple[Look, Iterable[Group]]] = []
        small = shares is None or int(self._kind.sizes[members].sum()) <= self._small
        if shares is not None:
            self._random.shuffle(shares)  # so that what time allows is from all over it
        for member in members:
            index = self._kind.members[member]
            measure = int(self._kind.measures[member])
            look = Look(index, self._sources[index], measure, self._reading, self._ended)
            # A few compressed megabytes may hold gigabytes.
            groups = look.groups(None if small else shares, 2 * self._places * looking.UNIT)
            looks.append((look, list(groups) if self._kind.remote else groups))
        return looks

    def _places_of(self, looks: list[tuple[Look, Iterable[Group]]]) -> list[Sampled]:
        """What was found in a source, place by place; of small sources side by side all is one place."""
        places: list[Sampled] = []
        if len(looks) == 1:
            look, groups = looks[0]
            places = [self._place(group) for group in groups]
            for place in places:
                place.stored, place.covered = place.stored * look.scale, place.covered * look.scale
            return places
        pieces: list[FoundInChunk] = []
        stored = covered = 0.0
        for look, groups in looks:
            found = list(groups)
            pieces += [piece for group in found for piece in group.pieces]
            stored += sum(group.stored for group in found) * look.scale
            covered += sum(group.covered for group in found) * look.scale
        return [self._place(Group(pieces, stored, covered))]

    def _place(self, group: Group) -> Sampled:
        kind, place = self._kind, Sampled(group.stored, group.covered, weight=group.hits)
        for piece in group.pieces:
            documents = piece.documents
            kind.chunks.append((piece.text, piece.feeding, piece.reading))
            place.documents += piece.begun
            place.empty += int(np.count_nonzero(piece.sizes == 0))
            place.rejected += len(documents.rejects)
            place.text += piece.text
            place.sizes += bucketed(piece.sizes[piece.sizes > 0])
            kind.replaced += documents.replaced(len(documents))
            kind.reasons.update(_plain_reason(reject.reason) for reject in documents.rejects)
        documents = join([piece.documents for piece in group.pieces])
        started = looking.clock()
        encoded = self._engine.encode(documents.data, documents.offsets)
        place.encoded = int(documents.offsets[-1] - documents.offsets[0])
        kind.encoding.append((place.encoded, looking.clock() - started))
        place.tokens = float(encoded.lengths.sum()) / max(1, place.encoded) * place.text
        place.rejected += len(encoded.failed)
        kind.reasons.update(_plain_reason(reason) for _, reason in encoded.failed)
        return place


def _balance(places: list[Sampled], hits: int) -> None:
    """Let what was found count as often as it was drawn, not by how large it is; 0: each place was drawn by itself."""
    total = sum(place.stored for place in places)
    for place in places:
        size = total if hits else place.stored
        place.weight = (hits or place.weight) * looking.UNIT / size if size else 0.0


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def _plain_reason(reason: str) -> str:
    """A reason without what is different in every record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
