"""One source, read by its ordinary reader: all of it, at some places, or from its start as far as there is time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
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
)
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import Feed, RandomAccess, Source, StreamFeed, open_source

clock = time.thread_time
"""Work is measured by the CPU time of the thread: other programs on the machine, or a slow server, do not count."""
UNIT = 512 * 1024
"""Bytes of text at one place, about."""
NO_TEXT = 0.01
"""Of control characters, from which on it is no text: real text has less than a thousandth."""
# Bytes that no text has: control characters but tab, line feed, form feed, carriage return, escape and separators.
_CONTROLS = bytes([*range(9), 11, *range(14, 27), 127])
_STREAM = 4  # units of a stream at one place
_LARGE = 16  # units of a row group that is still read whole, which says exactly what it holds; a larger one is divided
_LARGEST_IN_STREAMS = 8 << 20  # bytes of a record that is looked at where a source is read from its start
_BEHIND = 1 << 18  # bytes behind a place that may be read besides its last record
_RAW, _RAWS = 64 * 1024, 64  # bytes of a place that are kept to look for separators, and places
_END = 1 << 62


@dataclass
class FoundInChunk:
    """The documents of one chunk."""

    documents: Documents
    text: int
    """Bytes; more than those of the documents where only a beginning was read."""
    sizes: NDArray[np.int64]
    """Bytes of the documents that begin here."""
    begun: int
    """How many these are, with the rejected ones."""
    width: int
    """Bytes that they take in the source; of rows, about those of their text."""
    unread: bool
    """One is too large to be looked at."""
    feeding: float
    reading: float


class Group(NamedTuple):
    """What was found at one place."""

    pieces: list[FoundInChunk]
    stored: float
    """Bytes of the source that the place is, and that its records take."""
    covered: float
    hits: int = 1
    """How often it was drawn."""


class Stretch(NamedTuple):
    """The records that begin within a section of bytes, or from one place to another."""

    share: float
    """Of all of the source."""
    section: Section = WHOLE
    start: Position = Position()
    end: int = _END
    """The row behind the last."""
    until: int = _END
    """Where the source is taken to end: a terabyte without a line break must not cost more than a few megabytes."""


class Look:
    """What a source turned out to be; complete when all that `groups` gives was taken."""

    def __init__(
        self, index: int, source: Source, measure: int, reading: Reading, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """`measure`: what all of the source counts for, in bytes."""
        self.source, self._measure = source, measure
        self._index, self._reading, self._ended = index, reading, ended
        self.format = self.compression = ""
        self.error: SourceError | None = None
        """Why reading stopped; a run would stop there too."""
        self.whole = False
        """Everything that the source holds was read."""
        self.entered = False
        """It was read at places all over it, not from its start."""
        self.parts: Sequence[Part] = ()
        self.unseen = 0
        """Bytes that were not reached."""
        self.scale = 1.0
        """What `stored` and `covered` of its groups have to be multiplied by."""
        self.too_large: tuple[int, str, str] = (0, "", "")
        """A record that was too large to be looked at: its bytes, its place, and the way out if it is not memory."""
        self.controls = 0.0
        """The largest share of what is no text at any place."""
        self.raw: list[bytes] = []
        """Beginnings of places, where it is plain text."""
        self.text = self.records = 0
        """Bytes of text that were found, and documents or rejects."""
        self._reader: FormatReader
        self.opening = 0.0
        """Seconds that it took to learn of its parts."""
        self._partly = False
        self._finer: dict[int, list[Part]] = {}
        self._last: NDArray[np.int64] = np.empty(0, np.int64)

    def groups(self, shares: list[float] | None, most: int) -> Iterator[Group]:
        """What stands at the given shares (0 to 1) of the source; None: all of it, or `most` bytes of text."""
        try:
            started = clock()
            opened = open_source(self.source, self._reading.fetcher)
            with closing(opened.feed) as feed:
                self.format, self.compression = opened.format, opened.compression
                if INPUT_FORMATS[opened.format].text:
                    self.controls = share_of_controls(opened.head)
                if shares is None or not isinstance(feed, RandomAccess):  # there are few records like this, not many
                    self._reading = replace(self._reading, largest=_LARGEST_IN_STREAMS)
                self._reader = format_reader(self._index, self.source, self._reading, opened, self._reopen)
                self.parts = self._reader.parts(feed)
                self.opening = clock() - started
                self.entered = shares is not None and (
                    bool(self.parts) or (INPUT_FORMATS[opened.format].sectioned and isinstance(feed, RandomAccess))
                )
                if self.entered:
                    yield from self._at(feed, shares or [])
                else:
                    yield from self._from_start(feed, None if shares is None else len(shares), most)
        except SourceError as error:
            self.error = error
            if self.controls > NO_TEXT:  # its names for fields and columns would be noise
                self.error = SourceError(error.message, place=error.place, hint="this does not look like text at all")

    def _reopen(self) -> Any:
        return open_source(self.source, self._reading.fetcher).feed

    def _at(self, feed: Any, shares: list[float]) -> Iterator[Group]:
        size, reach = self.source.size or 0, self._reading.largest + _BEHIND
        if self._reader.unit == "line":
            with closing(self._reopen()) as beginning:  # only there a reader says if no record has the field
                beginning.size = min(size, reach)
                next(self._pieces(beginning, Stretch(0.0), UNIT), None)
        self.records = 0
        shares = sorted(shares) if self.source.remote else shares  # which only goes forward
        drawn = Counter(self._rows(share) if self.parts else self._section(feed, share) for share in shares)
        for number, (one, hits) in enumerate(drawn.items()):
            if number and self._ended():
                break
            yield self._group(feed, one, hits)
        if self.records or self._reader.unit != "line":
            return
        with closing(self._reopen()) as beginning:  # which may say why there is nothing anywhere else
            yield self._group(beginning, self._section(beginning, 0.0))
        if not self.records and not self.too_large[2]:
            raise SourceError(
                "no line ends at any of the places that were looked at",
                place=self.source.name,
                hint="is this JSON Lines? Each document stands on a line of its own, as one JSON object",
            )

    def _group(self, feed: Any, stretch: Stretch, hits: int = 1) -> Group:
        size = feed.size
        feed.size = min(size, stretch.until)
        pieces = [piece for _, piece in self._pieces(feed, stretch, 4 * UNIT if self.parts else UNIT)]
        feed.size = size
        stored = self._measure * stretch.share
        covered = stored if self.parts else sum(piece.width for piece in pieces if not piece.unread)
        return Group(pieces, stored, covered, hits)

    def _section(self, feed: RandomAccess, share: float) -> Stretch:
        size = feed.size
        count = max(1, round(size / UNIT))
        number = min(int(share * count), count - 1)
        begin, end = size * number // count, size * (number + 1) // count
        share = (end - begin) / max(1, size)
        if self.format == "text" and self._reading.separator is None:
            # Cut anywhere but within a character, since there may be no better place: it adds a token at the most.
            begin, end = (at + _inside_character(feed.look(at, 4)) for at in (begin, end))
            return Stretch(share, start=Position(begin, inside=begin > 0), until=end)
        return Stretch(share, Section(begin, end), until=end + self._reading.largest + _BEHIND)

    def _rows(self, share: float) -> Stretch:
        """Some row groups or batches, or pages of a large one."""
        first, rows, within, portion, number = _pick(self.parts, share)
        if rows == self.parts[number].rows > 1 and self.parts[number].size > _LARGE * UNIT:
            # Of a remote source all up to there would have to be fetched, so it is the beginning.
            at, rows, _, share, _ = _pick(self._within(number), 0.0 if self.source.remote else within)
            first, portion = first + at, portion * share
        return Stretch(portion, start=Position(first), end=first + rows)

    def _within(self, number: int) -> list[Part]:
        if number not in self._finer:
            pages = self._reader.parts_within(number) or [self.parts[number]]
            finer = (_evenly(page) if page.size > _LARGE * UNIT else [page] for page in pages)
            self._finer[number] = [piece for pieces in finer for piece in pieces]
        return self._finer[number]

    def _from_start(self, feed: Feed, places: int | None, most: int) -> Iterator[Group]:
        size, rows = self.source.size or 0, self._reader.unit == "row"
        reach = self._reading.largest + _BEHIND + UNIT
        together = _STREAM * UNIT if places else UNIT // 2
        marks: list[tuple[int, int]] = []
        held: list[FoundInChunk] = []
        behind = before = through = count = 0
        # A stretch without an end in it would be followed to its end.
        limited = isinstance(feed, StreamFeed) and not rows
        if limited:
            feed.limit = reach  # type: ignore[attr-defined]
        elif isinstance(feed, RandomAccess) and places:
            feed.size = min(size, 4 * places * together)
        for chunk, piece in self._pieces(feed, Stretch(1.0), UNIT):
            held.append(piece)
            behind += piece.width
            if chunk.through != through:
                through = chunk.through
                marks.append((behind, through))
            cut = limited and chunk.end >= feed.limit  # type: ignore[attr-defined]
            if limited:
                feed.limit = chunk.end + reach  # type: ignore[attr-defined]
            if behind - before >= together:
                yield _side_by_side(held)
                held, before, count = [], behind, count + 1
            if cut or count == places or self.text >= most or self._ended() or self.too_large[2]:
                break
        else:
            self.whole, through, marks = not self._partly, size, []
        if held:
            yield _side_by_side(held)
        self.unseen = size - through
        # A stream is read in blocks: from right after one to right after another the ratio is true.
        (first, stored), (last, last_stored) = (marks[0], marks[-1]) if len(marks) > 2 else ((0, 0), (behind, through))
        self.scale = (last_stored - stored) / max(1, last - first) * self._measure / max(1, size)

    def _pieces(self, feed: Feed, stretch: Stretch, size: int) -> Iterator[tuple[Chunk, FoundInChunk]]:
        """The chunks of a stretch, with what is in them."""
        opening = self.opening
        chunks: Any = self._reader.chunks(feed, stretch.start, size, stretch.section)
        with closing(chunks):  # since they hold files open
            while True:
                started = clock()
                chunk = next(chunks, None)
                feeding = max(0.0, clock() - started - opening)
                if chunk is None:
                    return
                yield chunk, self._read(chunk, feeding, stretch.end)
                opening = 0.0  # which a run does once
                if chunk.end >= stretch.end or self.too_large[2]:
                    return

    def _read(self, chunk: Chunk, feeding: float, end: int) -> FoundInChunk:
        """The documents of a chunk, of rows without those behind `end`."""
        started = clock()
        if chunk.long:  # no place to cut it: the beginning stands for all of it
            text = next(self._reader.pieces(chunk, UNIT), b"")
            documents = Documents(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
        else:
            documents = self._reader.read(chunk)
        reading = clock() - started
        rows = self._reader.unit == "row"
        if rows and chunk.end > end:
            documents = _first_rows(documents, end - chunk.start)
        large = [reject for reject in documents.rejects if isinstance(reject, TooLarge)]
        for one in large:
            where = f"{self.source.name}, {self._reader.place(chunk.start, chunk.start)}"
            self.too_large = max(self.too_large, (one.size, where, one.hint))
            documents.rejects = [reject for reject in documents.rejects if not isinstance(reject, TooLarge)]
        beginning = documents.data[:_RAW].tobytes()
        self.controls = max(self.controls, share_of_controls(beginning))
        self._partly |= chunk.long or bool(large)
        sizes = documents.lengths
        text_bytes = chunk.payload - chunk.start if chunk.long else int(sizes.sum())
        self.text += text_bytes
        self.records += len(sizes) + len(documents.rejects)
        begun = len(sizes) + len(documents.rejects) + len(large)
        if self.format == "text":
            if beginning and len(self.raw) < _RAWS:
                self.raw.append(beginning)
            if self._reading.separator is None:  # a source is a document
                sizes, begun = sizes[:0], 0
            elif not chunk.begins and len(sizes):
                self._last[-1:] += sizes[0]
                sizes, begun = sizes[1:], begun - 1
            self._last = sizes if len(sizes) else self._last
        width = chunk.end - chunk.start + (chunk.cost if rows else 0)
        text_bytes += sum(one.size for one in large) if self.entered and self.parts else 0
        return FoundInChunk(documents, text_bytes, sizes, begun, width, bool(large), feeding, reading)


def _side_by_side(pieces: list[FoundInChunk]) -> Group:
    """Pieces of a stream as one place; a record that could not be read is taken to be like the others."""
    widths = np.array([piece.width for piece in pieces], float)
    read = np.array([not piece.unread for piece in pieces])
    return Group(pieces, float(widths.sum()), float(widths @ read))


def _inside_character(text: bytes) -> int:
    """Bytes at the beginning of a UTF-8 text that belong to a character before it, at most three."""
    return next((i for i, byte in enumerate(text[:3]) if byte & 0xC0 != 0x80), 0)


def _pick(parts: Sequence[Part], share: float) -> tuple[int, int, float, float, int]:
    """The parts, joined to about a unit, that a share of their bytes falls into.

    Gives their first row, how many they are, the share of them at which it falls, their share of all, and the first.
    """
    sizes = np.array([max(1, part.size) for part in parts], np.int64)
    rows = np.cumsum([0, *(part.rows for part in parts)])
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    joined = (ends - sizes) // UNIT
    hit = min(int(np.searchsorted(ends, share * total, side="right")), len(parts) - 1)
    first, last = (int(np.searchsorted(joined, joined[hit], side=side)) for side in ("left", "right"))
    begin, end = int(ends[first] - sizes[first]), int(ends[last - 1])
    within = min(1.0, max(0.0, (share * total - begin) / (end - begin)))
    return int(rows[first]), int(rows[last] - rows[first]), within, (end - begin) / total, first


def _evenly(part: Part) -> list[Part]:
    """A part divided into pieces of equally many rows, of about a unit."""
    count = max(1, min(part.rows, part.size // UNIT))
    bounds = [part.rows * i // count for i in range(count + 1)]
    return [Part(end - begin, part.size // count, part.stored // count) for begin, end in pairwise(bounds)]


def _first_rows(documents: Documents, rows: int) -> Documents:
    """The first rows of a chunk, with the rejects among them."""
    kept = rows if documents.records is None else int(np.searchsorted(documents.records, rows))
    kept = min(kept, len(documents))
    return replace(
        documents,
        data=documents.data[: int(documents.offsets[kept])],
        offsets=documents.offsets[: kept + 1],
        records=None if documents.records is None else documents.records[:kept],
        rejects=[reject for reject in documents.rejects if reject.record < rows],
        lines=rows,
    )


def share_of_controls(text: bytes) -> float:
    """The share of bytes that no text has."""
    return 1 - len(text.translate(None, _CONTROLS)) / len(text) if text else 0.0
