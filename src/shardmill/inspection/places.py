"""Reads one source with its ordinary reader, at some places or from its start, and counts what is there."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core import ODD_KINDS, odd_counts
from shardmill.documents import (
    WHOLE,
    Chunk,
    Documents,
    FormatReader,
    Part,
    Position,
    Reading,
    Room,
    Section,
    TooLarge,
    UndividedRoom,
    format_reader,
    open_source,
)  # fmt: skip
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import Beginning, Feed, Fetcher, RandomAccess, Source, StreamFeed

if TYPE_CHECKING:
    from shardmill.tokens import Engine

UNIT = 512 * 1024
"""Bytes of text at one place, about."""
NO_TEXT = 0.01
"""The share of control characters from which on a source is not text. Real text has less than a thousandth."""
# Control characters that no text has: all but tab, line feed, form feed, carriage return, escape and separators.
_CONTROLS = bytes([*range(9), 11, *range(14, 27), 127])
_LARGEST, _LARGEST_ELSEWHERE = 64 << 20, 8 << 20  # bytes of the largest record: in local files entered anywhere, else
_MOST_LOST = 4  # places without the end of any record, after which no more are looked at
_WHOLE_GROUP_UNITS = 16  # a larger row group is not read whole
_EXCERPT, _EXCERPTS = 64 * 1024, 256  # bytes of a place that are kept to look for separators, and number of places


def expansion(format: str, compression: str) -> int:
    """How many times larger the text is than its stored bytes, about."""
    return 3 if compression or format == "parquet" else 1


@dataclass
class Findings:
    """What may be wrong in the sources that were looked into."""

    errors: list[SourceError] = field(default_factory=list)
    """A run would stop there too."""
    largest: tuple[int, str, str] = (0, "", "")
    """The largest record: its bytes, its place, and a hint if it has no end, so that memory does not help."""
    controls: dict[str, float] = field(default_factory=dict)
    """The sources that are not text: the largest share of control characters at any place."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why documents were rejected."""
    replaced: int = 0
    """Invalid UTF-8 sequences."""
    odd: Counter[str] = field(default_factory=Counter)
    """How often each of `ODD_KINDS` was found in records."""
    excerpts: list[bytes] = field(default_factory=list)
    """The beginnings of places in plain text."""


@dataclass(frozen=True)
class Looking:
    """How sources are looked into. Several threads may do it."""

    reading: Reading
    room: Room
    fetcher: Fetcher
    engine: Engine
    findings: Findings = field(default_factory=Findings)
    counting: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class SampledPlace:
    """What was found at one place, or in one source that was read from its start."""

    size: float = 0.0
    """Stored bytes between its beginning and its end: the records that begin there are read."""
    covered: float = 0.0
    """Stored bytes of these records."""
    weight: float = 1.0
    """How many places this one stands for."""
    text: int = 0
    """Bytes of text; more than were encoded if a record cannot be cut or is too large."""
    encoded: int = 0
    """Bytes of text that were encoded."""
    tokens: int = 0
    documents: int = 0
    """Empty and rejected ones included; 0 in text without a separator."""
    empty: int = 0
    rejected: int = 0
    replaced: int = 0


class _View(Beginning):
    """The beginning of a source; knows how far it was read."""

    reached = 0

    def read(self, start: int, end: int) -> bytes:
        self.reached = max(self.reached, min(end, self.size))
        return super().read(start, end)


