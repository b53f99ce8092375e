"""Excerpts of plain text and JSON Lines: windows that begin and end where documents do, wherever one looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardmill.documents import Chunk
from shardmill.documents.cutting import last_separator
from shardmill.inspection import excerpts
from shardmill.inspection.read_ahead import Marks
from shardmill.storage.feeds import FileFeed
from shardmill.storage.ranges import RemoteFeed
from shardmill.storage.unicode import cut_character

if TYPE_CHECKING:
    from shardmill.documents import Reading
    from shardmill.documents.formats import FormatReader
    from shardmill.inspection.excerpts import Look
    from shardmill.storage import Source
    from shardmill.storage.opening import Opened

NEAR = 1 << 16
FAR = 1 << 22  # how far to look for the end of a document before the place is given up
_WHOLE_FAR = 1 << 26  # the same where all of a source is read
_PATIENCE = 3  # places at which one looks so far in vain
_NEARLY = 0.7  # of a stream, from which on the rest is followed as well
_WALK = 1 << 22  # bytes of text that a stream is followed at the least, to see how well it is compressed


class TextVisit:
    """One source, looked into once."""

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
        self._index, self._reading, self._reader = index, reading, reader
        self._feed, self._look, self._ended = opened.feed, look, ended
        self._lines = opened.format == "jsonl"
        self._separator = b"\n" if self._lines else reading.separator
        self._marks = Marks(source.size or 0)
        self._missed = self._behind = 0
        self._inside = False
        """The last place that was looked for is inside a document."""

    def go(self, shares: list[float] | None) -> None:
        if shares is None:
            self._everything()
        elif isinstance(self._feed, (FileFeed, RemoteFeed)):
            self._places(self._feed.size, shares)
        else:
            self._now_and_then(len(shares))

    def _places(self, size: int, shares: list[float]) -> None:
        """Of a plain file, which can be entered anywhere; a remote one only from its beginning to its end."""
        for share in shares if isinstance(self._feed, FileFeed) else sorted(shares):
            if self._ended() and self._look.excerpts:
                break
            started = excerpts.clock()
            if not self._enter(int(share * size)):
                continue
            begin = self._begin(int(share * size))
            if begin is not None and begin < size:
                self._window(begin, started, FAR)
        if not self._look.excerpts and self._enter(0):
            self._window(0, excerpts.clock(), FAR)
        self._look.weigh(1.0, 0)

    def _enter(self, at: int) -> bool:
        """Whether the feed can be entered there: a remote one does not go back."""
        if isinstance(self._feed, RemoteFeed):
            if at < self._behind:
                return False
            self._feed.drop(at)
            self._behind = at
        return True

    def _everything(self) -> None:
        at: int | None = 0
        while at is not None and self._marks.total is None and not self._ended() and not self._look.full:
            at = self._window(at, excerpts.clock(), _WHOLE_FAR)
            if at is not None:
                self._feed.drop(at)
                self._marks.total = self._feed.end_by(at)
                self._marks.add(at, self._feed.stored(at))
        self._look.whole = self._marks.total is not None
        self._look.weigh(self._marks.rate, self._marks.last, self._marks.doubt)

    def _now_and_then(self, wanted: int) -> None:
        """Of a stream, from its start on: so many windows, with more between them the longer it is."""
        at = 0
        while True:
            started = excerpts.clock()
            self._advance(at + excerpts.UNIT + NEAR)
            begin = self._begin(at)
            end = None if begin is None else self._window(begin, started, FAR)
            # Over all that is still to come: how long the whole is becomes clear only on the way.
            left = max(1, wanted - len(self._look.excerpts))
            gap = (self._marks.length - (at if end is None else end)) / left / excerpts.UNIT - 1
            at = (at + FAR if end is None else end) + int(min(max(gap, 0.0), excerpts.SKIP - 1) * excerpts.UNIT)
            started = excerpts.clock()
            enough = len(self._look.excerpts) >= wanted or at >= excerpts.SKIP * excerpts.UNIT * wanted
            target = max(at, _WALK) if enough else at
            if enough and self._marks.length < target / _NEARLY:
                target = 1 << 62  # to the end, which makes the rate exact
            self._advance(target, forget=True)
            self._look.passed(started)
            over = self._marks.total is not None and at >= self._marks.total
            if enough or over or self._ended():
                break
            self._feed.drop(at)
        self._look.weigh(self._marks.rate, self._marks.last, self._marks.doubt)

    def _advance(self, target: int, *, forget: bool = False) -> None:
        """Pull text up to the target step by step, so that it is seen when stored bytes are read."""
        at = self._marks.last
        while at < target and self._marks.total is None and not (forget and self._ended()):
            at = min(at + NEAR, target)
            self._marks.total = self._feed.end_by(at)
            self._marks.add(at if self._marks.total is None else self._marks.total, self._feed.stored(at))
            if forget and self._marks.total is None:
                self._feed.drop(at)

    def _window(self, begin: int, started: float, far: int) -> int | None:
        """Take the documents from `begin` on as one excerpt; gives where it ends. None: a line has no end near."""
        end, ends = self._feed.end_by(begin + excerpts.UNIT), True
        if end is None and self._separator is not None:
            end = self._end(begin, self._separator, far)
        if end is None:
            if self._lines:
                return None
            end, ends = begin + self._cut(self._feed.peek(begin, excerpts.UNIT)), False
        raw = self._feed.peek(begin, end - begin)
        chunk = Chunk(self._index, begin, end, len(raw), ends=ends, payload=raw)
        excerpt = self._look.take(self._reader, chunk, started)
        if not self._lines:
            excerpt.raw = raw
            if self._separator is None or not ends or (self._inside and self._separator not in raw):
                excerpt.records = 0
        return end

    def _end(self, begin: int, separator: bytes, far: int) -> int | None:
        """Where the document ends that the window's end falls into.

        To leave it out would leave out long documents more often than short ones: 4 % too many were counted.
        """
        limit = begin + excerpts.UNIT
        last = max(begin, last_separator(self._feed.peek, begin, limit, separator))
        width = limit - last + NEAR
        while True:
            window = self._feed.peek(last, width)
            if (found := window.find(separator)) >= 0:
                return last + found + len(separator)
            if len(window) < width:
                return last + len(window)
            if width >= far:
                return last if last > begin else None
            width *= 4

    def _begin(self, at: int) -> int | None:
        """The first place after `at` where a document begins, or a word where none does; None: no line begins near."""
        self._inside = False
        if at == 0:
            return 0
        width = NEAR
        while self._separator is not None:
            window = self._feed.peek(at, width)
            if (found := window.find(self._separator)) >= 0:
                return at + found + len(self._separator)
            if len(window) < width or width >= (FAR if self._missed < _PATIENCE else NEAR):
                self._missed += 1
                break
            width *= 4
        if self._lines:
            return None
        self._inside = True
        window = self._feed.peek(at, NEAR)
        found = min((i for i in (window.find(b"\n"), window.find(b" ")) if i >= 0), default=0)
        while found < min(len(window), 4) and window[found] & 0xC0 == 0x80:
            found += 1
        return at + found

    def _cut(self, window: bytes) -> int:
        """Where a window may end so that its tokens are those of the whole, or at least its characters."""
        cut = self._reading.cut
        place = cut(window, max(1, len(window) - 4096)) if cut else -1
        if 0 < place < len(window) - 4:
            return place
        space = window.rfind(b" ")
        return space if space > 0 else len(window) - cut_character(window)
