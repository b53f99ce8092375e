"""One source, looked into by its ordinary reader: some stretches of it, or as much as there is time for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from shardmill.documents import (
    SPAN,
    Chunk,
    Documents,
    FormatReader,
    Position,
    Reading,
    Stretch,
    TooLarge,
    format_reader,
)
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.inspection.found import NO_TEXT, Found, first_rows, parted, share_of_controls
from shardmill.storage import Feed, Source, StreamFeed, open_source

clock = time.thread_time
"""Work is measured by the CPU time of the thread: other programs on the machine, or a slow server, do not count."""
_SKIP = 8  # of a stream at most so many times what is looked at is passed over
_WALK = 1 << 22  # bytes of text that a stream is followed at the least, to see how well it is compressed
_STREAM_MARKS = 64  # places of a stream at which is noted how many stored bytes were read
_BEHIND = 1 << 19  # bytes behind a stretch that may be read besides its last record


class Look:
    """What a source turned out to be; complete when all that `go` gives was taken."""

    def __init__(
        self,
        index: int,
        source: Source,
        measure: int,
        reading: Reading,
        unit: int,
        most: int,
        ended: Callable[[], bool],
    ) -> None:
        """`measure`: what all of the source counts for, in bytes; `unit`: bytes of text at a place, about."""
        self.source, self._measure = source, measure
        self._index, self._reading, self._unit, self._most, self._ended = index, reading, unit, most, ended
        self.format = self.compression = ""
        self.error: SourceError | None = None
        """Why reading stopped; a run would stop there too."""
        self.whole = False
        """Everything that the source holds was read."""
        self.placed = False
        """It was entered at several places, not read from its start."""
        self.stream = self.unseen = 0.0
        """Bytes of a source that was read from its start, and those that were not reached."""
        self.too_large: tuple[int, str, str] = (0, "", "")
        """A record that was too large to be looked at: its bytes, its place, and the way out if it is not memory."""
        self.controls = 0.0
        """The share of its beginning that is no text, where it should be."""
        self.text = 0
        """Bytes of text that were found."""
        self._reader: FormatReader
        self._records = 0
        self._partly = False
        self._fed, self._feeding = 0, 0.0

    def go(self, shares: list[float] | None) -> Iterator[Found]:
        """Documents from the given shares (0 to 1) of the source; None: all of it."""
        try:
            opened = open_source(self.source, self._reading.fetcher)
            with closing(opened.feed):
                self.format = opened.format
                if INPUT_FORMATS[opened.format].text and opened.head:
                    self.controls = share_of_controls(opened.head)
                self.compression = opened.compression
                self._reader = format_reader(self._index, self.source, self._reading, opened, self._reopen)
                if shares is not None and (self._reader.stretch(opened.feed, 0.0, self._unit) is not None):
                    self.placed = True
                    yield from self._stretches(opened.feed, shares)
                else:
                    yield from self._from_start(opened.feed, None if shares is None else len(shares))
        except SourceError as error:
            self.error = error
            if self.controls > NO_TEXT:  # its names for fields and columns would be noise
                self.error = SourceError(error.message, place=error.place, hint="this does not look like text at all")

    def _reopen(self) -> Any:
        return open_source(self.source, self._reading.fetcher).feed

    def _stretches(self, feed: Any, shares: list[float]) -> Iterator[Found]:
        """Of a source that can be entered; a remote one only from its beginning to its end."""
        size, reader = self.source.size or 0, self._reader
        if reader.unit == "line":
            # Asked for a little, it looks at the beginning, and says if no record there has the field.
            with closing(self._reopen()) as another:
                another.size = min(size, self._reading.largest + _BEHIND)
                for chunk in self._chunks(reader, another, Position(), 1):
                    self._read(another, chunk, 0, 1 << 62)
                    break
            self.text = self._records = 0
        forward = self.source.remote and reader.unit != "row"
        drawn = (reader.stretch(feed, share, self._unit) for share in (sorted(shares) if forward else shares))
        stretches = ((one, 1) for one in drawn) if forward else Counter(drawn).items()
        for number, (stretch, hits) in enumerate(stretches):
            if stretch is None or (self._ended() and number):
                break
            stored = self._measure * stretch.share
            if reader.unit != "row":
                # Nothing is read far behind it: a terabyte without a line break costs a few megabytes.
                feed.size = min(size, stretch.end + self._reading.largest + _BEHIND)
            empty = True
            for found in self._of(feed, stretch, number):
                found.stored, found.hits, stored, empty = stored, hits, 0.0, False
                if reader.unit != "line":
                    found.covered = found.stored
                yield found
            feed.size = size
            if empty:  # no record begins there, which says something of how many there are
                yield replace(self._nothing(number), stored=stored, hits=hits)
        if not self._records and reader.unit == "line":
            yield from self._one_line(size)

    def _one_line(self, size: int) -> Iterator[Found]:
        """No line ends at any place: look at the beginning, which may say why."""
        with closing(self._reopen()) as feed:
            stretch = self._reader.stretch(feed, 0.0, self._unit)
            assert stretch is not None
            feed.size = min(size, stretch.end + self._reading.largest + _BEHIND)
            for found in self._of(feed, stretch, -1):
                yield replace(found, stored=self._measure * stretch.share)
        if not self._records and not self.too_large[2]:
            raise SourceError(
                "no line ends at any of the places that were looked at",
                place=self.source.name,
                hint="is this JSON Lines? Each document stands on a line of its own, as one JSON object",
            )

    def _of(self, feed: Feed, stretch: Stretch, place: int) -> Iterator[Found]:
        """The documents of a stretch."""
        reader, position = self._reader, stretch.start
        while position.offset < stretch.end:
            # Rows come a little beyond the end and are left out; text and lines are asked for up to it.
            rows = reader.unit == "row"
            at = position.offset
            size = 4 * self._unit if rows else stretch.end - at if at >= stretch.begin else 1
            for chunk in self._chunks(reader, feed, position, size):
                found = self._read(feed, chunk, place, stretch.end)
                if reader.unit == "line":
                    # Of a line that is cut by the edge of the stretch that part counts, and it begins on one side only.
                    inside = min(chunk.end, stretch.end) - max(chunk.start, stretch.begin)
                    found.part = max(0, inside) / max(1, chunk.end - chunk.start)
                    found.covered *= found.part
                    if chunk.start < stretch.begin:
                        found.begun, found.sizes = 0, found.sizes[:0]
                yield found
                position = Position(chunk.end, inside=not chunk.ends)
                if not rows or position.offset >= stretch.end:
                    break
            if position.offset == at or self.too_large[2]:
                break

    def _chunks(self, reader: FormatReader, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        """The chunks, with the time that they take; closed when no more are wanted, since they hold files open."""
        chunks: Any = reader.chunks(feed, start, size)
        with closing(chunks):
            while True:
                started = clock()
                chunk = next(chunks, None)
                self._feeding += clock() - started
                if chunk is None:
                    return
                self._fed += chunk.cost
                yield chunk

    def _from_start(self, feed: Feed, wanted: int | None) -> Iterator[Found]:
        """All of a source, or so many places of what is read from its start, with more between them the longer it is.

        A chunk ends before a record that would make it too large. So the first record of the next one is longer than
        others are, and it belongs to the place before it: else some places would favour long ones and some short ones.
        """
        size = self.source.size or 0
        marks: list[tuple[int, int]] = []
        behind = through = text = places = next_at = 0
        held: list[Found] = []
        full = chosen = False  # the chunk before ended so; it was taken
        reach = self._unit + self._reading.largest + _BEHIND
        end = self._stop_by(feed, reach)
        for chunk in self._chunks(self._reader, feed, Position(), self._unit):
            weight = self._weight(chunk)
            take = wanted is None or (behind >= next_at and places < wanted)
            if take or (full and chosen):
                found = self._read(feed, chunk, 0, 1 << 62)
                found.covered = weight
                first, rest = parted(found, chunk.begins) if full and wanted is not None else (None, found)
                if first is not None and chosen:
                    held.append(replace(first, place=places))
                if take:
                    places += wanted is not None or weight > self._unit // 2
                    held.append(replace(rest, place=places))
                    length = (behind + weight) * size / max(1, chunk.through)  # of all of it, about
                    next_at = behind + min(_SKIP * self._unit, int(length / (wanted or 1)))
                text += found.size
            behind, full, chosen = behind + weight, weight <= self._unit, take
            cut, end = chunk.end >= end, self._stop_by(feed, chunk.end + reach)
            if chunk.through != through:
                through = chunk.through
                marks.append((behind, through))
                if len(marks) > _STREAM_MARKS:
                    del marks[1:-1:2]
            enough = wanted is not None and places >= wanted and not (full and chosen) and behind >= _WALK
            if enough or cut or text >= self._most or self._ended() or self.too_large[2]:
                break
        else:
            self.whole = wanted is None and not self._partly
            marks, through = [], size
        self.stream, self.unseen = float(size), float(max(0, size - through))
        rate = self._rate(marks, behind, through) * self._measure / max(1, size)
        for found in held:
            found.stored = found.covered = found.covered * rate
            yield found

    def _stop_by(self, feed: Feed, end: int) -> int:
        """Let a stream of text end by there: a stretch without an end in it would be followed to its end."""
        if isinstance(feed, StreamFeed) and self._reader.unit != "row":
            feed.limit = end
            return end
        return 1 << 62

    def _weight(self, chunk: Chunk) -> int:
        """Bytes of text; of rows those of the text and a little for each, since they may have none."""
        return chunk.end - chunk.start + (chunk.cost if self._reader.unit == "row" else 0)

    @staticmethod
    def _rate(marks: list[tuple[int, int]], behind: int, through: int) -> float:
        """Stored bytes for each of text.

        A stream is read in blocks. From right after one to right after another the rate is true; elsewhere it would be
        off by up to a block.
        """
        if len(marks) > 2:
            (at, stored), (last, last_stored) = marks[0], marks[-1]
            return (last_stored - stored) / max(1, last - at)
        return through / max(1, behind)

    def _nothing(self, place: int) -> Found:
        none = Documents(np.empty(0, np.uint8), np.zeros(1, np.int64))
        return Found(place, self.source.name, none, 0, np.empty(0, np.int64), 0)

    def _read(self, feed: Feed, chunk: Chunk, place: int, end: int) -> Found:
        """The documents of a chunk, without those that begin at `end` or behind it where rows are counted."""
        started = clock()
        if chunk.long:  # no place to cut it: the beginning stands for all of it
            text = next(self._reader.pieces(chunk, self._unit), b"")  # type: ignore[attr-defined]
            documents = Documents(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
        else:
            documents = self._reader.read(chunk)
        seconds = clock() - started
        if self._reader.unit == "row" and chunk.end > end:
            documents = first_rows(documents, end - chunk.start)
        if large := [reject for reject in documents.rejects if isinstance(reject, TooLarge)]:
            where = f"{self.source.name}, {self._reader.place(chunk.start, chunk.start)}"
            self.too_large = max(self.too_large, *((one.size, where, one.hint) for one in large))
            documents.rejects = [reject for reject in documents.rejects if not isinstance(reject, TooLarge)]
        sizes = documents.lengths
        size = int(sizes.sum())
        self.text += size
        self._records += len(sizes) + len(documents.rejects)
        found = Found(place, self.source.name, documents, len(sizes) + len(documents.rejects) + len(large), sizes, size)
        found.covered = chunk.end - chunk.start if not large else 0
        if self._reader.unit == "row":
            found.size += sum(one.size for one in large)
        if chunk.long:
            found.size, self._partly = chunk.payload - chunk.start, True
        found.fed, found.feeding, found.reading = self._fed, self._feeding, seconds
        self._fed, self._feeding = 0, 0.0
        if self.format == "text":
            self._as_text(feed, chunk, found)
        return found

    def _as_text(self, feed: Feed, chunk: Chunk, found: Found) -> None:
        """Count the documents of text that begin in a chunk; what is a piece of one has the size of all of it."""
        separator = self._reading.separator
        found.raw = found.documents.data[:SPAN].tobytes()
        if separator is None:
            found.begun, found.sizes = 0, found.sizes[:0]
        elif not chunk.begins:
            found.begun, found.sizes = found.begun - 1, found.sizes[1:]
        elif not chunk.ends and len(found.sizes):
            rest = feed.peek(chunk.end, self._reading.largest)
            behind = rest.find(separator)
            found.sizes = found.sizes + (len(rest) if behind < 0 else behind)