@dataclass
class SampledSource:
    """What a source turned out to be, once `read` was called."""

    index: int
    source: Source
    looking: Looking
    ended: Callable[[], bool]
    """Whether the time is over."""
    format: str = ""
    compression: str = ""
    places: list[SampledPlace] = field(default_factory=list)
    whole: bool = False
    """Everything in the source was read."""
    begun: bool = False
    """Only its beginning was read, since it cannot be entered elsewhere."""
    partly: bool = False
    """A record was not read, or only the beginning of it."""
    rows: int | None = None
    """As its footer or its batches say."""
    column: float = 1.0
    """The share of its bytes that a run reads: of parquet only the text column."""
    _endless: bool = False
    """A record without an end was found."""

    def read(self, shares: Sequence[float] | None, most: int) -> None:
        """Read the source at the given shares (0 to 1) of it; None: all of it.

        A source that is small or cannot be entered is read from its start. `most`: bytes of text after which to stop.
        """
        looking, size = self.looking, self.source.size or 0
        try:
            opened = open_source(self.source, looking.fetcher)
            with closing(opened.feed) as feed:
                self.format, self.compression = opened.format, opened.compression
                about = INPUT_FORMATS[self.format]
                if about.text:
                    self._see_controls(opened.head)
                sectioned = feed if about.sectioned and isinstance(feed, RandomAccess) else None
                largest = _LARGEST_ELSEWHERE if sectioned is None or self.source.remote else _LARGEST
                room = UndividedRoom(looking.room, largest)
                self._largest = room.largest
                self._reader: FormatReader = format_reader(
                    self.index, self.source, looking.reading, room, looking.fetcher, opened, stream=True
                )
                parts = self._reader.parts(feed)
                if parts:
                    self.rows = sum(part.rows for part in parts)
                    self.column = sum(part.stored for part in parts) / max(1, size)
                small = shares is None or size * expansion(self.format, self.compression) <= UNIT
                if parts and not small:
                    self._at_rows(feed, parts, shares or (), most)
                elif sectioned is not None and not small:
                    self._at_sections(sectioned, shares or (), most)
                else:
                    self._from_start(feed, most, size if shares is None else len(shares))
        except SourceError as error:
            if self.source.name in looking.findings.controls:  # the names of fields and columns would be noise
                error = SourceError(error.message, place=error.place, hint="this does not look like text at all")
            looking.findings.errors.append(error)
            self.rows = None

    def _from_start(self, feed: Feed, most: int, hits: int) -> None:
        """Read from the start on, as one place."""
        size, place, enough = self.source.size or 0, SampledPlace(), False
        self.places.append(place)

        def passed(through: int) -> None:
            place.size = place.covered = float(min(size, through))
            place.weight = hits / max(1.0, place.size)
            self.begun = through < size

        # Without a limit a record without an end would be followed to the end of the stream.
        stream = feed if isinstance(feed, StreamFeed) and INPUT_FORMATS[self.format].text else None
        if stream is not None:
            stream.limit = 2 * self._largest
        for chunk in self._chunks(feed):
            through = chunk.end if chunk.through < 0 else chunk.through
            if enough and through > place.size:  # several chunks of CSV say where their block ends
                return
            self._take(place, chunk)
            passed(through)
            endless, enough = stream is not None and stream.reached >= stream.limit, place.text > most
            if endless or self._endless or self.ended():
                return
            if stream is not None:
                stream.limit = stream.reached + 2 * self._largest
        passed(size)
        self.whole = not self.partly

    def _at_sections(self, feed: RandomAccess, shares: Sequence[float], most: int) -> None:
        """Read the records that begin in some of the equal sections of the source."""
        lines, lost = self._reader.unit == "line", 0
        if lines:  # only at the beginning of the source a reader says that no record has the field
            for chunk in self._chunks(_View(feed, 2 * self._largest)):
                self._take(SampledPlace(), chunk)
                break
        count = max(1, round(feed.size / UNIT))
        for number, hits in Counter(min(int(share * count), count - 1) for share in shares).items():
            if lost == _MOST_LOST or self._endless or self._enough(most):
                break
            begin, end = (feed.size * i // count for i in (number, number + 1))
            place = SampledPlace(float(end - begin), weight=hits / (end - begin))
            if self.format == "text" and self.looking.reading.separator is None:
                # Cut anywhere but within a character, since there may be no better place: it adds at most one token.
                begin, end = (at + _inside_character(feed.read(at, at + 4)) for at in (begin, end))
                view, start, section = _View(feed, end), Position(begin, inside=begin > 0), WHOLE
            else:
                # The first place without the end of a record may be an exception; others may cost less.
                view, start, section = _View(feed, end + (self._largest >> 2 * lost)), Position(), Section(begin, end)
            for chunk in self._chunks(view, start, section):
                self._take(place, chunk)
                place.covered += chunk.end - chunk.start
            if place.covered or view.reached < view.size or view.size == feed.size:
                self.places.append(place)
            else:
                lost += 1
                self.partly = True
        if lines and lost and not any(place.covered for place in self.places) and not self._endless:
            raise SourceError(
                "no line ends at any of the places that were looked at",
                place=self.source.name,
                hint="is this JSON Lines? Each document stands on a line of its own, as one JSON object",
            )

    def _at_rows(self, feed: Feed, parts: Sequence[Part], shares: Sequence[float], most: int) -> None:
        """Read some of the row groups or batches, or some rows of large ones."""
        ends = np.cumsum([max(1, part.size) for part in parts])
        rows = np.cumsum([0, *(part.rows for part in parts)])
        largest = UNIT if self.source.remote else _WHOLE_GROUP_UNITS * UNIT
        drawn: Counter[tuple[int, int, float]] = Counter()
        for share in sorted(shares) if self.source.remote else shares:  # remote files are read forward
            at = share * int(ends[-1])
            group = min(int(np.searchsorted(ends, at, side="right")), len(parts) - 1)
            first, count, size = int(rows[group]), parts[group].rows, max(1, parts[group].size)
            if size > largest:
                # The number of rows is fixed before any is read: to stop before a long one would leave those out.
                count = max(1, count * UNIT // size)
                if not self.source.remote:  # where everything before the first row would have to be fetched
                    first += int((parts[group].rows - count) * (1 - (int(ends[group]) - at) / size))
            drawn[first, first + count, count / parts[group].rows * size / int(ends[-1])] += 1
        for (first, end, share), hits in drawn.items():
            if self._enough(most):
                break
            stored = share * (self.source.size or 0)
            place = SampledPlace(stored, stored, hits / stored)
            self.places.append(place)
            for chunk in self._chunks(feed, Position(first)):
                self._take(place, chunk, end)
                if chunk.end >= end:
                    break

    def _enough(self, most: int) -> bool:
        return sum(place.text for place in self.places) > most or (bool(self.places) and self.ended())

    def _chunks(self, feed: Feed, start: Position = Position(), section: Section = WHOLE) -> Iterator[Chunk]:  # noqa: B008
        chunks: Any = self._reader.chunks(feed, start, UNIT, section)
        with closing(chunks):  # since they hold files open
            yield from chunks

    def _take(self, place: SampledPlace, chunk: Chunk, end: int | None = None) -> None:
        """Read a chunk, without the rows from `end` on, encode it and count what is in it."""
        if chunk.long:  # it cannot be cut: the beginning stands for all of it
            self.partly = True
            text = next(self._reader.pieces(chunk, UNIT), b"")
            documents = Documents(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
            place.text += chunk.end - chunk.start - len(text)
        else:
            documents = self._reader.read(chunk).packed()
        with self.looking.counting:
            if documents.rejects and isinstance(large := documents.rejects[0], TooLarge):
                self._measure(large.size, chunk, 0, large.hint)
                self.partly = True
                place.documents += 1
                place.text += 0 if large.hint else large.size  # with a hint, nobody knows where it ends
                return
            if end is not None and chunk.end > end:
                documents = _first_rows(documents, end - chunk.start)
            self._count(place, chunk, documents)

    def _count(self, place: SampledPlace, chunk: Chunk, documents: Documents) -> None:
        findings, sizes = self.looking.findings, documents.lengths
        encoded = self.looking.engine.encode(documents.data, documents.offsets)
        reasons = [reason for _, reason in encoded.failed] + [reject.reason for reject in documents.rejects]
        findings.reasons.update(map(_plain_reason, reasons))
        beginning = documents.data[:_EXCERPT].tobytes()
        self._see_controls(beginning)
        replaced, begun = documents.replaced(len(documents)), len(sizes) + len(documents.rejects)
        findings.replaced += replaced
        place.replaced += replaced
        place.text += int(sizes.sum())
        place.encoded += int(sizes.sum())
        place.tokens += int(encoded.lengths.sum())
        place.rejected += len(reasons)
        if self.format == "text":
            if beginning and len(findings.excerpts) < _EXCERPTS:
                findings.excerpts.append(beginning)
            if self.looking.reading.separator is None:  # the source is one document
                sizes, begun = sizes[:0], 0
            elif not chunk.begins:
                sizes, begun = sizes[1:], begun - 1
        elif len(sizes):
            odd = odd_counts(documents.data, documents.offsets, 0, np.array([len(documents)], np.int64))
            if odd is not None:
                findings.odd.update(dict(zip(ODD_KINDS, odd[0].tolist(), strict=True)))
            row = int(sizes.argmax())
            self._measure(int(sizes[row]), chunk, documents.record(row))
        place.documents += begun
        place.empty += int(np.count_nonzero(sizes == 0))

    def _measure(self, size: int, chunk: Chunk, record: int, hint: str = "") -> None:
        """Remember the largest record."""
        rows = self._reader.unit == "row"
        where = f"row {chunk.start + record + 1:,}" if rows else f"near byte {chunk.start:,}"
        findings = self.looking.findings
        findings.largest = max(findings.largest, (size, f"{self.source.name}, {where}", hint))
        self._endless |= bool(hint)

    def _see_controls(self, text: bytes) -> None:
        """Note the share of control characters that no text has."""
        share = 1 - len(text.translate(None, _CONTROLS)) / len(text) if text else 0.0
        if share > NO_TEXT:
            controls = self.looking.findings.controls
            controls[self.source.name] = max(share, controls.get(self.source.name, 0.0))


def _first_rows(documents: Documents, rows: int) -> Documents:
    """The first rows of a chunk, with the rejects among them."""
    kept = rows if documents.records is None else int(np.searchsorted(documents.records, rows))
    offsets = documents.offsets[: kept + 1]
    rejects = [reject for reject in documents.rejects if reject.record < rows]
    return Documents(documents.data[: int(offsets[-1])], offsets, rejects=rejects)


def _inside_character(text: bytes) -> int:
    """Bytes at the beginning of a UTF-8 text that belong to a character before it, at most three."""
    return next((i for i, byte in enumerate(text[:3]) if byte & 0xC0 != 0x80), 0)


def _plain_reason(reason: str) -> str:
    """A reason without the numbers that differ from record to record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
