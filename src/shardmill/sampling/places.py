"""One source, read by its ordinary reader: at places all over it, or from its start until the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.documents import (
    WHOLE,
    Chunk,
    Documents,
    FormatReader,
    Part,
    Position,
    Reading,
    Section,
    TooLarge,
    format_reader,
    open_source,
)
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import Beginning, Feed, RandomAccess, Source, StreamFeed

clock = time.thread_time
"""Work is measured in CPU time of the thread, so other programs and slow servers do not count."""
UNIT = 512 * 1024
"""Bytes of text at one place, about."""
STREAM = 4  # units of text that are read of a stream each time that it is drawn
BUCKETS = 24
"""Buckets of document sizes: bucket i holds documents of up to 4 ** i bytes that do not fit in bucket i - 1."""
NO_TEXT = 0.01
"""The share of control characters from which on a source is not text. Real text has less than a thousandth."""
# Control characters that no text has: all but tab, line feed, form feed, carriage return, escape and separators.
_CONTROLS = bytes([*range(9), 11, *range(14, 27), 127])
_LEAST = 0.25  # the share of the chunks of a long stream that is read; the others are only decompressed
_LARGE = 16  # units of a row group that is read whole, which is the most precise; pages are read of a larger one
_LARGEST_IN_STREAMS = 8 << 20  # bytes of the largest record that is read where a source is read from its start
_BEHIND = 1 << 18  # bytes behind the largest record of a place that may be read
_EXCERPT, _EXCERPTS = 64 * 1024, 64  # bytes of a place that are kept to look for separators, and number of places
_HARDLY = 1e-9  # weight of a place that was not drawn: it counts only if there is nothing else
_END = 1 << 62


def expansion(format: str, compression: str) -> int:
    """How many times larger the text is than its stored bytes, about."""
    return 3 if compression or format == "parquet" else 1


@dataclass
class SampledPlace:
    """What was found at one place: the records that begin there. The variance between places gives the margin."""

    stored: float = 0.0
    """Size of the place, in the measure by which sources are drawn."""
    covered: float = 0.0
    """Bytes of its records."""
    text: float = 0.0
    """Bytes of text; more than were read if a stretch cannot be cut."""
    begun: int = 0
    """Documents, empty and rejected ones included; 0 in text without a separator."""
    chunks: list[Documents] = field(default_factory=list)
    """What was read, until it is encoded."""
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    """Bytes of each document, until they are counted in `sizes`."""
    feeding: float = 0.0
    """Seconds to find or decompress the text, which one thread does."""
    reading: float = 0.0
    """Seconds to make documents of it."""
    encoding: float = 0.0
    encoded: int = 0
    """Bytes of text that were encoded: of a stretch that cannot be cut, only the beginning."""
    tokens: float = 0.0
    empty: int = 0
    rejected: int = 0
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    """Documents in each bucket."""
    weight: float = 1.0
    """How many places this one stands for."""
    passed: int = 0
    """Bytes of records that were too large to be read, as far as their ends were found."""
    cluster: int = 0
    """Places side by side in a stream are alike, so the variance is that between clusters."""


class _Stretch(NamedTuple):
    """The records that begin within a section of bytes, or from one position to another."""

    share: float
    """Of the source."""
    section: Section = WHOLE
    start: Position = Position()
    end: int = _END
    """The row after the last one."""
    until: int = _END
    """Where the source is taken to end: a terabyte without a line break must not cost more than some megabytes."""


class SampledSource:
    """What a source turned out to be; complete when everything that `places` yields was taken."""

    def __init__(
        self, index: int, source: Source, measure: int, reading: Reading, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """`measure`: bytes that the whole source counts for."""
        self.source, self._measure = source, measure
        self._index, self._reading, self._ended = index, reading, ended
        self.format = self.compression = ""
        self.error: SourceError | None = None
        """Why reading stopped; a run would stop there too."""
        self.whole = False
        """Everything in the source was read."""
        self.entered = False
        """It was read at places all over it, not from its start."""
        self.parts: Sequence[Part] = ()
        self.unseen = 0
        """Stored bytes that were not reached."""
        self.too_large: tuple[int, str, str] = (0, "", "")
        """The largest record that could not be read: its bytes, its place, and a hint where memory does not help."""
        self.controls = 0.0
        """The largest share of control characters at any place."""
        self.excerpts: list[bytes] = []
        """The beginnings of places, if it is plain text."""
        self.opening = 0.0
        """Seconds to open it and to list its parts."""
        self._partly = False
        self._reader: FormatReader
        self._pages: dict[int, list[Part]] = {}
        self._last: NDArray[np.int64] = np.empty(0, np.int64)

    def places(self, shares: list[float] | None, most: int, step: float = 0.0) -> Iterator[SampledPlace]:
        """Yield the places at the given shares (0 to 1) of the source; None: all of it.

        A source that is small or cannot be entered is read from its start, up to about `most` bytes of text; of others
        up to four times as many are read. `step`: bytes, as sources are measured, from one share to the next.
        """
        try:
            with self.opened(whole=shares is None) as feed:
                likely = (self.source.size or 0) * expansion(self.format, self.compression)
                sectioned = INPUT_FORMATS[self.format].sectioned and isinstance(feed, RandomAccess)
                self.entered = shares is not None and likely > UNIT and (bool(self.parts) or sectioned)
                if shares is not None and self.entered:
                    yield from self._at(feed, shares, 4 * most, step)
                else:
                    yield from self._from_start(feed, None if shares is None else len(shares), likely, most, step)
        except SourceError as error:
            self.error = error
            if self.controls > NO_TEXT:  # the names of fields and columns would be noise
                self.error = SourceError(error.message, place=error.place, hint="this does not look like text at all")

    @contextmanager
    def opened(self, *, whole: bool = False) -> Iterator[Any]:
        """Open the source, find its format and parts, and yield its feed; `whole`: all of it will be read."""
        started = clock()
        opened = open_source(self.source, self._reading.fetcher)
        with closing(opened.feed) as feed:
            self.format, self.compression = opened.format, opened.compression
            if INPUT_FORMATS[opened.format].text:
                self.controls = _share_of_controls(opened.head)
            if whole or not isinstance(feed, RandomAccess):  # nothing is read twice, so larger records cost no more
                self._reading = replace(self._reading, largest=max(self._reading.largest, _LARGEST_IN_STREAMS))
            self._reader = format_reader(self._index, self.source, self._reading, opened, self._reopen)
            self.parts = self._reader.parts(feed)
            self.opening = clock() - started
            yield feed

    def _reopen(self) -> Any:
        return open_source(self.source, self._reading.fetcher).feed

    def _at(self, feed: Any, shares: list[float], most: int, step: float) -> Iterator[SampledPlace]:
        """Yield the places that the shares fall into, each once."""
        lines = self._reader.unit == "line"
        # Only at the beginning of the source a reader says that no record has the field.
        undrawn = [self._section(feed, 0.0)] if lines else []
        shares = sorted(shares) if self.source.remote else shares  # remote feeds only go forward
        drawn = [self._rows(share) if self.parts else self._section(feed, share) for share in shares]
        text, chunks = 0.0, 0
        for number, stretch in enumerate(dict.fromkeys(undrawn + drawn)):
            if number > len(undrawn) and (text >= most or self._ended()):
                break
            place = SampledPlace()
            beginning = Beginning(feed, stretch.until)
            for chunk, seconds in self._chunks(beginning, stretch, 4 * UNIT if self.parts else UNIT):
                self._read(chunk, seconds, place, stretch.end)
            place.stored = self._measure * stretch.share
            place.covered = place.stored if self.parts else place.covered
            place.weight = max(step, place.stored) / place.stored if stretch in drawn else _HARDLY
            text, chunks = text + place.text, chunks + len(place.chunks)
            yield place
        if lines and not chunks and not self.too_large[2]:
            raise SourceError(
                "no line ends at any of the places that were looked at",
                place=self.source.name,
                hint="is this JSON Lines? Each document stands on a line of its own, as one JSON object",
            )

    def _section(self, feed: RandomAccess, share: float) -> _Stretch:
        """The one of equal sections of about a unit that a share of the bytes falls into."""
        size = feed.size
        count = max(1, round(size / UNIT))
        number = min(int(share * count), count - 1)
        begin, end = size * number // count, size * (number + 1) // count
        share = (end - begin) / size
        if self.format == "text" and self._reading.separator is None:
            # Cut anywhere but within a character, since there may be no better place: it adds at most one token.
            begin, end = (at + _inside_character(feed.read(at, at + 4)) for at in (begin, end))
            return _Stretch(share, start=Position(begin, inside=begin > 0), until=end)
        return _Stretch(share, Section(begin, end), until=end + self._reading.largest + _BEHIND)

    def _rows(self, share: float) -> _Stretch:
        """The row groups or batches that a share of the bytes falls into, joined to about a unit, or pages of one."""
        first, rows, within, portion, number = _pick(self.parts, share)
        if rows == self.parts[number].rows > 1 and self.parts[number].size > _LARGE * UNIT:
            # Of a remote source everything up to there would have to be fetched, so it is the beginning.
            at, rows, _, share, _ = _pick(self._within(number), 0.0 if self.source.remote else within)
            first, portion = first + at, portion * share
        return _Stretch(portion, start=Position(first), end=first + rows)

    def _within(self, number: int) -> list[Part]:
        """The pages of a part; large ones are divided into equally many rows."""
        if number not in self._pages:
            self._pages[number] = []
            for page in self._reader.parts_within(number) or [self.parts[number]]:
                count = max(1, min(page.rows, page.size // UNIT)) if page.size > _LARGE * UNIT else 1
                rows = np.diff(page.rows * np.arange(count + 1) // count).tolist()
                self._pages[number] += [Part(some, page.size // count, page.stored // count) for some in rows]
        return self._pages[number]

    def _from_start(self, feed: Any, draws: int | None, likely: int, most: int, step: float) -> Iterator[SampledPlace]:
        """Yield all of it, or chunks at even distances, to its end unless that is far away. A chunk is a place."""
        size, share = self.source.size or 0, 1.0
        far = size
        if draws is not None:
            wanted = draws * STREAM * UNIT
            share = max(_LEAST, min(1.0, wanted / likely))
            most = wanted if share == _LEAST else most
            if isinstance(feed, RandomAccess):  # of which only a little may be text
                far = int(2 * wanted / share)
                feed = Beginning(feed, 2 * far)
        # A record without an end would be followed to the end of the stream.
        limited = isinstance(feed, StreamFeed) and INPUT_FORMATS[self.format].text
        reach = self._reading.largest + _BEHIND + UNIT
        if limited:
            feed.limit = reach
        places = list[SampledPlace]()
        marks = [(0, 0)]  # bytes that were passed, and how many of them were stored, wherever both are known
        behind = through = 0
        text = 0.0
        try:
            for chunk, seconds in self._chunks(feed, _Stretch(1.0), UNIT):
                if chunk.through > through > 0:  # so everything that was stored before has been passed
                    marks.append((behind, through))
                if places and (text >= most or chunk.through > far or self._ended()):
                    break
                number = behind // UNIT
                if number == 0 or int(number * share) > int((number - 1) * share):
                    place = SampledPlace()
                    places.append(place)
                    self._read(chunk, seconds, place)
                    text += place.text
                    yield place
                else:
                    self._partly = True
                behind, through = behind + self._width(chunk), chunk.through
                if limited and feed.reached >= feed.limit:
                    places[-1].passed = 0  # nobody knows where it ends
                    break
                if self.too_large[2]:
                    break
                if limited:
                    feed.limit = feed.reached + reach
            else:
                if not isinstance(feed, RandomAccess) or feed.size == size:
                    self.whole, marks = not self._partly, [(0, 0), (behind, size)]
        finally:
            self._measure_places(places, marks if len(marks) > 1 else [(0, 0), (behind, through)], step)

    def _measure_places(self, places: list[SampledPlace], marks: list[tuple[int, int]], step: float) -> None:
        """Measure what was read from the start, now that it is known how much that is of the source.

        The beginning of a stream is compressed less well, so the rest is taken to be like the later three quarters.
        """
        (first, first_stored), (last, stored) = marks[len(marks) // 4], marks[-1]
        self.unseen = (self.source.size or 0) - stored
        everything = last + self.unseen * (last - first) / max(1, stored - first_stored)
        scale = self._measure / max(1, everything)
        read = scale * sum(place.stored for place in places)
        for place in places:
            place.stored, place.covered = place.stored * scale, place.covered * scale
            place.weight = max(step, self._measure) / read if read else 0.0

    def _chunks(self, feed: Feed, stretch: _Stretch, size: int) -> Iterator[tuple[Chunk, float]]:
        """Yield the chunks of a stretch, each with the seconds that it took to find it."""
        opening = self.opening
        chunks: Any = self._reader.chunks(feed, stretch.start, size, stretch.section)
        with closing(chunks):  # since they hold files open
            while True:
                started = clock()
                chunk = next(chunks, None)
                if chunk is None:
                    return
                yield chunk, max(0.0, clock() - started - opening)
                opening = 0.0  # a run opens the source once
                if chunk.end >= stretch.end or self.too_large[2]:
                    return

    def _width(self, chunk: Chunk) -> int:
        """Bytes that its records take; an approximation where they are rows."""
        return chunk.end - chunk.start + (chunk.cost if self._reader.unit == "row" else 0)

    def _read(self, chunk: Chunk, seconds: float, place: SampledPlace, end: int = _END) -> None:
        """Put the documents of a chunk into a place, without the rows from `end` on."""
        started = clock()
        if chunk.long:  # it cannot be cut: the beginning stands for all of it
            text = next(self._reader.pieces(chunk, UNIT), b"")
            documents = Documents(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
        else:
            documents = self._reader.read(chunk)
        place.feeding += seconds
        place.reading += clock() - started
        if documents.rejects and isinstance(large := documents.rejects[0], TooLarge):
            where = f"{self.source.name}, {self._reader.place(chunk.start, chunk.start)}"
            self.too_large = max(self.too_large, (large.size, where, large.hint))
            place.passed += 0 if large.hint else large.size
            # It is taken to be like the others, except where rows say their size.
            place.text += large.size if self.entered and self.parts else 0
            place.begun += 1
            place.stored += self._width(chunk)
            self._partly = True
            return
        if self._reader.unit == "row" and chunk.end > end:
            documents = _first_rows(documents, end - chunk.start)
        sizes = documents.lengths
        begun = len(sizes) + len(documents.rejects)
        place.text += chunk.payload - chunk.start if chunk.long else int(sizes.sum())
        self._partly |= chunk.long
        beginning = documents.data[:_EXCERPT].tobytes()
        self.controls = max(self.controls, _share_of_controls(beginning))
        if self.format == "text":
            if beginning and len(self.excerpts) < _EXCERPTS:
                self.excerpts.append(beginning)
            if self._reading.separator is None:  # the source is one document
                sizes, begun = sizes[:0], 0
            elif not chunk.begins and len(sizes):
                self._last[-1:] += sizes[0]
                sizes, begun = sizes[1:], begun - 1
            self._last = sizes if len(sizes) else self._last
        place.chunks.append(documents)
        place.lengths.append(sizes)
        place.begun += begun
        place.stored += self._width(chunk)
        place.covered += self._width(chunk)


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def _inside_character(text: bytes) -> int:
    """Bytes at the beginning of a UTF-8 text that belong to a character before it, at most three."""
    return next((i for i, byte in enumerate(text[:3]) if byte & 0xC0 != 0x80), 0)


def _pick(parts: Sequence[Part], share: float) -> tuple[int, int, float, float, int]:
    """The parts, joined to about a unit, that a share of their bytes falls into.

    Return their first row, the number of their rows, the share of them at which it falls, their share of all parts,
    and the number of the first part.
    """
    sizes = np.array([max(1, part.size) for part in parts], np.int64)
    rows = np.cumsum([0, *(part.rows for part in parts)])
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    large = sizes > _LARGE * UNIT  # these are not joined with others
    joined = np.cumsum(np.diff((ends - sizes) // UNIT, prepend=0) + large + np.append(False, large[:-1]))
    hit = min(int(np.searchsorted(ends, share * total, side="right")), len(parts) - 1)
    first, last = (int(np.searchsorted(joined, joined[hit], side=side)) for side in ("left", "right"))
    begin, end = int(ends[first] - sizes[first]), int(ends[last - 1])
    within = min(1.0, max(0.0, (share * total - begin) / (end - begin)))
    return int(rows[first]), int(rows[last] - rows[first]), within, (end - begin) / total, first


def _first_rows(documents: Documents, rows: int) -> Documents:
    """The first rows of a chunk, with the rejects among them."""
    kept = rows if documents.records is None else int(np.searchsorted(documents.records, rows))
    offsets = documents.offsets[: kept + 1]
    rejects = [reject for reject in documents.rejects if reject.record < rows]
    return Documents(documents.data[: int(offsets[-1])], offsets, rejects=rejects)


def _share_of_controls(text: bytes) -> float:
    """The share of control characters that no text has."""
    return 1 - len(text.translate(None, _CONTROLS)) / len(text) if text else 0.0
