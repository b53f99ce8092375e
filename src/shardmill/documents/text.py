"""Plain text: documents with a separator between them; without one, a file is a document or a stream of text."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import find
from shardmill.documents.chunks import (
    WHOLE,
    Chunk,
    Documents,
    Lease,
    Oversize,
    Position,
    Section,
    Work,
    rows_are_utf8,
)
from shardmill.documents.cutting import NO_LIMIT, Read, Search, Splitter, Stop
from shardmill.documents.opening import open_source
from shardmill.documents.reading import SPAN, STREAMS, FormatReader, no_tail
from shardmill.errors import SourceError, UsageError
from shardmill.storage import (
    CONTEXT,
    REPLACEMENT,
    STREAM_BLOCK,
    Beginning,
    Feed,
    RandomAccess,
    is_valid,
    replace_invalid,
)


@dataclass(frozen=True)
class Stretch(Work):
    """Text without a place to cut it, which is read again in pieces."""

    end: int
    """Where it ends, without a separator."""
    tail: bool | None


class TextReader(FormatReader):
    """Text as documents, or as pieces of one document that is larger than a chunk."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spans = self._reading.spans and self._stream
        self._tail_at: int | None = None
        if self._reading.separator == b"":
            raise UsageError("the separator is empty", hint="leave `--separator` out: then a file is one document")

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._reading.tail is not None:
            if not isinstance(feed, RandomAccess):
                raise no_tail(STREAMS, self._source.name)
            self._tail_at = math.ceil(feed.size * (1 - self._reading.tail))
        if start.offset == 0 and section.begin:
            start = self._enter(feed, section.begin)
        if section.end is None:
            end = None
        elif self._reading.separator is not None and start.offset >= section.end:
            return  # a document that began before this section continues to its end
        else:
            end = self._enter(feed, section.end)
            if start.offset >= end.offset:
                return
            assert isinstance(feed, RandomAccess)
            feed = Beginning(feed, end.offset)
        position, inside = start.offset, start.inside
        feed.drop(position)
        if position and not inside and feed.end_by(position) is not None:
            return
        while True:
            room = size = max(1, size)
            if self._reading.separator is not None:
                room = self._splitter(feed, self._reading.separator).room(position, size)
            stop = self._stop(feed, position, room, inside)
            if stop is None:
                chunk = self._giant(feed, position, inside, size)
            else:
                work = self._work(feed, self._begin(position), stop.offset)
                feed.drop(stop.offset)
                chunk = Chunk(
                    source=self._index,
                    start=position,
                    after=Position(stop.offset, inside=not stop.ends),
                    lease=Lease((stop.offset - position) * size // room),  # tiny documents take more than their text
                    work=work,
                    begins=not inside,
                    stream=self._stream,
                    through=feed.stored(stop.offset),
                )
            if end is not None and end.inside and chunk.end == end.offset:
                chunk = chunk._replace(after=end)
            yield chunk
            if feed.end_by(chunk.end) is not None:
                return
            position, inside = chunk.end, not chunk.ends

    def _splitter(self, feed: Feed, separator: bytes) -> Splitter:
        return Splitter(feed, separator, self._text_start)

    def _enter(self, feed: Feed, byte: int) -> Position:
        """The first position at or after a byte where a section may begin: a document's start, or a safe place."""
        separator, size, floor = self._reading.separator, self._source.size or 0, self._text_start
        if separator is not None:
            return Position(self._splitter(feed, separator).begin(byte))
        if byte <= floor:
            return Position()
        at = self._span_at(byte)
        if at >= size or self._reading.cut is None:
            return Position(size)
        search = self._search(feed.read, floor)
        stop, border = (search.stop(floor, place) for place in (at, max(self._tail_at or 0, floor + 1)))
        assert stop is not None
        # At the border between train and val a document ends.
        return Position(stop.offset, inside=not stop.ends and (self._tail_at is None or stop != border))

    def _span_at(self, byte: int) -> int:
        """The first multiple of SPAN at or after a byte; the byte itself if there are no spans."""
        return -(-byte // SPAN) * SPAN if self._spans else byte

    def _stop(self, feed: Feed, position: int, size: int, inside: bool) -> Stop | None:
        """Where a chunk of about `size` bytes ends; None: more than the memory allows would be in it."""
        floor = max(position, self._text_start)
        limit = max(position + size, floor + 1)
        if self._reading.separator is not None:
            return self._stop_at_separator(feed, position, limit, inside, self._reading.separator)
        limit, floor = self._span_at(limit), self._text_start if self._spans else floor
        search = self._search(feed.read, floor, self._room.largest)
        end = feed.end_by(limit)
        stop = Stop(end, ends=True) if end is not None else search.stop(position, limit)
        tail = self._tail_at
        if tail is not None and position < tail and (stop is None or tail < stop.offset):
            stop = search.stop(position, max(tail, floor + 1))
        if stop is not None and self._ends_head(position, stop.offset):
            stop = Stop(stop.offset, ends=True)
        return self._span_before(feed, position, limit) if stop is None and self._spans else stop

    def _stop_at_separator(self, feed: Feed, position: int, limit: int, inside: bool, separator: bytes) -> Stop | None:
        """The end of the document that continues here, or of the last one that ends by `limit`."""
        if inside and (found := feed.read(position, limit).find(separator)) >= 0:
            return Stop(position + found + len(separator), ends=True)
        end = feed.end_by(limit) if inside else self._splitter(feed, separator).end(position, limit)
        if end is not None:
            return Stop(end, ends=True)
        floor = max(position, self._text_start)
        return self._search(feed.read, floor, self._room.largest).stop(position, limit)

    def _ends_head(self, start: int, end: int) -> bool:
        """Whether the text of this chunk that goes to train is the last of its file: there a document ends.

        Without an end-of-text token the beginnings of all files would run together in train.
        """
        return self._tail_at is not None and self._reading.separator is None and start < self._tail_at <= end

    def _span_before(self, feed: Feed, position: int, limit: int) -> Stop | None:
        """The start of the last span before a stretch without cuts, so that the long chunk holds one span only."""
        search = self._search(feed.read, self._text_start, limit - position)
        for at in range(limit - SPAN, position, -SPAN):
            stop = search.stop(position, at)
            if stop is not None and stop.offset < limit:
                return stop
        return None

    def _search(
        self, read: Read, floor: int, most: int = NO_LIMIT, forget: Callable[[int], None] | None = None
    ) -> Search:
        return Search(read, self._reading.separator, self._reading.cut, floor, most, forget)

    def _giant(self, feed: Feed, position: int, inside: bool, size: int) -> Chunk:
        """A stretch that is too large for the memory: read in pieces, or the run ends if the tokenizer has no cuts."""
        cut, separator, largest = self._reading.cut, self._reading.separator, self._room.largest
        if cut is not None and self._source.size is None:
            raise SourceError(
                f"a stretch of more than {largest:,} bytes has no place where it may be cut",
                place=f"{self._source.name}, byte {position:,}",
                hint="raise `--memory`, or store the text in a file: a stream cannot be read twice",
            )
        at = self._span_at(position + max(largest, size))
        stop = self._search(feed.read, position, forget=feed.drop).stop(position, at)
        assert stop is not None
        text_end = stop.offset
        if separator and stop.ends and feed.read(text_end - len(separator), text_end) == separator:
            text_end -= len(separator)
        feed.drop(stop.offset)
        ends = stop.ends or self._ends_head(position, stop.offset)
        tail = None if self._tail_at is None else position >= self._tail_at
        return Chunk(
            source=self._index,
            start=position,
            after=Position(stop.offset, inside=not ends),
            lease=Lease(stop.offset - position if cut else size),
            work=Stretch(text_end, tail) if cut else Oversize("document", text_end - position),
            begins=not inside,
            stream=self._stream,
            through=feed.stored(stop.offset),
            long=cut is not None,
        )

    def _begin(self, start: int) -> int:
        """Where the bytes that a worker needs begin: to find spans it looks at the text before them."""
        return max(0, start - CONTEXT) if self._spans else start

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.work, Oversize):
            return chunk.work.documents(record=-1, lines=0)
        begin = self._begin(chunk.start)
        raw = self._bytes(chunk, begin)
        first = max(chunk.start, self._text_start)
        if self._reading.separator is not None and chunk.ends:
            documents, starts = split_documents(raw[first - begin :], self._reading.separator)
            documents.tail = self._flags(first + starts)
            documents.starts = starts if first == chunk.start else starts + (first - chunk.start)
            return documents
        places = self._span_starts(raw, begin, chunk) if self._spans and self._reading.cut else []
        bounds = np.array([first, *places, chunk.end], np.int64)
        documents = rows_between(raw, bounds - begin)
        documents.tail = self._flags(bounds[:-1])
        documents.starts = np.array([chunk.start, *places], np.int64) - chunk.start
        return documents

    def _flags(self, starts: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        return None if self._tail_at is None else starts >= self._tail_at

    def _span_starts(self, raw: bytes, begin: int, chunk: Chunk) -> list[int]:
        """Where the spans after the first begin: at the first safe place at or after each multiple of SPAN."""

        def read(start: int, end: int) -> bytes:
            return raw[start - begin : end - begin]

        search = self._search(read, max(self._text_start, begin))
        places: list[int] = []
        at = (chunk.start // SPAN + 1) * SPAN
        while at < chunk.end and (stop := search.stop(chunk.start, at)) is not None and stop.offset < chunk.end:
            places.append(stop.offset)
            at = (stop.offset // SPAN + 1) * SPAN
        return places

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        assert isinstance(chunk.work, Stretch)
        start, end, count = max(chunk.start, self._text_start), chunk.work.end, 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with closing(open_source(self._source, self._fetcher).feed) as feed:
            feed.drop(start)
            while start < end:
                # An invalid byte becomes three.
                block = feed.read(start, start + max(1, min(size // 3, STREAM_BLOCK, end - start)))
                start += len(block)
                feed.drop(start)
                piece = decoder.decode(block, final=start >= end).encode()
                if piece != block:
                    count += piece.count(REPLACEMENT) - block.count(REPLACEMENT)
                if piece:
                    yield piece
        return count


def split_documents(raw: bytes, separator: bytes) -> tuple[Documents, NDArray[np.int64]]:
    """The documents between separators, and where in `raw` each begins; an empty one at the end does not count.

    They are not copied: the separators stay in the gaps between them.
    """
    data = np.frombuffer(raw, np.uint8)
    offsets = _offsets(data, separator)
    if is_valid(separator):
        if is_valid(raw):
            return Documents(data, offsets, gap=separator), offsets[:-1]
        if REPLACEMENT not in separator:
            # A separator of whole characters is found in the replaced text exactly where it stood before.
            fixed = np.frombuffer(replace_invalid(raw)[0], np.uint8)
            ends = _offsets(fixed, separator)
            repairs = _replacements(fixed, ends) - _replacements(data, offsets)
            return Documents(fixed, ends, repairs=repairs, gap=separator), offsets[:-1]
    return _fixed(raw.split(separator)[: len(offsets) - 1]), offsets[:-1]


def _offsets(data: NDArray[np.uint8], separator: bytes) -> NDArray[np.int64]:
    """Where the documents begin, and where one after the last would."""
    starts = np.concatenate([np.zeros(1, np.int64), find(data, separator) + len(separator)])
    return starts if starts[-1] == len(data) else np.append(starts, len(data) + len(separator))


def _replacements(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often U+FFFD occurs in each row."""
    rows = np.searchsorted(offsets, find(data, REPLACEMENT), side="right") - 1
    return np.bincount(rows, minlength=len(offsets) - 1)


def rows_between(raw: bytes, bounds: NDArray[np.int64]) -> Documents:
    """The rows between the bounds. What is invalid is replaced in each row on its own."""
    data = np.frombuffer(raw, np.uint8)
    if bounds[0]:
        data = data[bounds[0] :]
    offsets = bounds - bounds[0]
    if rows_are_utf8(data, offsets):
        return Documents(data, offsets)
    ends = bounds.tolist()
    return _fixed(raw[a:b] for a, b in pairwise(ends))


def _fixed(pieces: Iterable[bytes]) -> Documents:
    rows = [replace_invalid(piece) for piece in pieces]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row, _ in rows], out=offsets[1:])
    data = np.frombuffer(b"".join(row for row, _ in rows), np.uint8)
    return Documents(data, offsets, repairs=np.array([count for _, count in rows], np.int64))
