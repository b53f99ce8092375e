"""A sample of the sources, read by the ordinary readers and encoded with one engine.

Sources of one format and compression are a kind. A place is a part of a source, or a small source. Places are drawn
with the probability of their size, spread over all of the kind.
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

from shardmill.core import ODD_KINDS, odd_counts
from shardmill.detection import format_of
from shardmill.documents import Part, Reading, join
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.sampling import places as reading_places
from shardmill.sampling.download import at_once
from shardmill.sampling.places import SampledPlace, SampledSource, bucketed, expansion
from shardmill.storage import Source, compression_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine

# Bytes of the largest record that is read; the second is for kinds in which much of the text is in larger ones.
_LARGEST = (2 << 20, 64 << 20)
_MUCH = 0.25
_INSTEAD, _INSTEAD_REMOTE = 64, 8  # small sources that are read instead of one place
_REMOTE = 32  # the most places in remote sources: for each, a row group or half a megabyte is fetched
_FEWEST = 6  # places for a kind, however small its share
_LISTED, _LISTED_REMOTE, _LISTED_SECONDS = 4096, 64, 3.0  # files whose parts are all listed, and seconds for it
_PATIENCE = 3  # a sample may take this many times its CPU time on the clock
_EIGHTHS = 8  # parts of a stream between which the variance is that of the rest


@dataclass
class Kind:
    """The sources of one format and compression, and what was found in some of them."""

    format: str
    compression: str
    members: Sequence[int]
    """Indices in the plan."""
    sizes: NDArray[np.int64]
    """Stored bytes of each."""
    measures: NDArray[np.int64]
    """By what sources are drawn: their stored bytes, or bytes of text if their footers say it."""
    remote: bool = False
    rows: int | None = None
    """Number of documents, where footers or headers of all files say it."""
    places: list[SampledPlace] = field(default_factory=list)
    whole: bool = False
    """Everything was read: what was counted is exact."""
    looked: list[SampledSource] = field(default_factory=list)
    """Sources that were opened."""
    replaced: int = 0
    """Invalid UTF-8 sequences."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why documents were rejected."""
    odd: Counter[str] = field(default_factory=Counter)
    """How often each of `ODD_KINDS` was found."""

    @property
    def stored(self) -> int:
        return int(self.sizes.sum())

    @property
    def measured(self) -> int:
        return int(self.measures.sum())

    @property
    def expanded(self) -> int:
        """Bytes of text, about."""
        return self.stored * expansion(self.format, self.compression)

    @property
    def unseen(self) -> float:
        """The share of the streams, which are read from their start, that was not reached."""
        streams = [one for one in self.looked if not one.entered]
        return sum(one.unseen for one in streams) / max(1, sum(one.source.size or 0 for one in streams))

    @property
    def passed(self) -> float:
        """The share of the text at the places that was not read, since its records are too large."""
        passed = sum(place.passed for place in self.places)
        return passed / (passed + sum(place.encoded for place in self.places)) if passed else 0.0

    @property
    def column(self) -> float:
        """The share of the stored bytes that a run reads: of parquet only the text column."""
        listed = [one for one in self.looked if one.parts]
        size = sum(one.source.size or 0 for one in listed)
        return sum(part.stored for one in listed for part in one.parts) / size if size else 1.0


