"""Excerpts of CSV: windows that begin and end where rows do, wherever one looks.

Whether a line break ends a row depends on all quotes before it. Entered in the middle there are two possibilities: the
place is inside quotes, or it is not. The rows that the wrong one gives do not parse.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Position
from shardmill.inspection import excerpts
from shardmill.inspection.text_windows import FAR, NEAR, TextVisit
from shardmill.storage.unicode import BOM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Reading
    from shardmill.documents.formats import FormatReader
    from shardmill.inspection.excerpts import Excerpt, Look
    from shardmill.storage import Source
    from shardmill.storage.feeds import Feed
    from shardmill.storage.opening import Opened

_TRIED = 24  # rows that are parsed to tell the two apart
_CLEARLY = 0.3  # more of the rows have to parse
_QUOTE, _NEWLINE = 34, 10


class CsvVisit(TextVisit):
    """One source, looked into once. `read_with` makes a reader of these bytes in place of the source's."""

    def __init__(
        self,
        index: int,
        source: Source,
        reading: Reading,
        read_with: Callable[[bytes], tuple[FormatReader, Feed]],
        opened: Opened,
        look: Look,
        ended: Callable[[], bool],
    ) -> None:
        self._read_with = read_with
        self._delimiter = "\t" if opened.format == "tsv" else ","
        ends = _row_ends(opened.head, inside=False)
        self._header = opened.head[: int(ends[0]) + 1] if len(ends) else opened.head
        self._columns = len(self._parsed(self._header)[0])
        super().__init__(index, source, reading, read_with(b"")[0], opened, look, ended)

    def _begin(self, at: int) -> int | None:
        """The first place after `at` where a row begins; None: it cannot be told."""
        if at < len(self._header):
            return len(self._header)
        width = NEAR
        while width <= FAR:
            window = self._feed.peek(at, width)
            tried = [(self._fit(window, ends := _row_ends(window, inside)), ends) for inside in (False, True)]
            (fit, ends), (other, _) = sorted(tried, key=lambda one: -one[0])
            # Some rows of a file may be bad, but not as many as there are wherever quotes are taken for their opposite.
            if (fit == 1 > other) or fit > other + _CLEARLY:
                return at + int(ends[0]) + 1
            if len(window) < width:
                break
            width *= 4
        return None

    def _fit(self, window: bytes, ends: NDArray[np.int64]) -> float:
        """The share of the rows between these ends that are rows, each of them alone."""
        good = [
            self._is_row(window[start + 1 : end + 1])
            for start, end in zip(ends[:_TRIED].tolist(), ends[1 : _TRIED + 1].tolist(), strict=False)
        ]
        return sum(good) / len(good) if good else 0.0

    def _is_row(self, raw: bytes) -> bool:
        return [len(fields) for fields in self._parsed(raw) if fields] in ([self._columns], [])

    def _parsed(self, raw: bytes) -> list[list[str]]:
        """The rows; two empty ones, which no row is, where they cannot be told apart."""
        text = io.StringIO(_text(raw), newline="")
        try:
            return list(csv.reader(text, delimiter=self._delimiter, strict=True)) or [[]]
        except csv.Error:
            return [[""], [""]]

    def _window(self, begin: int, started: float, far: int) -> int | None:
        """Take the rows from `begin` on as one excerpt; gives where it ends. None: a row has no end near."""
        begin = max(begin, len(self._header))
        width = excerpts.UNIT
        end = self._feed.end_by(begin + width)
        while end is None:
            ends = _row_ends(self._feed.peek(begin, width), inside=False)
            # The row that the window's end falls into is taken: to leave it out would leave out long ones more often.
            ends = ends[ends >= excerpts.UNIT - 1]
            if len(ends):
                end = begin + int(ends[0]) + 1
            elif width >= far or (end := self._feed.end_by(begin + width)) is not None:
                break
            width = width + NEAR if width == excerpts.UNIT else width * 4
        if end is None or end <= begin:
            return end
        raw = self._feed.peek(begin, end - begin)
        reader, feed = self._read_with(self._header + raw)
        taken: list[tuple[Excerpt, int]] = []
        for chunk in reader.chunks(feed, Position(), len(raw)):
            taken.append((self._look.take(reader, chunk, started), chunk.cost + chunk.end - chunk.start))
            started = excerpts.clock()
        weight = sum(share for _, share in taken)
        for excerpt, share in taken:
            excerpt.span = round((end - begin) * share / weight)
        return end


class Held:
    """Some bytes, pulled as a source is."""

    def __init__(self, raw: bytes) -> None:
        self._raw = io.BytesIO(raw)

    def read(self, n: int) -> bytes:
        return self._raw.read(n)

    def stored(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        self._raw.close()


def _row_ends(window: bytes, inside: bool) -> NDArray[np.int64]:
    """Where rows end in a window that begins inside quotes, or not."""
    raw = np.frombuffer(window, np.uint8)
    breaks = np.flatnonzero(raw == _NEWLINE)
    before = np.searchsorted(np.flatnonzero(raw == _QUOTE), breaks)
    ends: NDArray[np.int64] = breaks[before % 2 == int(inside)]
    return ends


def _text(raw: bytes) -> str:
    return raw.removeprefix(BOM).decode("utf-8", "replace")
