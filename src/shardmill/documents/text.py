"""Plain text: one document a file, or documents with a separator between them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.documents.chunks import WHOLE, Chunk, Documents, Oversize, Position, Section
from shardmill.documents.cutting import NO_LIMIT, Peek, Stop, last_separator, next_stop, splits_from, thinned
from shardmill.documents.reading import SPAN, FormatReader, Reading, no_tail
from shardmill.documents.splitting import packed, rows_between, split_documents
from shardmill.errors import SourceError, UsageError
from shardmill.storage import CONTEXT, REPLACEMENT, STREAM_BLOCK, Feed, RandomAccess, Source, read_range


class TextReader(FormatReader):
    """Text as documents, or as pieces of one document that is larger than a chunk."""

    most_rows = NO_LIMIT
    """In a chunk, about."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading, reopen, head)
        self._spans = reading.spans and reading.separator is None
        self._tail_at: int | None = None
        if reading.separator == b"":
            raise UsageError("the separator is empty", hint="leave `--separator` out: then a file is one document")

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._reading.tail is not None:
            self._tail_at = self._tail(feed, self._reading.tail)
        if start.offset == 0 and section.begin:
            start = self._enter(feed, section.begin)
        if section.end is None:
            end = None
        elif self._reading.separator is not None and start.offset >= section.end:
            return  # a document that began before this section goes on to its end: no need to look for more
        else:
            end = self._enter(feed, section.end)
            if start.offset >= end.offset:
                return
            assert isinstance(feed, RandomAccess)
            feed.size = end.offset
        position, inside = start.offset, start.inside
        feed.drop(position)
        if position and not inside and feed.end_by(position) is not None:
            return
        while True:
            room = size = max(1, size)
            if self._reading.separator is not None:
                room = thinned(feed.peek, position, size, self._reading.separator, self.most_rows)
            stop = self._stop(feed, position, room, inside)
            if stop is not None:
                chunk = self._chunk(feed, position, inside, stop)
                if room < size:  # many tiny documents weigh more than their text
                    chunk = chunk._replace(cost=chunk.cost * size // room)
            else:
                chunk = self._giant(feed, position, inside, size)
            if end is not None and end.inside and chunk.end == end.offset:
                chunk = chunk._replace(ends=False)
            yield chunk
            if feed.end_by(chunk.end) is not None:
                return
            position, inside = chunk.end, not chunk.ends

    def _enter(self, feed: Feed, byte: int) -> Position:
        """The first place at or after a byte where a section may begin: a document's start, or a safe place."""
        separator, size, floor = self._reading.separator, self._source.size or 0, self._text_start
        if byte <= floor:
            return Position()
        at = -(-byte // SPAN) * SPAN if self._spans else byte
        if at >= size or (separator is None and self._reading.cut is None):
            return Position(size)
        assert isinstance(feed, RandomAccess)
        peek = feed.look
        if separator is None:
            stop, border = (
                self._next(peek, start=floor, at=place, floor=floor)
                for place in (at, max(self._tail_at or 0, floor + 1))
            )
            assert stop is not None
            # At the border between train and val a document ends.
            return Position(stop.offset, inside=not stop.ends and (self._tail_at is None or stop != border))
        begin = splits_from(peek, floor, at, separator)
        if begin == at and peek(at - len(separator), len(separator)) == separator:
            return Position(at)
        stop = next_stop(peek, start=begin, at=begin, floor=begin, separator=separator, cut=None)
        assert stop is not None
        return Position(stop.offset)

    def _tail(self, feed: Feed, tail: float) -> int:
        if not isinstance(feed, RandomAccess):
            raise no_tail("a stream, what is compressed, or UTF-16", self._source.name)
        return math.ceil(feed.size * (1 - tail))

    def _stop(self, feed: Feed, position: int, size: int, inside: bool) -> Stop | None:
        floor = max(position, self._text_start)
        limit = max(position + size, floor + 1)
        separator = self._reading.separator
        if separator is not None:
            if inside:
                found = feed.peek(position, limit - position).find(separator)
                if found >= 0:
                    return Stop(position + found + len(separator), ends=True)
            end = feed.end_by(limit)
            if end is not None:
                return Stop(end, ends=True)
            if not inside and (found := last_separator(feed.peek, floor, limit, separator)) >= 0:
                return Stop(found, ends=True)
            return self._next(feed.peek, start=position, at=limit, floor=floor, most=self._reading.largest)
        if self._spans:
            limit = -(-limit // SPAN) * SPAN
            floor = self._text_start
        search = partial(self._next, feed.peek, start=position, floor=floor, most=self._reading.largest)
        end = feed.end_by(limit)
        stop = Stop(end, ends=True) if end is not None else search(at=limit)
        tail = self._tail_at
        if tail is not None and position < tail and (stop is None or tail < stop.offset):
            stop = search(at=max(tail, floor + 1))
        if stop is not None and self._ends_head(position, stop.offset):
            stop = Stop(stop.offset, ends=True)
        return self._span_before(feed, position, limit) if stop is None and self._spans else stop

    def _ends_head(self, start: int, end: int) -> bool:
        """Whether a chunk holds the last of what goes to train: there a document ends, and another begins in val.

        Without an end-of-text token the beginnings of all files would run together in train.
        """
        return self._tail_at is not None and self._reading.separator is None and start < self._tail_at <= end

    def _span_before(self, feed: Feed, position: int, limit: int) -> Stop | None:
        """The last span that begins before a giant stretch, so that the long chunk holds that one span and no other."""
        for at in range(limit - SPAN, position, -SPAN):
            stop = self._next(feed.peek, start=position, at=at, floor=self._text_start, most=limit - position)
            if stop is not None and stop.offset < limit:
                return stop
        return None

    def _next(self, peek: Peek, **where: Any) -> Stop | None:
        return next_stop(peek, separator=self._reading.separator, cut=self._reading.cut, **where)

    def _chunk(self, feed: Feed, position: int, inside: bool, stop: Stop) -> Chunk:
        return Chunk(
            source=self._index,
            start=position,
            end=stop.offset,
            cost=stop.offset - position,
            begins=not inside,
            ends=stop.ends,
            through=feed.stored(stop.offset),
            payload=feed.take(self._begin(position), stop.offset),
        )

    def _giant(self, feed: Feed, position: int, inside: bool, size: int) -> Chunk:
        """A stretch that may not be held in memory: read in pieces, or the end where the tokenizer has no cuts."""
        cut, separator, largest = self._reading.cut, self._reading.separator, self._reading.largest
        if cut is not None and self._source.size is None:
            raise SourceError(
                f"a stretch of more than {largest:,} bytes has no place where it may be cut",
                place=f"{self._source.name}, byte {position:,}",
                hint="raise `--memory`, or store the text in a file: a stream cannot be read twice",
            )
        at = position + max(largest, size)
        at = -(-at // SPAN) * SPAN if self._spans else at
        stop = self._next(feed.peek, start=position, at=at, floor=position, forget=feed.drop)
        assert stop is not None
        text_end = stop.offset
        if separator and stop.ends and feed.peek(text_end - len(separator), len(separator)) == separator:
            text_end -= len(separator)
        feed.drop(stop.offset)
        return Chunk(
            source=self._index,
            start=position,
            end=stop.offset,
            cost=stop.offset - position if cut else size,
            begins=not inside,
            ends=stop.ends or self._ends_head(position, stop.offset),
            long=cut is not None,
            through=feed.stored(stop.offset),
            payload=text_end if cut else Oversize("document", text_end - position),
            tail=None if self._tail_at is None else position >= self._tail_at,
        )

    def _begin(self, start: int) -> int:
        """Where the bytes that a worker needs begin: spans are found by looking at what stands before them."""
        return max(0, start - CONTEXT) if self._spans else start

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.payload, Oversize):
            return chunk.payload.documents(record=-1, lines=0)
        begin = self._begin(chunk.start)
        raw = chunk.payload
        if raw is None:
            raw = read_range(self._source, begin, chunk.end)
        first = max(chunk.start, self._text_start) if chunk.start == 0 else chunk.start
        if self._reading.separator is not None and chunk.ends:
            documents, starts = split_documents(raw[first - begin :], self._reading.separator)
            documents.tail = self._flags(first + starts)
            return documents if self._reading.gaps else packed(documents)
        places = self._span_starts(raw, begin, chunk) if self._spans and self._reading.cut else []
        bounds = np.array([first, *places, chunk.end], np.int64)
        documents = rows_between(raw, bounds - begin)
        documents.spans = self._spans
        documents.tail = self._flags(bounds[:-1])
        return documents

    def _flags(self, starts: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        return None if self._tail_at is None else starts >= self._tail_at

    def _span_starts(self, raw: bytes, begin: int, chunk: Chunk) -> list[int]:
        """Where the spans after the first begin: at the first safe place at or after each multiple of SPAN."""

        def peek(offset: int, n: int) -> bytes:
            return raw[offset - begin : offset - begin + n]

        places: list[int] = []
        place = chunk.start
        while True:
            at = (place // SPAN + 1) * SPAN
            if at >= chunk.end:
                return places
            stop = self._next(peek, start=chunk.start, at=at, floor=max(self._text_start, begin))
            if stop is None or stop.offset >= chunk.end:
                return places
            place = stop.offset
            places.append(place)

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        """The text of a long chunk, in turn; returns how many invalid sequences became U+FFFD."""
        end: int = chunk.payload
        feed = self._reopen()
        try:
            start = max(chunk.start, self._text_start) if chunk.start == 0 else chunk.start
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            count = 0
            feed.drop(start)
            while start < end:
                # An invalid byte becomes three.
                block = feed.peek(start, max(1, min(size // 3, STREAM_BLOCK, end - start)))
                start += len(block)
                feed.drop(start)
                piece = decoder.decode(block, final=start >= end).encode()
                if piece != block:
                    count += piece.count(REPLACEMENT) - block.count(REPLACEMENT)
                if piece:
                    yield piece
        finally:
            feed.close()
        return count
