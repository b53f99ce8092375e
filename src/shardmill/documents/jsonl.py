"""JSON Lines: one object a line, of which one field is the text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import LEFT, TAKEN, JsonLines, json_lines
from shardmill.documents.chunks import (
    WHOLE,
    Chunk,
    Documents,
    Lease,
    Oversize,
    Position,
    Reject,
    Section,
    Work,
    excerpt,
)
from shardmill.documents.cutting import Search, Splitter
from shardmill.documents.reading import FormatReader, Memory
from shardmill.documents.records import Verdict, fields_hint, judge
from shardmill.errors import SourceError
from shardmill.storage import SMALL, Beginning, Feed, RandomAccess

_NO_LINES = "is this JSON Lines? Each document stands on a line of its own, as one JSON object"
_NUL = "the line begins with NUL bytes: the file has a hole, as a copy or download that broke off leaves it"
# About the most lines in a chunk. A bad line costs 5 µs with the interpreter's lock held, and a run that has too many
# of them stops only after whole chunks.
LINES = 1 << 16
# The end of a line for which there is no memory is looked for within so many bytes. Few machines have more memory.
LONGEST_LINE = 4 << 30
# The memory for a long line in times its size. While it is read: in blocks of a stream, and joined. Later: the line and
# its text; where Python parses it, the line twice, and as `str` the line, its text, and the text while it is encoded.
STREAM_COPIES, LINE_COPIES = 2, 5
_NEWLINE, _WHITE = b"\n", b" \t\r\n"


class JsonLinesReader(FormatReader):
    """Chunks of whole lines. Each line is judged on its own, whatever lines are around it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._path = tuple(self._field.split("."))

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if start.offset == section.begin == 0:
            head = feed.read(0, SMALL)
            self._refuse_one_value(head)
            self._look_for_field(head)
        lines, position = self._lines(feed), start.offset
        if not position and section.begin:
            position = lines.begin(section.begin)
        if section.end is not None:
            end = lines.begin(section.end)
            if position >= end:
                return
            assert isinstance(feed, RandomAccess)
            feed = Beginning(feed, end)
            lines = self._lines(feed)
        feed.drop(position)
        if position and feed.end_by(position) is not None:
            return
        while True:
            chunk = self._chunk(feed, lines, position, max(1, size))
            yield chunk
            position = chunk.end
            endless = isinstance(chunk.work, Oversize) and chunk.work.hint  # it ends the run
            if endless or feed.end_by(position) is not None:
                return

    def _lines(self, feed: Feed) -> Splitter:
        return Splitter(feed, _NEWLINE, self._text_start, LINES)

    def _chunk(self, feed: Feed, lines: Splitter, position: int, size: int) -> Chunk:
        """All lines that end within `size` bytes, or one line."""
        room, largest = lines.room(position, size), self._room.largest
        limit = max(position + room, self._text_start + 1)
        end = lines.end(position, limit)
        if end is None:
            stop = Search(feed.read, _NEWLINE, floor=position, most=largest).stop(position, limit)
            if stop is None or stop.offset - position > max(room, largest) + 1:
                return self._long_line(feed, position, size)
            end = stop.offset
        work = self._work(feed, position, end)
        feed.drop(end)
        # Many tiny documents take more than their text.
        return self._made(feed, position, end, Lease((end - position) * size // room), work)

    def _made(self, feed: Feed, position: int, end: int, lease: Lease, work: Work) -> Chunk:
        return Chunk(self._index, position, Position(end), lease, work, through=feed.stored(end))

    def _refuse_one_value(self, head: bytes) -> None:
        """Raise when the file is one JSON array, or has objects that go over several lines."""
        text = head[self._text_start :].strip()
        first, more, _ = text.partition(b"\n")
        if first[:1] == b"[" and not (more and judge(first, self._path).reason.startswith("not an object")):
            each = f".[] | {{{self._path[0]}: .}}" if text[1:].lstrip()[:1] == b'"' else ".[]"
            raise self._not_lines("the file is one JSON array, not JSON Lines", each)
        if first[:1] == b"{" and more and judge(first, self._path).reason.startswith("not valid JSON"):
            fields = _fields_over_lines(text)
            if fields is None:
                return
            arrays = [name for name, value in fields.items() if isinstance(value, list) and name != self._path[0]]
            each = f".{arrays[0]}[]" if len(arrays) == 1 and self._path[0] not in fields else "."
            raise self._not_lines("the file is one JSON value over many lines, not JSON Lines", each)

    def _not_lines(self, message: str, each: str) -> SourceError:
        name = self._source.name
        made = f"{name.removesuffix('.json')}.jsonl"
        hint = f"turn it into one object a line: `jq -c '{each}' {shlex.quote(name)} > {shlex.quote(made)}`"
        return SourceError(message, place=name, hint=hint)

    def _look_for_field(self, head: bytes) -> None:
        """Raise when none of the first records has the field: then it has another name."""
        lines = head[self._text_start :].split(b"\n")
        if len(head) == SMALL:
            lines.pop()
        seen: dict[str, None] = {}
        for line in lines:
            if not line.strip():
                continue
            verdict = judge(line, self._path)
            if verdict.fields is None:
                return
            seen.update(dict.fromkeys(verdict.fields))
        if seen:
            hint = fields_hint(list(seen), "fields")
            raise SourceError(f"no record has the field `{self._field}`", place=self._source.name, hint=hint)

    def _long_line(self, feed: Feed, position: int, size: int) -> Chunk:
        """A long line: the writer's thread reads it and encodes it in pieces, or the run ends."""
        searched, longest = self._room.largest, min(self._room.largest_row, LONGEST_LINE)
        begin = max(position, self._text_start)
        head = feed.read(begin, begin + SMALL)
        hole = not head.strip(b"\0")
        search, stop = Search(feed.read, _NEWLINE, floor=position), None
        with closing(Memory(self._room, self._source.name)) as memory:
            while stop is None and searched < longest and not hole:
                reach = min(2 * searched, longest)
                if not (feed.shared or memory.fits("a long line", STREAM_COPIES * reach)):
                    break
                stop = replace(search, most=reach).stop(position, position + searched)
                searched = reach
            if stop is not None and stop.offset - begin <= longest + 1:
                work = self._work(feed, position, stop.offset)
                feed.drop(stop.offset)
                length = stop.offset - position
                made = self._made(feed, position, stop.offset, Lease(length, LINE_COPIES * length), work)
                return made._replace(long=True)
        most = searched if hole else LONGEST_LINE
        stop = replace(search, most=most, forget=feed.drop).stop(position, position + searched)
        if stop is None:
            line = Oversize("line", most, _NUL if hole else _NO_LINES)
            return self._made(feed, position, position + size, Lease(size), line)
        end = stop.offset
        newline = feed.read(end - 1, end) == _NEWLINE
        feed.drop(end)
        return self._made(feed, position, end, Lease(size), Oversize("line", end - position - newline))

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.work, Oversize):
            return chunk.work.documents()
        first = max(chunk.start, self._text_start) - chunk.start
        raw = self._bytes(chunk, chunk.start)
        raw = raw[first:] if first else raw
        return self._documents(raw, json_lines(raw, self._path), first)

    def _documents(self, raw: bytes, lines: JsonLines, first: int) -> Documents:
        """The texts that the fast parser took, and Python's verdict on every line that it left.

        `first`: bytes of the chunk before `raw`.
        """
        rejects: list[Reject] = []
        rows: list[int] = []
        texts: list[bytes] = []
        left = np.flatnonzero(lines.verdicts == LEFT)
        starts, ends = lines.starts[left].tolist(), lines.starts[left + 1].tolist()
        for row, start, end in zip(left.tolist(), starts, ends, strict=True):
            line = raw[start:end].rstrip(_WHITE)
            stripped = line.lstrip(_WHITE)
            if not stripped:
                continue
            verdict = judge(stripped, self._path)
            if verdict.text is None:
                rejects.append(self._reject(row, first + start + len(line) - len(stripped), verdict, stripped))
            else:
                rows.append(row)
                texts.append(verdict.text.encode())
        data, offsets, taken = lines.text, lines.offsets, lines.verdicts == TAKEN
        if rows:
            data, offsets = _with(lines, rows, texts)
            taken[rows] = True
        if taken.all():
            return Documents(data, offsets, lines=len(taken), rejects=rejects)
        # All other rows are empty, so each remaining one ends where the next begins.
        records = np.flatnonzero(taken)
        return Documents(data, np.append(offsets[records], len(data)), records, lines=len(taken), rejects=rejects)

    def _reject(self, row: int, byte: int, verdict: Verdict, line: bytes) -> Reject:
        return Reject(row, byte, verdict.reason.replace("{field}", f"field `{self._field}`"), excerpt(line))


def _with(lines: JsonLines, rows: list[int], texts: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The text and offsets of the lines, with texts inserted for some rows that have none."""
    pieces: list[bytes | memoryview] = []
    view, done = lines.text.data, 0
    for at, text in zip(lines.offsets[rows].tolist(), texts, strict=True):
        pieces += [view[done:at], text]
        done = at
    pieces.append(view[done:])
    sizes = np.diff(lines.offsets)
    sizes[rows] = [len(text) for text in texts]
    return np.frombuffer(b"".join(pieces), np.uint8), np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _fields_over_lines(text: bytes) -> dict[str, Any] | None:
    """The fields of the object that a text begins with, if it goes over several lines; its beginning may be all."""
    try:
        value, end = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        # It may be longer than what was read: then a line that ends inside of it shows that it goes on.
        goes_on = len(text) > SMALL // 2 and text.partition(b"\n")[0].rstrip()[-1:] in (b"{", b"[", b",")
        return {} if goes_on else None
    return value if isinstance(value, dict) and "\n" in text[:end].decode("utf-8", "replace") else None
