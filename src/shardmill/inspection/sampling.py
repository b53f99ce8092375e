"""A sample of the sources, read by the ordinary readers and encoded with one engine.

Sources of one format and compression are a kind. All stored bytes of a kind are divided into parts: stretches of a
source, or small sources together. Parts are drawn with the probability of their size, spread over all of them.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Documents, Reading
from shardmill.errors import SourceError
from shardmill.inspection.at_once import at_once
from shardmill.inspection.download import read_footers
from shardmill.inspection.found import BUCKETS, NO_TEXT, Found, bucketed, plain_reason, share_of_controls, some_bytes
from shardmill.inspection.looking import Look, clock
from shardmill.run import join
from shardmill.storage import Source, compression_of, format_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine

UNIT = 512 * 1024
"""Bytes of text at one place, about."""
_LARGEST = 2 << 20  # bytes of a record that is looked at
_TOGETHER, _TOGETHER_AFAR = 64, 8  # small sources at one place
_AFAR = 32  # places in remote sources at the most: each is a row group, or half a megabyte, to be fetched
_FEWEST = 6  # places for a kind, however small its share
_EXPANDS = 3  # times that compressed text is larger than it is stored, about
_MANY = 2000  # sources: beyond that not all of them are opened, however small they are
_RAW, _RAWS = 64 * 1024, 256  # bytes of a place that are kept to look for separators, and places
_EIGHTHS = 8  # parts of a stream between which the variance is that of the rest
_NAMED = 1000  # sources that are remembered for that
_LOADING = 2  # places at which libraries are loaded: what they take is not the speed of a run


@dataclass
class Unit:
    """What was found at one place; the variance between units gives the margin."""

    stored: float = 0.0
    """Bytes that it stands for, as its sources are measured; and that its records take."""
    covered: float = 0.0
    seen: float = 0.0
    """Stored bytes whose text was encoded."""
    text: float = 0.0
    encoded: int = 0
    """Bytes of the text that were encoded."""
    tokens: float = 0.0
    documents: int = 0
    """That begin there, empty and rejected ones included; of text without a separator a source is a document."""
    empty: int = 0
    rejected: int = 0
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    """Documents in each bucket."""
    weight: float = 1.0
    """What is found here counts so often: a part that was drawn by its size must not count by it once more."""
    cluster: int = 0
    """Units that stand side by side in a stream are alike; the variance is that between clusters."""


@dataclass
class Kind:
    """The sources of one format and compression, and what was found in some of them."""

    format: str
    compression: str
    members: Sequence[int]
    """Indices in the plan."""
    sizes: NDArray[np.int64]
    remote: bool = False
    rows: int | None = None
    """Documents, where the footers of all files say how many there are."""
    measures: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """What each source is measured by, and so drawn by: its stored bytes, or what is nearer to its bytes of text."""
    units: list[Unit] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    raw: list[bytes] = field(default_factory=list)
    """Beginnings of places in plain text."""
    controls: dict[str, float] = field(default_factory=dict)
    """Sources of which so large a share of the sampled text is no text."""
    looked: int = 0
    """Sources that were opened."""
    blank: int = 0
    """Those of them that have bytes, but no text."""
    sampled: int = 0
    """Bytes of text that were encoded."""
    replaced: int = 0
    whole: bool = False
    """All of it was read: what was counted is exact."""
    unseen: float = 0.0
    """Bytes of streams that were looked into and not reached, and of all these streams."""
    streams: float = 0.0
    errors: list[SourceError] = field(default_factory=list)
    too_large: tuple[int, str, str] = (0, "", "")
    """The largest record that was too large for the sample, where it is, and the way out if more memory is none."""
    feeding: float = 0.0
    """Seconds of work for each byte of text: to find where documents end, or to decompress."""
    reading: float = 0.0
    """The same of a worker, to make documents of it."""
    encoding: list[tuple[int, float]] = field(default_factory=list)
    """Bytes of text and seconds of each call of the engine."""

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def measured(self) -> int:
        return int(self.measures.sum())

    @property
    def weight(self) -> int:
        """Bytes of text, roughly."""
        return self.stored * self.expands

    @property
    def together(self) -> int:
        """Small sources that are one part."""
        return _TOGETHER_AFAR if self.remote else _TOGETHER

    @property
    def expands(self) -> int:
        return _EXPANDS if self.compression or self.format == "parquet" else 1


@dataclass
class _Part:
    """Small neighbours, all of which is read, or a large source with the shares of it at which to look."""

    members: list[int]
    shares: list[float] | None = None
    hits: int = 1


def take_sample(
    sources: Sequence[Source], reading: Reading, engine: Engine, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:
    """The kinds of the sources, each with a sample of about its share of `places`, in at most about `seconds`."""
    reading = replace(reading, largest=min(reading.largest, _LARGEST))
    kinds = _kinds(sources)
    total = sum(kind.weight for kind in kinds)
    started = time.monotonic()
    spent = 0
    for kind in kinds:
        if not kind.stored:
            kind.whole = True
            continue
        if (footers := read_footers(kind, sources, reading.text_field, reading.fetcher)) is not None:
            kind.rows = footers[0]
            kind.measures = footers[1] if footers[1].any() else kind.sizes
        spent += kind.weight
        # Kinds share the time as they share the bytes, and what one leaves over goes to the next.
        until = started + seconds * max(spent / total, 0.1)
        wanted = max(_FEWEST, places * kind.weight // total)
        _Sampling(kind, sources, reading, engine, min(wanted, _AFAR) if kind.remote else wanted, until).go()
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
        remote = any(sources[i].remote for i in members)
        kinds.append(Kind(format, compression, members, sizes, remote, measures=sizes))
    return sorted(kinds, key=lambda kind: -kind.weight)


class _Sampling:
    """The sample of one kind."""

    def __init__(
        self, kind: Kind, sources: Sequence[Source], reading: Reading, engine: Engine, places: int, until: float
    ) -> None:
        self._kind, self._sources, self._reading, self._engine = kind, sources, reading, engine
        self._places, self._until = places, until
        self._random = random.Random(len(kind.members))
        self._fed: list[tuple[int, float]] = []
        self._read: list[tuple[int, float]] = []

    def go(self) -> None:
        kind = self._kind
        everything = kind.weight <= self._places * UNIT and len(kind.members) <= _MANY
        parts = self._all_parts() if everything else self._drawn(self._all_parts())
        self._random.shuffle(parts)
        complete = everything
        formats: Counter[tuple[str, str]] = Counter()
        for number, looks in enumerate(at_once(self._look, parts, kind.remote)):
            if self._ended() and kind.units:
                complete = False
                break
            found = chain.from_iterable(each for _, each in looks)
            units = [self._unit(list(one)) for _, one in groupby(found, key=lambda one: one.place)]
            for look, _ in looks:
                kind.looked += 1
                kind.blank += not look.text and look.source.size != 0
                self._note_controls(look.source.name, look.controls)
                complete = complete and look.whole
                if look.error is not None:
                    kind.errors.append(look.error)
                formats[look.format, look.compression] += 1 + (look.source.size or 0)
                kind.streams += look.stream
                kind.unseen += look.unseen
                if look.too_large > kind.too_large:
                    kind.too_large = look.too_large
            if not everything:
                _balance(units, parts[number].hits, apart=looks[0][0].placed)
            for i, unit in enumerate(units):
                # What stands side by side in a stream is alike: its eighths count, or the streams where there are more.
                together = number * _EIGHTHS + (i * _EIGHTHS // len(units) if len(parts) < _EIGHTHS else 0)
                unit.cluster = together if kind.streams and not everything else len(kind.units) + i
            kind.units += units
        kind.whole = complete
        if known := {name: size for name, size in formats.items() if name[0]}:
            kind.format, kind.compression = max(known, key=known.__getitem__)
        kind.feeding, kind.reading = _seconds_a_byte(self._fed), _seconds_a_byte(self._read)
        kind.encoding = [call for call in kind.encoding if call[0] > UNIT // 4] or kind.encoding

    def _ended(self) -> bool:
        return time.monotonic() > self._until

    def _all_parts(self) -> list[_Part]:
        """All sources, small neighbours together."""
        small, parts, size = UNIT // self._kind.expands, list[_Part](), 0
        for member, more in enumerate(self._kind.sizes.tolist()):
            if not parts or size + more > small or len(parts[-1].members) >= self._kind.together:
                parts.append(_Part([]))
                size = 0
            parts[-1].members.append(member)
            size += more
        return parts

    def _drawn(self, parts: list[_Part]) -> list[_Part]:
        """Some of them, drawn at even distances over all stored bytes, from a random place on in each distance."""
        sizes = np.array([sum(int(self._kind.measures[member]) for member in part.members) for part in parts])
        ends = np.cumsum(sizes)
        drawn: dict[int, list[float]] = {}
        for k in range(self._places):
            target = (k + self._random.random()) / self._places * int(ends[-1])
            hit = min(int(np.searchsorted(ends, target, side="right")), len(parts) - 1)
            drawn.setdefault(hit, []).append((target - int(ends[hit] - sizes[hit])) / max(1, int(sizes[hit])))
        small = UNIT // self._kind.expands
        large = {hit for hit in drawn if sum(int(self._kind.sizes[member]) for member in parts[hit].members) > small}
        return [
            _Part(parts[hit].members, shares if hit in large else None, len(shares)) for hit, shares in drawn.items()
        ]

    def _look(self, part: _Part) -> list[tuple[Look, Iterator[Found]]]:
        """Of what is here the documents are read when they are asked for, of what is far away at once."""
        shares = part.shares
        if shares is not None and not self._kind.remote:
            self._random.shuffle(shares)  # so that what time allows is from all over it
        looks: list[tuple[Look, Iterator[Found]]] = []
        most = 2 * self._places * UNIT  # a few compressed megabytes may hold gigabytes
        for member in part.members:
            index = self._kind.members[member]
            measure = int(self._kind.measures[member])
            look = Look(index, self._sources[index], measure, self._reading, UNIT, most, self._ended)
            found = look.go(shares)
            looks.append((look, iter(list(found)) if self._kind.remote else found))
        return looks

    def _unit(self, found: list[Found]) -> Unit:
        """What was found at one place, or in small sources side by side."""
        kind = self._kind
        unit = Unit(weight=found[0].hits)
        for one in found:
            documents = one.documents
            self._fed.append((one.fed, one.feeding))
            self._read.append((one.size, one.reading))
            unit.stored += one.stored
            unit.covered += one.covered
            unit.documents += one.begun
            unit.empty += int(np.count_nonzero(one.sizes == 0))
            unit.rejected += len(documents.rejects)
            unit.text += one.size * one.part
            kind.replaced += documents.replaced(len(documents))
            kind.reasons.update(plain_reason(reject.reason) for reject in documents.rejects)
            unit.sizes += bucketed(one.sizes[one.sizes > 0])
            if one.raw and len(kind.raw) < _RAWS:
                kind.raw.append(one.raw[:_RAW])
            self._note_controls(one.name, share_of_controls(documents.data[:_RAW].tobytes()))
        whole = [one for one in found if one.part == 1]
        for some in [whole, *([one] for one in found if one.part != 1)]:
            if some:
                text = sum(one.size for one in some) * some[0].part
                unit.tokens += self._tokens_a_byte(join([one.documents for one in some]), unit, found[0].hits) * text
        unit.seen = unit.stored * min(1.0, unit.encoded / max(1, sum(one.size for one in found)))
        return unit

    def _note_controls(self, name: str, share: float) -> None:
        known = self._kind.controls
        if share > NO_TEXT and (name in known or len(known) < _NAMED):
            known[name] = max(share, known.get(name, 0.0))

    def _tokens_a_byte(self, documents: Documents, unit: Unit, hits: int) -> float:
        kind = self._kind
        documents = some_bytes(documents, max(2, hits) * UNIT, self._random)
        started = clock()
        encoded = self._engine.encode(documents.data, documents.offsets)
        size = int(documents.offsets[-1] - documents.offsets[0])
        kind.encoding.append((size, clock() - started))
        kind.sampled += size
        unit.encoded += size
        unit.rejected += len(encoded.failed)
        kind.reasons.update(plain_reason(reason) for _, reason in encoded.failed)
        return float(encoded.lengths.sum()) / size if size else 0.0


def _balance(units: list[Unit], hits: int, *, apart: bool) -> None:
    """Let what was found in a part count as often as it was drawn, not by how large it is."""
    total = sum(unit.stored for unit in units)
    for unit in units:
        size = unit.stored if apart else total
        unit.weight = (unit.weight if apart else hits) * UNIT / size if size else 0.0


def _seconds_a_byte(calls: list[tuple[int, float]]) -> float:
    """The speed of calls with so many bytes that took so many seconds.

    A run has chunks of megabytes, so what a call takes however little it is given is left out.
    """
    steady = calls[_LOADING:] or calls
    large = [call for call in steady if call[0] > UNIT // 4] or steady
    small = sorted(seconds for size, seconds in steady if size <= UNIT // 16)
    each = small[len(small) // 2] if len(small) >= _FEWEST and large is not steady else 0.0
    return max(0.0, sum(seconds - each for _, seconds in large)) / max(1, sum(size for size, _ in large))
