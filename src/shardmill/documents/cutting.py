"""Where a text may be cut: after a separator, or at a place that is safe for the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.storage import CONTEXT, STREAM_BLOCK, Feed, RandomAccess

Cut = Callable[[bytes, int], int]
Read = Callable[[int, int], bytes]

FIRST_WINDOW = 1 << 12
NO_LIMIT = 1 << 62
# The least bytes of text for each document of a chunk: about the memory that a document takes meanwhile, divided by
# what a lease has for a byte.
ROW_BYTES = 16
_SAMPLE, _SAMPLES = 1 << 10, 8


class Stop(NamedTuple):
    """Where a chunk ends, and whether a document ends there too."""

    offset: int
    ends: bool


@dataclass(frozen=True)
class Search:
    """Looks for the next place where a text may be cut."""

    read: Read
    separator: bytes | None
    cut: Cut | None = None
    floor: int = 0
    """Nothing before it is read."""
    most: int = NO_LIMIT
    """Bytes that are searched before it is given up."""
    forget: Callable[[int], None] | None = None
    """Called with offsets whose bytes are not needed any more."""

    def stop(self, start: int, at: int) -> Stop | None:
        """The first safe place at or after `at`, or the end of the document that begins at `start` if that comes first.

        None: more than `most` bytes from `start` hold neither.
        """
        width = len(self.separator) if self.separator else 1
        # A place this close to the end of the window may touch a separator, or be before a character that is cut off.
        reach = max(width, 5)
        search = max(start, at - width + 1)
        step = FIRST_WINDOW
        while True:
            low = min(search, max(self.floor, at - CONTEXT))
            n = at - low + step
            window = self.read(low, low + n)
            final = len(window) < n
            found = window.find(self.separator, search - low) if self.separator else -1
            closed = final or found >= 0
            lead = continuations(window) if low > self.floor else 0
            text = window[lead : found if found >= 0 else len(window)]
            place = first_safe(self.cut, text, at - low - lead, 0 if closed else reach)
            if place > 0:
                return Stop(low + lead + place, ends=False)
            if found >= 0:
                return Stop(low + found + width, ends=True)
            edge = low + len(window)
            if final:
                return Stop(edge, ends=True)
            if edge - start > self.most:
                return None
            at = search = max(at, edge - reach)
            step = min(STREAM_BLOCK, step * 4)
            if self.forget:
                self.forget(at - CONTEXT)


class Splitter:
    """Divides a feed into chunks of whole documents, each of which ends with a separator."""

    def __init__(self, feed: Feed, separator: bytes, floor: int, rows: int = NO_LIMIT) -> None:
        """`floor`: where the text begins. `rows`: upper limit of the documents in a chunk, about."""
        self._feed, self._separator, self._floor, self._rows = feed, separator, floor, rows

    def begin(self, byte: int) -> int:
        """Where the first document begins that begins at or after a byte."""
        feed, separator = self._feed, self._separator
        assert isinstance(feed, RandomAccess)
        if byte <= self._floor:
            return 0
        if byte >= feed.size:
            return feed.size
        begin = last_separator(feed.read, self._floor, byte, separator, near=True)
        if begin == byte:
            return byte
        begin = max(self._floor, byte - len(separator) + 1) if begin < 0 else begin
        stop = Search(feed.read, separator, floor=begin).stop(begin, begin)
        assert stop is not None
        return stop.offset

    def room(self, position: int, size: int) -> int:
        """A chunk's size, made smaller where documents are so tiny that they take more memory than their text."""
        return size_for_rows(self._feed.read, position, size, self._separator, self._rows)

    def end(self, position: int, limit: int) -> int | None:
        """Where the last document ends that ends by `limit`; None: none does."""
        end = self._feed.end_by(limit)
        if end is None:
            end = last_separator(self._feed.read, max(position, self._floor), limit, self._separator)
        return None if end < 0 else end


def first_safe(cut: Cut | None, window: bytes, at: int, reach: int) -> int:
    """The first safe place at or after `at` and more than `reach` bytes before the end of the window, or -1."""
    limit = len(window) - reach
    while cut is not None and at < limit:
        place = cut(window, max(at, 1))
        if place <= 0 or place >= limit:
            return -1
        # Invalid bytes will be replaced later, and then the cut might decide differently.
        if _sound(window, place):
            return place
        at = place + 1
    return -1


def continuations(window: bytes) -> int:
    """Bytes at the beginning that belong to a character before it."""
    count = 0
    while count < min(3, len(window)) and window[count] & 0xC0 == 0x80:
        count += 1
    return count


def _sound(window: bytes, place: int) -> bool:
    """Whether there are whole characters on both sides of the place."""
    before = window[max(0, place - 8) : place]
    if place > 8:
        before = before[continuations(before) :]
    first = window[place]
    width = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    try:
        (before + window[place : place + width]).decode()
    except UnicodeDecodeError:
        return False
    return True


def last_separator(read: Read, start: int, limit: int, separator: bytes, *, near: bool = False) -> int:
    """Where the last separator that ends by `limit` ends, as splitting from `start` on would find it, or -1.

    `near`: -1 also where there is none in the last few kilobytes.
    """
    width = max(1 << 14, 4 * len(separator))
    while True:
        low = max(start, limit - width)
        window = read(low, limit)
        end = _last_end(window, separator, whole=low == start)
        if end >= 0:
            return low + end
        if low == start or (near and separator not in window):
            return -1
        width *= 4


def _last_end(window: bytes, separator: bytes, whole: bool) -> int:
    """The end of the last separator in the window, or -1 if there is none or if that needs more of the text before it.

    Separators are found from the left. One that can overlap itself certainly counts where no other begins shortly
    before it; the later ones follow from there.
    """
    n = len(separator)
    place = window.rfind(separator)
    if place < 0:
        return -1
    if not overlaps_itself(separator):
        return place + n
    if separator == separator[:1] * n:
        run = len(window[: place + n].rstrip(separator[:1]))
        return -1 if run == 0 and not whole else run + (place + n - run) // n * n
    while (earlier := window.rfind(separator, max(0, place - n + 1), place + n - 1)) >= 0:
        place = earlier
    if place < n - 1 and not whole:
        return -1
    end = place + n
    while (later := window.find(separator, end)) >= 0:
        end = later + n
    return end


def overlaps_itself(separator: bytes) -> bool:
    return any(separator.endswith(separator[:k]) for k in range(1, len(separator)))


def size_for_rows(read: Read, start: int, size: int, separator: bytes, rows: int = NO_LIMIT) -> int:
    """A chunk's size, made smaller where documents are so tiny that they take more memory than their text.

    Also where it would hold more than about so many `rows`. Estimated from the densest of some samples: a chunk's size
    never changes what its documents are.
    """
    most = max(1, min(rows, size // ROW_BYTES))
    if size < _SAMPLE * _SAMPLES:
        return size
    places = (start + i * (size // _SAMPLES) for i in range(_SAMPLES))
    densest = max(read(place, place + _SAMPLE).count(separator) for place in places)
    found = densest * size // _SAMPLE
    return size if found <= most else max(_SAMPLE * _SAMPLES, size * most // found)
