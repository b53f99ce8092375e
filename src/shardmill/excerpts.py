"""Excerpts of a source: a few stretches of whole documents from all over it, or all of it, and what each stands for.

Nothing here reads further than it was told to: a terabyte without a line break costs a window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from shardmill.errors import SourceError
from shardmill.reading import FORMATS, Chunk, Documents, Position, Reading, Source
from shardmill.reading.compressed import compression_from
from shardmill.reading.opening import Opened, open_source
from shardmill.reading.places import last_separator
from shardmill.reading.storage import Feed, FileFeed, read_range
from shardmill.reading.unicode import cut_character

if TYPE_CHECKING:
    from shardmill.reading.formats import FormatReader

UNIT = 512 * 1024
"""Bytes of an excerpt, about."""
SKIP = 8
"""Of a stream that only goes forward at most so many times what is looked at is passed through."""
_NEAR = 1 << 16
_FAR = 1 << 22  # how far to look for the end of a document before the place is given up
_WHOLE_FAR = 1 << 26  # the same where all of a source is read


@dataclass
class Excerpt:
    """Some documents, and how many bytes of the source, as it is stored, they stand for."""

    documents: Documents
    span: float
    """Bytes (of decompressed text) or rows that it covers; `stored` is made of it when the source is left."""
    records: int
    """Documents, empty and rejected ones included; 0 where it is a piece of one."""
    raw: bytes = b""
    """The text as it stands in the source, where that is text."""
    stored: float = 0.0
    feeding: float = 0.0
    """Seconds that the feeder would need for it: to decompress, or to find where documents end."""
    reading: float = 0.0
    """Seconds that a worker would need to read it into documents."""


@dataclass
class Look:
    """What a source turned out to be, and what was read of it."""

    format: str = ""
    compression: str = ""
    excerpts: list[Excerpt] = field(default_factory=list)
    error: SourceError | None = None
    """Why reading stopped; a run would stop there too."""
    whole: bool = False
    """Everything that the source holds is in the excerpts."""


def look_into(
    index: int, source: Source, reading: Reading, shares: list[float] | None, ended: Callable[[], bool]
) -> Look:
    """Excerpts from the given shares (0 to 1) of a source; None: all of it. Stops when `ended` says so."""
    look = Look()
    try:
        head = read_range(source, 0, min(source.size or 0, 16))
        look.compression = compression_from(head) or ""
        opened = open_source(source)
        with closing(opened.feed):
            look.format = opened.format
            module, name, _ = FORMATS[opened.format]
            made = getattr(import_module(f"shardmill.reading.{module}"), name)
            reader = made(index, source, reading, lambda: open_source(source).feed, opened.head)
            visit = _Visit(index, source, reading, reader, opened, look, ended)
            if opened.format == "parquet":
                visit.row_groups(shares)
            elif opened.format not in ("text", "jsonl"):
                visit.rows(shares)
            elif isinstance(opened.feed, FileFeed) and shares is not None:
                visit.places(opened.feed.size, shares)
            else:
                visit.stream(shares)
    except SourceError as error:
        look.error = error
        look.excerpts = [excerpt for excerpt in look.excerpts if excerpt.stored]
    return look


class _Visit:
    def __init__(
        self,
        index: int,
        source: Source,
        reading: Reading,
        reader: FormatReader,
        opened: Opened,
        look: Look,
        ended: Callable[[], bool],
    ) -> None:
        self._index, self._source, self._reader, self._reading = index, source, reader, reading
        self._feed: Feed = opened.feed
        self._look, self._ended = look, ended
        self._separator = b"\n" if opened.format == "jsonl" else reading.separator
        self._lines = opened.format == "jsonl"
        if self._lines and b"\n" in opened.head:
            # Asked for one byte, the reader finds the first line and says if no record there has the field.
            with closing(reader.chunks(self._feed, Position(), 1)) as chunks:  # type: ignore[type-var]
                next(chunks, None)

    def places(self, size: int, shares: list[float]) -> None:
        """Of a plain file, which can be entered anywhere."""
        for share in shares:
            if self._ended() and self._look.excerpts:
                return
            started = time.perf_counter()
            begin = self._begin(int(share * size))
            if begin is not None and begin < size:
                self._window(begin, started, _FAR)
        for excerpt in self._look.excerpts:
            excerpt.stored = excerpt.span

    def stream(self, shares: list[float] | None) -> None:
        """From the start on; with `shares` only now and then, as far as the number of shares goes."""
        size = self._source.size or 0
        at = 0
        step = 1.0
        marks: list[tuple[int, int]] = []
        most = SKIP * UNIT * len(shares or ())
        missed = False
        while True:
            started = time.perf_counter()
            begin = at if shares is None else self._begin(at)
            end = None if begin is None else self._window(begin, started, _WHOLE_FAR if shares is None else _FAR)
            missed = missed or end is None
            at = max(at, end or at + _FAR)
            self._feed.drop(at)
            marks.append((at, self._feed.stored(at)))
            if self._feed.end_by(at) is not None:
                break
            if shares is not None:
                if len(self._look.excerpts) >= len(shares) or at >= most:
                    break
                if len(marks) == 1:
                    step = min(max(size * at / max(1, marks[0][1]) / UNIT / len(shares), 1.0), SKIP)
                started = time.perf_counter()
                at += int((step - 1) * UNIT)
                over = self._feed.end_by(at)
                self._skipped(started)
                if over is not None:
                    at = over
                    break
            if self._ended():
                break
        finished = self._feed.end_by(at) is not None
        self._look.whole = finished and shares is None and not missed
        self._weigh(at if finished else None, marks)

    def rows(self, shares: list[float] | None) -> None:
        """Formats of rows that only go forward."""
        size = self._source.size or 0
        step, number, at = 1, 0, 0
        marks: list[tuple[int, int]] = []
        finished = True
        started = time.perf_counter()
        with closing(self._reader.chunks(self._feed, Position(), UNIT)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                at = chunk.end
                marks.append((at, chunk.through))
                if number % step == 0:
                    self._read(chunk, started)
                else:
                    self._skipped(started)
                if shares is not None and number == 0:
                    step = int(min(max(size / max(1, chunk.through) / len(shares), 1.0), SKIP))
                number += 1
                if self._ended() or (shares is not None and len(self._look.excerpts) >= len(shares)):
                    finished = False
                    break
                started = time.perf_counter()
        self._look.whole = finished and shares is None
        self._weigh(at if finished else None, marks)

    def row_groups(self, shares: list[float] | None) -> None:
        """Row groups of a parquet file; of large ones the beginning."""
        if shares is None:
            return self.rows(None)
        starts, total = row_groups(self._source)
        # Shares that fall into one group read on in it.
        chosen = np.unique(np.searchsorted(starts, np.array(shares) * total, side="right") - 1, return_counts=True)
        for group, hits in np.random.default_rng(0).permutation(np.stack(chosen, axis=1)).tolist():
            if self._ended() and self._look.excerpts:
                break
            taken = 0
            end = int(starts[group + 1]) if group + 1 < len(starts) else total
            started = time.perf_counter()
            chunks = self._reader.chunks(self._feed, Position(int(starts[group])), UNIT)
            with closing(chunks):  # type: ignore[type-var]
                for chunk in chunks:
                    self._read(chunk, started)
                    taken += 1
                    if taken >= hits or chunk.end >= end:
                        break
                    started = time.perf_counter()
        for excerpt in self._look.excerpts:
            excerpt.stored = excerpt.span * (self._source.size or 0) / max(1, total)
        return None

    def _window(self, begin: int, started: float, far: int) -> int | None:
        """Take the documents from `begin` on as one excerpt; gives where it ends. None: there is no end near."""
        width = UNIT
        while True:
            window = self._feed.peek(begin, width)
            final = len(window) < width or self._feed.end_by(begin + width) is not None
            end, ends = begin + len(window), True
            if not final and self._separator is not None:
                end = last_separator(self._feed.peek, begin, begin + width, self._separator)
            elif not final:
                end, ends = begin + _cut(self._reading, window), False
            if end > begin or final:
                break
            if width >= far:
                if self._lines:
                    return None
                end, ends = begin + _cut(self._reading, window), False
                break
            width *= 4
        raw = window[: end - begin]
        chunk = Chunk(self._index, begin, end, len(raw), begins=True, ends=ends, payload=raw)
        excerpt = self._read(chunk, started)
        excerpt.raw = b"" if self._lines else raw
        if self._separator is None or not ends:
            excerpt.records = 0
        return end

    def _begin(self, at: int) -> int | None:
        """The first place after `at` where a document begins, or at least a word; None: none is near."""
        if at == 0:
            return 0
        width = _NEAR
        while True:
            window = self._feed.peek(at, width)
            if self._separator is None:
                found = min((i for i in (window.find(b"\n"), window.find(b" ")) if i >= 0), default=0)
                while found < min(len(window), 4) and window[found] & 0xC0 == 0x80:
                    found += 1
                return at + found
            found = window.find(self._separator)
            if found >= 0:
                return at + found + len(self._separator)
            if len(window) < width or width >= _FAR:
                return None
            width *= 4

    def _read(self, chunk: Chunk, started: float) -> Excerpt:
        between = time.perf_counter()
        documents = self._reader.read(chunk)
        done = time.perf_counter()
        records = len(documents) + len(documents.rejects)
        excerpt = Excerpt(documents, chunk.end - chunk.start, records)
        excerpt.feeding, excerpt.reading = between - started, done - between
        self._look.excerpts.append(excerpt)
        return excerpt

    def _skipped(self, started: float) -> None:
        """Passing over what is not looked at is the feeder's work as well."""
        if self._look.excerpts:
            self._look.excerpts[-1].feeding += time.perf_counter() - started

    def _weigh(self, total: int | None, marks: list[tuple[int, int]]) -> None:
        """What each excerpt stands for in stored bytes. `total`: where the source ends, if that was reached."""
        size = self._source.size or 0
        if not marks:
            return
        (first, behind), (last, through) = marks[0], marks[-1]
        if total is not None:
            rate = size / max(1, total)
        elif last > first and through > behind:
            # Decompressors read ahead; between two places they do so by as much at both.
            rate = (through - behind) / (last - first)
        else:
            rate = through / max(1, last)
        for excerpt in self._look.excerpts:
            excerpt.stored = excerpt.span * rate
        # The feeder's time was spent on all that was passed through.
        seen = sum(excerpt.span for excerpt in self._look.excerpts)
        for excerpt in self._look.excerpts:
            excerpt.feeding *= min(1.0, seen / max(1, total or last))


def row_groups(source: Source) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """The first row of each row group of a parquet file, and the number of rows. SourceError when it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(source.path)
        counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"the parquet file is damaged: {reason}", place=source.name) from error
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])
    return starts[:-1], int(starts[-1])


def _cut(reading: Reading, window: bytes) -> int:
    """Where the text of a window may end so that its tokens are those of the whole, or at least its characters."""
    place = reading.cut(window, max(1, len(window) - 4096)) if reading.cut else -1
    if 0 < place < len(window) - 4:
        return place
    space = window.rfind(b" ")
    return space if space > 0 else len(window) - cut_character(window)

