"""A JSON line that is larger than the memory allows: judged and read in pieces.

Most of such a line is inside of strings. Python's parser checks them as they pass, and a stand-in takes the place of
what is plainly good. What remains is a short line, on which Python has the same verdict, only in another column.
"""

from __future__ import annotations

import codecs
import io
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

from shardmill.documents.records import Verdict, judge, text_in
from shardmill.errors import SourceError
from shardmill.storage import Feed

# Bytes that are read at once. A character of them takes up to four bytes of memory, several times.
LINE_WINDOW = 1 << 15
# The end of a line that is not valid, or for which there is no memory, is looked for within so many bytes. Few machines
# have more memory.
LONGEST_LINE = 4 << 30
# A stretch inside of a string that has fewer characters is kept.
LEAST = 1 << 12
# Bytes of memory for each character of a short line while it is judged: `{"":0},` takes 240. A stretch that was left
# out takes as much as so many characters. For a short line of the third number of bytes no memory is reserved.
JUDGING, LEFT_OUT, FREE = 40, 16, 1 << 22
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)
# In text that was UTF-8 there is no half of a surrogate pair, except for escapes.
_STAND_IN, _NUMBERED = ".", "\ud800{}\ud800"
_NUMBER = re.compile("\ud800([0-9]+)\ud800")


class Stretch(NamedTuple):
    """A part of the inside of a string: whole characters, escapes and surrogate pairs."""

    begin: int
    """Its first byte in the source."""
    end: int
    characters: int


class ShortLine:
    """A line of JSON without long stretches of its strings."""

    def __init__(self, begin: int) -> None:
        self.at = self._begin = begin
        """How far the line was read."""
        self.size = 0
        """Characters that remain of it, about."""
        self._not_utf8 = -1
        self._parts: list[str | Stretch] = []
        self._kept = io.StringIO()
        self._broken = False  # what was kept of this string, or of one before it, is not valid
        self._halved = False  # what was kept of this string has half of a surrogate pair

    def judge(self, path: tuple[str, ...]) -> Verdict:
        """Python's verdict on the whole line; of a good line the text is a short one."""
        if self._not_utf8 >= 0:
            return Verdict(reason=f"invalid UTF-8 (column {self._not_utf8 - self._begin + 1})")
        places, behind, short = [], [0], 0
        for part in self._parts:
            if isinstance(part, Stretch):
                places.append(short)
                behind.append(behind[-1] + part.characters - 1)
            short += len(part) if isinstance(part, str) else 1
        line = "".join(part if isinstance(part, str) else _STAND_IN for part in self._parts)
        return judge(line.encode(), path, lambda column: column + behind[bisect_left(places, column)])

    def texts(self, path: tuple[str, ...]) -> list[str | Stretch]:
        """The parts of the text of a good line."""
        numbered = (part if isinstance(part, str) else _NUMBERED.format(i) for i, part in enumerate(self._parts))
        found = _NUMBER.split(text_in("".join(numbered), path))
        return [self._parts[int(part)] if i % 2 else part for i, part in enumerate(found) if part]

    def read(self, feed: Feed, most: int, need: Callable[[int], None]) -> bool:
        """Read the line up to its end, or until its verdict is known; False: there is none.

        That is so if more than `most` characters remain, or if a line that is not valid has no end.

        `need` is called with the bytes of memory that it will take to judge what remains.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        text, inside, last = "", False, False
        while not last:
            block = feed.read(self.at, self.at + LINE_WINDOW)
            end = block.find(b"\n")
            last = end >= 0 or len(block) < LINE_WINDOW
            block = block[:end] if end >= 0 else block
            waiting = len(decoder.getstate()[0])
            try:
                text += decoder.decode(block, last)
            except UnicodeDecodeError as error:
                self._not_utf8 = self.at - waiting + error.start
                return True
            self.at += len(block)
            feed.drop(self.at)
            waiting = len(decoder.getstate()[0])
            done, inside = self._shorten(text, self.at - waiting, inside, last)
            text = text[done:]
            self._keep()
            if self.size > most or (self._broken and self.at - self._begin > LONGEST_LINE):
                return False
            memory = JUDGING * self.size
            need(1 << memory.bit_length() if memory > FREE else 0)
        return True

    def _shorten(self, text: str, end: int, inside: bool, last: bool) -> tuple[int, bool]:
        """Take over a text that ends before byte `end`; returns how much of it, and whether that ends in a string."""
        at, padded = 0, _padded(text, last)
        while at < len(text):
            if not inside:
                quote = text.find('"', at) + 1
                self._kept.write(text[at : quote or len(text)])
                at, inside, self._halved = quote or len(text), quote > 0, False
                continue
            begin, good = at, True
            if not self._broken:
                try:
                    at, inside, halved = _checked(padded, at, last)
                    good, self._halved = not halved or self._halved, halved or self._halved
                except ValueError:  # also after a backslash outside of strings
                    self._broken, good = True, False
            if self._broken:
                at, inside = _passed(text, begin, last)
            stretch = text[begin : at if inside else at - 1]
            if good and len(stretch) >= LEAST:
                self._leave_out(end - len(text[begin:].encode()), stretch)
            else:
                self._kept.write(stretch)
            if inside:
                break
            self._kept.write('"')
        return at, inside

    def _leave_out(self, begin: int, text: str) -> None:
        self._keep()
        end, before = begin + len(text.encode()), self._parts[-1]
        if isinstance(before, Stretch) and before.end == begin:
            self._parts[-1] = Stretch(before.begin, end, before.characters + len(text))
        else:
            self._parts.append(Stretch(begin, end, len(text)))
            self.size += LEFT_OUT

    def _keep(self) -> None:
        if kept := self._kept.getvalue():
            self._parts.append(kept)
            self.size += len(kept)
            self._kept = io.StringIO()


def stretch_pieces(feed: Feed, stretch: Stretch, name: str) -> Iterator[bytes]:
    """The text that a stretch stands for, in pieces of whole characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    at, text = stretch.begin, ""
    feed.drop(at)
    while at < stretch.end:
        block = feed.read(at, at + min(LINE_WINDOW, stretch.end - at))
        if not block:
            raise SourceError("the source is shorter than it was", place=name)
        at += len(block)
        feed.drop(at)
        text += decoder.decode(block)
        padded = _padded(text, at >= stretch.end)
        value, _ = scanstring(padded, 0)
        done = len(padded) - 1
        if at < stretch.end and _ends_in_half(value):
            value, done = value[:-1], done - 6
        text = text[done:]
        yield value.encode()


