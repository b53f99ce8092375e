"""Reads one source with its ordinary reader: at some places, or from its start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
)
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import Beginning, Feed, Fetcher, RandomAccess, Source, StreamFeed

if TYPE_CHECKING:
    from shardmill.tokens import Encoded

UNIT = 512 * 1024
"""Bytes of text at one place, about."""
BUCKETS = 24
"""Buckets of document sizes: bucket i holds documents of up to 4 ** i bytes that do not fit in bucket i - 1."""
NO_TEXT = 0.01
"""The share of control characters from which on a source is not text. Real text has less than a thousandth."""
# Control characters that no text has: all but tab, line feed, form feed, carriage return, escape and separators.
_CONTROLS = bytes([*range(9), 11, *range(14, 27), 127])
# Bytes of the largest record that is read: in local files that can be entered, and elsewhere.
_LARGEST, _LARGEST_ELSEWHERE = 64 << 20, 8 << 20
_START = Position()
_MOST_LOST = 4  # places without the end of any record, after which no more are looked at
_WHOLE_GROUP_UNITS = 16  # a larger row group is not read whole
_EXCERPT, _EXCERPTS = 64 * 1024, 64  # bytes of a place that are kept to look for separators, and number of places


def expansion(format: str, compression: str) -> int:
    """How many times larger the text is than its stored bytes, about."""
    return 3 if compression or format == "parquet" else 1


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
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    """Documents in each bucket."""


class _View(Beginning):
    """The beginning of a source; knows how far it was read."""

    reached = 0

    def read(self, start: int, end: int) -> bytes:
        self.reached = max(self.reached, min(end, self.size))
        return super().read(start, end)


class SampledSource:
    """What a source turned out to be, once `read` was called."""

    def __init__(
        self, index: int, source: Source, reading: Reading, room: Room, fetcher: Fetcher | None,
        encode: Callable[[Documents], Encoded], ended: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`ended`: whether the time is over."""
        self.source, self._index, self._encode, self._ended = source, index, encode, ended
        self._reading, self._room, self._fetcher = reading, room, fetcher
        self._reader: FormatReader
        self.format = self.compression = ""
        self.places: list[SampledPlace] = []
        self.error: SourceError | None = None
        """Why reading stopped; a run would stop there too."""
        self.whole = False
        """Everything in the source was read."""
        self.begun = False
        """Only its beginning was read, since it cannot be entered elsewhere."""
        self.partly = False
        """A record was not read, or only the beginning of it."""
        self.rows: int | None = None
        """As its footer or its batches say."""
        self.column = 1.0
        """The share of its bytes that a run reads: of parquet only the text column."""
        self.largest: tuple[int, str, str] = (0, "", "")
        """The largest record: its bytes, its place, and a hint if it has no end, so that memory does not help."""
        self.controls = 0.0
        """The largest share of control characters at any place."""
        self.excerpts: list[bytes] = []
        """The beginnings of places, if it is plain text."""
        self.replaced = 0
        """Invalid UTF-8 sequences."""
        self.reasons: Counter[str] = Counter()
        """Why documents were rejected."""
        self.odd: Counter[str] = Counter()
        """How often each of `ODD_KINDS` was found."""

    def read(self, shares: Sequence[float] | None, most: int, step: float) -> None:
        """Read the source at the given shares (0 to 1) of it; None: all of it.

        A source that is small or cannot be entered is read from its start. `most`: bytes of text after which to stop.
        `step`: bytes of all sources from one share to the next.
        """
        try:
            opened = open_source(self.source, self._fetcher)
            with closing(opened.feed) as feed:
                self.format, self.compression = opened.format, opened.compression
                about, size = INPUT_FORMATS[self.format], self.source.size or 0
                if about.text:
                    self.controls = _share_of_controls(opened.head)
                sectioned = feed if about.sectioned and isinstance(feed, RandomAccess) else None
                largest = _LARGEST_ELSEWHERE if sectioned is None or self.source.remote else _LARGEST
                self._room = UndividedRoom(self._room, largest)
                self._reader = format_reader(
                    self._index, self.source, self._reading, self._room, opened, self._reopen, stream=True
                )
                parts = self._reader.parts(feed)
                if parts:
                    self.rows = sum(part.rows for part in parts)
                    self.column = sum(part.stored for part in parts) / max(1, size)
                if shares is None or size * expansion(self.format, self.compression) <= UNIT:
                    self._from_start(feed, most, step)
                elif parts:
                    self._at_rows(feed, parts, shares, most, step)
                elif sectioned is not None:
                    self._at_sections(sectioned, shares, most, step)
                else:
                    self._from_start(feed, most, step)
        except SourceError as error:
            self.error = error
            if self.controls > NO_TEXT:  # the names of fields and columns would be noise
                self.error = SourceError(error.message, place=error.place, hint="this does not look like text at all")

    def _reopen(self) -> Any:
        return open_source(self.source, self._fetcher).feed

    def _from_start(self, feed: Feed, most: int, step: float) -> None:
        """Read from the start on, as one place."""
        size, largest, place = self.source.size or 0, self._room.largest, SampledPlace()
        self.places.append(place)

        def passed(through: int) -> None:
            place.size = place.covered = float(min(size, through))
            place.weight = max(step, size) / max(1.0, place.size)
            self.begun = through < size

        # Without a limit a record without an end would be followed to the end of the stream.
        stream = feed if isinstance(feed, StreamFeed) and INPUT_FORMATS[self.format].text else None
        if stream is not None:
            stream.limit = 2 * largest
        for chunk in self._chunks(feed):
            self._take(place, chunk)
            passed(chunk.end if chunk.through < 0 else chunk.through)
            endless = stream is not None and stream.reached >= stream.limit
            if endless or self.largest[2] or place.text > most or self._ended():
                return
            if stream is not None:
                stream.limit = stream.reached + 2 * largest
        passed(size)
        self.whole = not self.partly

    def _at_sections(self, feed: RandomAccess, shares: Sequence[float], most: int, step: float) -> None:
        """Read the records that begin in some of the equal sections of the source."""
        lines, lost, largest = self._reader.unit == "line", 0, self._room.largest
        if lines:  # only at the beginning of the source a reader says that no record has the field
            for chunk in self._chunks(_View(feed, 2 * largest)):
                self._take(SampledPlace(), chunk)
                break
        count = max(1, round(feed.size / UNIT))
        for number in dict.fromkeys(min(int(share * count), count - 1) for share in shares):
            if lost == _MOST_LOST or self.largest[2] or self._enough(most):
                break
            begin, end = (feed.size * i // count for i in (number, number + 1))
            place = SampledPlace(float(end - begin), weight=max(1.0, step / (end - begin)))
            if self.format == "text" and self._reading.separator is None:
                # Cut anywhere but within a character, since there may be no better place: it adds at most one token.
                begin, end = (at + _inside_character(feed.read(at, at + 4)) for at in (begin, end))
                view, start, section = _View(feed, end), Position(begin, inside=begin > 0), WHOLE
            else:
                # The first place without the end of a record may be an exception; others may cost less.
                view, start, section = _View(feed, end + (largest >> 2 * lost)), _START, Section(begin, end)
            for chunk in self._chunks(view, start, section):
                self._take(place, chunk)
                place.covered += chunk.end - chunk.start
            if place.covered or view.reached < view.size or view.size == feed.size:
                self.places.append(place)
            else:
                lost += 1
                self.partly = True
        if lines and lost and not any(place.covered for place in self.places) and not self.largest[2]:
            raise SourceError(
                "no line ends at any of the places that were looked at",
                place=self.source.name,
                hint="is this JSON Lines? Each document stands on a line of its own, as one JSON object",
            )

    def _at_rows(self, feed: Feed, parts: Sequence[Part], shares: Sequence[float], most: int, step: float) -> None:
        """Read some of the row groups or batches, or some rows of large ones."""
        ends = np.cumsum([max(1, part.size) for part in parts])
        rows = np.cumsum([0, *(part.rows for part in parts)])
        largest = UNIT if self.source.remote else _WHOLE_GROUP_UNITS * UNIT
        seen = set[int]()
        for share in sorted(shares) if self.source.remote else shares:  # remote files are read forward
            at = share * int(ends[-1])
            group = min(int(np.searchsorted(ends, at, side="right")), len(parts) - 1)
            first, count, size = int(rows[group]), parts[group].rows, max(1, parts[group].size)
            if size > largest:
                # The number of rows is fixed before any is read: to stop before a long one would leave those out.
                count = max(1, count * UNIT // size)
                if not self.source.remote:  # where everything before the first row would have to be fetched
                    first += int((parts[group].rows - count) * (1 - (int(ends[group]) - at) / size))
            if first in seen:
                continue
            if self._enough(most):
                break
            seen.add(first)
            share = count / parts[group].rows * size / int(ends[-1])
            place = SampledPlace(share * (self.source.size or 0))
            place.covered, place.weight = place.size, max(1.0, step / place.size)
            self.places.append(place)
            for chunk in self._chunks(feed, Position(first)):
                self._take(place, chunk, first + count)
                if chunk.end >= first + count:
                    break

    def _enough(self, most: int) -> bool:
        return sum(place.text for place in self.places) > most or (bool(self.places) and self._ended())

    def _chunks(self, feed: Feed, start: Position = _START, section: Section = WHOLE) -> Iterator[Chunk]:
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
        if documents.rejects and isinstance(large := documents.rejects[0], TooLarge):
            self._measure(large.size, chunk, 0, large.hint)
            self.partly = True
            place.documents += 1
            place.text += 0 if large.hint else large.size  # with a hint, nobody knows where it ends
            return
        if end is not None and chunk.end > end:
            documents = _first_rows(documents, end - chunk.start)
        encoded = self._encode(documents)
        reasons = [reason for _, reason in encoded.failed] + [reject.reason for reject in documents.rejects]
        self.reasons.update(map(_plain_reason, reasons))
        self.replaced += documents.replaced(len(documents))
        odd = odd_counts(documents.data, documents.offsets, 0, np.array([len(documents)], np.int64))
        if odd is not None:
            self.odd.update(dict(zip(ODD_KINDS, odd[0].tolist(), strict=True)))
        beginning = documents.data[:_EXCERPT].tobytes()
        self.controls = max(self.controls, _share_of_controls(beginning))
        sizes = documents.lengths
        place.text += int(sizes.sum())
        place.encoded += int(sizes.sum())
        place.tokens += int(encoded.lengths.sum())
        place.rejected += len(reasons)
        begun = len(sizes) + len(documents.rejects)
        if self.format == "text":
            if beginning and len(self.excerpts) < _EXCERPTS:
                self.excerpts.append(beginning)
            if self._reading.separator is None:  # the source is one document
                sizes, begun = sizes[:0], 0
            elif not chunk.begins:
                sizes, begun = sizes[1:], begun - 1
        elif len(sizes):
            row = int(sizes.argmax())
            self._measure(int(sizes[row]), chunk, documents.record(row))
        place.documents += begun
        place.empty += int(np.count_nonzero(sizes == 0))
        place.sizes += bucketed(sizes[sizes > 0])

    def _measure(self, size: int, chunk: Chunk, record: int, hint: str = "") -> None:
        """Remember the largest record."""
        rows = self._reader.unit == "row"
        where = f"row {chunk.start + record + 1:,}" if rows else f"near byte {chunk.start:,}"
        self.largest = max(self.largest, (size, f"{self.source.name}, {where}", hint))


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def _first_rows(documents: Documents, rows: int) -> Documents:
    """The first rows of a chunk, with the rejects among them."""
    kept = rows if documents.records is None else int(np.searchsorted(documents.records, rows))
    offsets = documents.offsets[: kept + 1]
    rejects = [reject for reject in documents.rejects if reject.record < rows]
    return Documents(documents.data[: int(offsets[-1])], offsets, rejects=rejects)


def _inside_character(text: bytes) -> int:
    """Bytes at the beginning of a UTF-8 text that belong to a character before it, at most three."""
    return next((i for i, byte in enumerate(text[:3]) if byte & 0xC0 != 0x80), 0)


def _share_of_controls(text: bytes) -> float:
    """The share of control characters that no text has."""
    return 1 - len(text.translate(None, _CONTROLS)) / len(text) if text else 0.0


def _plain_reason(reason: str) -> str:
    """A reason without the numbers that differ from record to record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