def take_sample(
    sources: Sequence[Source], reading: Reading, engine: Engine, *, places: int = 80, seconds: float = 5.0
) -> list[Kind]:
    """Return the kinds of the sources, each with about its share of `places`, after at most about `seconds`."""
    kinds = _kinds(sources)
    total = sum(kind.expanded for kind in kinds)
    began, started = reading_places.clock(), time.monotonic()
    spent = 0
    for i, kind in enumerate(kinds):
        if not kind.stored:
            kind.whole = True
            continue
        spent += kind.expanded
        # Kinds share the time as they share the bytes, and what one does not use is left for the next.
        until = seconds * max(spent / total, 0.1)

        def ended(until: float = until) -> bool:
            """On a busy machine, or with a slow disk, it may take longer, but not for ever."""
            passed = time.monotonic() - started
            return passed > until and (passed > _PATIENCE * until or reading_places.clock() - began > until)

        share = max(_FEWEST, places * kind.expanded // total)
        share = min(share, _REMOTE) if kind.remote else share
        for largest in _LARGEST:
            kinds[i] = replace(kind, places=[], looked=[], reasons=Counter(), odd=Counter())
            limited = replace(reading, largest=min(reading.largest, largest), largest_row=0)
            _Sampler(kinds[i], sources, limited, engine, share, ended).run()
            if kinds[i].passed < _MUCH:
                break
    return kinds


def _kinds(sources: Sequence[Source]) -> list[Kind]:
    """The kinds by the names of the sources alone: to open a hundred thousand files would take minutes."""
    found: dict[tuple[str, str], tuple[array[int], array[int]]] = {}
    remote = set()
    for i, source in enumerate(sources):
        format = source.input_format if source.input_format != "auto" else format_of(source.path)
        key = format, compression_of(source.path)
        members, sizes = found.setdefault(key, (array("q"), array("q")))
        members.append(i)
        sizes.append(source.size or 0)
        if source.remote:
            remote.add(key)
    kinds = [
        Kind(*key, members, np.array(sizes), np.array(sizes), key in remote) for key, (members, sizes) in found.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.expanded)


@dataclass(frozen=True)
class _Sampler:
    """Puts places into one kind."""

    kind: Kind
    sources: Sequence[Source]
    reading: Reading
    engine: Engine
    places: int
    ended: Callable[[], bool]
    """Whether the time is over."""

    def run(self) -> None:
        kind, unit, rng = self.kind, reading_places.UNIT, random.Random(len(self.kind.members))
        self._list_parts()
        most = self.places * (_INSTEAD_REMOTE if kind.remote else _INSTEAD)
        everything = kind.expanded <= self.places * unit and len(kind.members) <= most
        drawn, step = ({}, 0.0) if everything else self._draw(most, rng)
        # In the order of the plan, since sources are kept packed, many together.
        draws = [(self._source(member), drawn.get(member)) for member in (drawn or range(len(kind.members)))]
        rng.shuffle(draws)

        def find(draw: tuple[SampledSource, list[float] | None]) -> tuple[SampledSource, Iterable[SampledPlace]]:
            # A few compressed megabytes may hold gigabytes.
            found = draw[0].places(draw[1], 2 * self.places * unit, step)
            return draw[0], list(found) if kind.remote else found

        waiting: list[SampledPlace] = []
        for source, found in at_once(find, draws, kind.remote):
            if self.ended() and kind.places:
                break
            places = []
            for place in found:
                places.append(place)
                waiting.append(place)
                if sum(one.text for one in waiting) >= unit // 2:
                    self._encode(waiting)
            # Places side by side in a stream are alike: its eighths are compared, or the streams if there are many.
            apart = everything or source.entered
            alike = 1 if apart else -(-len(places) // (_EIGHTHS if len(draws) < _EIGHTHS else 1))
            for i, place in enumerate(places):
                place.cluster = len(kind.places) + i // alike
            kind.places += places
            kind.looked.append(source)
        self._encode(waiting)
        kind.whole = len(kind.looked) == len(kind.members) and all(source.whole for source in kind.looked)
        # Where the time was over before everything was read that was drawn, each place stands for more.
        sampled = sum(place.weight * place.stored for place in kind.places)
        for place in kind.places:
            place.weight *= kind.measured / sampled if sampled else 1.0
        formats: Counter[tuple[str, str]] = Counter()
        for source in kind.looked:
            formats[source.format, source.compression] += bool(source.format) * (1 + (source.source.size or 0))
        if any(formats.values()):
            kind.format, kind.compression = max(formats, key=formats.__getitem__)

    def _source(self, member: int) -> SampledSource:
        index, measure = self.kind.members[member], int(self.kind.measures[member])
        return SampledSource(index, self.sources[index], measure, self.reading, self.ended)

    def _list_parts(self) -> None:
        """Count the rows and text of all row groups and batches, unless that takes long or fails."""
        kind, format = self.kind, INPUT_FORMATS.get(self.kind.format)
        if format is None or format.text or len(kind.members) > (_LISTED_REMOTE if kind.remote else _LISTED):
            return
        until = time.monotonic() + _LISTED_SECONDS

        def parts(member: int) -> Sequence[Part] | None:
            source = self._source(member)
            if not source.source.size:
                return ()
            try:
                with source.opened():
                    return source.parts if time.monotonic() < until else None
            except SourceError:  # reading the sample will report it
                return None

        rows, measures = 0, array("q")
        for listed in at_once(parts, range(len(kind.members)), kind.remote):
            if listed is None:
                return
            rows += sum(part.rows for part in listed)
            measures.append(sum(part.size for part in listed))
        if any(measures):
            kind.rows, kind.measures = rows, np.array(measures)

    def _draw(self, most: int, rng: random.Random) -> tuple[dict[int, list[float]], float]:
        """Draw at even distances over the whole kind, at most so many times.

        Return the sources that were hit, each with the shares of it at which it was, and the distance.
        """
        kind, unit = self.kind, reading_places.UNIT
        # Small sources are drawn more often, so that as much text is read.
        text = float(np.minimum(kind.sizes * (kind.expanded / kind.stored), unit) @ kind.measures) / kind.measured
        count = min(most, round(self.places * unit / max(1.0, text)))
        step = kind.measured / count
        targets = (np.arange(count) + rng.random()) * step
        ends = np.cumsum(kind.measures)
        hits = np.minimum(np.searchsorted(ends, targets, side="right"), len(ends) - 1)
        shares = 1 - (ends[hits] - targets) / np.maximum(1, kind.measures[hits])
        drawn: dict[int, list[float]] = {}
        for hit, share in zip(hits.tolist(), shares.tolist(), strict=True):
            drawn.setdefault(hit, []).append(share)
        for some in drawn.values():
            rng.shuffle(some)  # so that what is read before the time is over is from all over the source
        return drawn, step

    def _encode(self, places: list[SampledPlace]) -> None:
        """Encode what was read at these places in one call, as a run does with megabytes, and count it."""
        kind = self.kind
        documents = join([chunk for place in places for chunk in place.chunks])
        started = reading_places.clock()
        encoded = self.engine.encode(documents.data, documents.offsets)
        odd = odd_counts(documents.data, documents.offsets, 0, np.array([len(documents)], np.int64))
        if odd is not None:
            kind.odd.update(dict(zip(ODD_KINDS, odd[0].tolist(), strict=True)))
        each = (reading_places.clock() - started) / max(1, int(documents.offsets[-1] - documents.offsets[0]))
        row = 0
        for place in places:
            first, row = row, row + sum(map(len, place.chunks))
            place.encoded = int(documents.offsets[row] - documents.offsets[first])
            place.encoding = each * place.encoded
            place.tokens = float(encoded.lengths[first:row].sum()) / max(1, place.encoded) * place.text
            sizes = np.concatenate([np.empty(0, np.int64), *place.lengths])
            place.sizes, place.empty = bucketed(sizes[sizes > 0]), int(np.count_nonzero(sizes == 0))
            reasons = [reject.reason for chunk in place.chunks for reject in chunk.rejects]
            reasons += [reason for failed, reason in encoded.failed if first <= failed < row]
            kind.reasons.update(map(_plain_reason, reasons))
            place.rejected = len(reasons)
            kind.replaced += sum(chunk.replaced(len(chunk)) for chunk in place.chunks)
            place.chunks, place.lengths = [], []
        places.clear()


def _plain_reason(reason: str) -> str:
    """A reason without the numbers that differ from record to record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