def _padded(text: str, last: bool) -> str:
    """The text with a quote after it; an escape that may not be complete is left out, unless it is the last text."""
    end = len(text)
    slash = -1 if last else text.rfind("\\", max(0, end - 5))
    if slash >= 0 and (slash + 1 - len(text[: slash + 1].rstrip("\\"))) % 2:
        end = slash
    return text[:end] + '"'


def _checked(padded: str, begin: int, last: bool) -> tuple[int, bool, bool]:
    """How far the inside of a string goes, whether it goes on after that, and whether half a surrogate pair is in it.

    ValueError if it is not valid.
    """
    value, end = scanstring(padded, begin)
    inside = end == len(padded)
    if inside:
        end -= 7 if not last and _ends_in_half(value) else 1
        value = value[:-1] if end < len(padded) - 1 else value
    try:
        value.encode()
    except UnicodeEncodeError:
        return end, inside, True
    return end, inside, False


def _ends_in_half(value: str) -> bool:
    """Whether the other half of a surrogate pair may follow."""
    return "\ud800" <= value[-1:] <= "\udbff"


def _passed(text: str, begin: int, last: bool) -> tuple[int, bool]:
    """The same for the string of a line that is not valid, of which only the end matters."""
    end = begin
    for found in _ESCAPE_OR_QUOTE.finditer(text, begin):
        end = found.end()
        if found[0] == '"':
            return end, False
    whole = last or not text.endswith("\\") or end == len(text)
    return len(text) if whole else len(text) - 1, True
