"""JSON Lines: one object a line, of which one field is the text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import LEFT, TAKEN, JsonLines, json_lines
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Oversize, Position, Reject, Section, excerpt
from shardmill.documents.cutting import Stop
from shardmill.documents.long_lines import LINE_WINDOW, LONGEST_LINE, ShortLine, Stretch, stretch_pieces
from shardmill.documents.reading import Memory, Reading
from shardmill.documents.records import Verdict, fields_hint, judge
from shardmill.documents.text import TextReader
from shardmill.errors import SourceError
from shardmill.storage import SMALL, Feed, Source, read_range

_NO_LINES = "is this JSON Lines? Each document stands on a line of its own, as one JSON object"
_NUL = "the line begins with NUL bytes: the file has a hole, as a copy or download that broke off leaves it"
# About the most lines in a chunk. A bad line costs 5 µs with the interpreter's lock held, and a run that has too many
# of them stops only after whole chunks.
LINES = 1 << 16
_WHITE = b" \t\r\n"


class JsonLinesReader(TextReader):
    """Text that is cut at line ends. Each line is judged on its own, whatever lines are around it."""

    most_rows = LINES

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        lines = replace(reading, separator=b"\n", cut=None, spans=False, tail=None)
        super().__init__(index, source, lines, reopen, head)
        # A line that is encoded in pieces is read twice.
        self._any_size = reading.largest_row > 0 and source.size is not None
        self._path = tuple(self._field.split("."))

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if start.offset == section.begin == 0:
            head = feed.read(0, SMALL)
            self._refuse_one_value(head)
            self._look_for_field(head)
        for chunk in super().chunks(feed, start, size, section):
            yield chunk
            if isinstance(chunk.payload, Oversize) and chunk.payload.hint:  # it ends the run
                return

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

    def _stop(self, feed: Feed, position: int, size: int, inside: bool) -> Stop | None:
        stop = super()._stop(feed, position, size, inside)
        return stop if stop is None or stop.offset - position <= max(size, self._reading.largest) + 1 else None

    def _giant(self, feed: Feed, position: int, inside: bool, size: int) -> Chunk:
        """A line that is too large for the memory: judged and read in pieces, or the run ends."""
        begin = max(position, self._text_start)
        head = feed.read(begin, begin + SMALL)
        hole, blank = not head.strip(b"\0"), len(head) - len(head.lstrip(_WHITE))
        line = ShortLine(begin + blank)
        judged = None if hole or blank == len(head) or not self._any_size else self._judge(line, feed, position)
        at, most = max(position + size, line.at), self._reading.largest if hole else LONGEST_LINE
        stop = self._next(feed.read, start=position, at=at, floor=position, forget=feed.drop, most=most)
        if stop is None:
            end = position + size
            payload: Any = Oversize("line", most, _NUL if hole else _NO_LINES)
        else:
            end = stop.offset
            payload = (
                judged if judged is not None else Oversize("line", end - position - (feed.read(end - 1, end) == b"\n"))
            )
            feed.drop(end)
        long = isinstance(payload, list)
        cost = sum(part.end - part.begin for part in payload if isinstance(part, Stretch)) if long else size
        return Chunk(self._index, position, end, cost, long=long, through=feed.stored(end), payload=payload)

    def _judge(self, line: ShortLine, feed: Feed, position: int) -> list[str | Stretch] | Documents | None:
        """The parts of the text of a long line, or what else the line gives; None: it cannot be made short enough."""
        head, byte = feed.read(line.at, line.at + SMALL), line.at - position
        with closing(Memory(self._reading, self._source.name)) as memory:
            most = max(4 * LINE_WINDOW, self._reading.largest // 16)  # so that there is always memory to judge it
            if not line.read(feed, most, partial(memory.need, "a long line")):
                return None
            verdict = line.judge(self._path)
            parts = [] if verdict.text is None else line.texts(self._path)
        if any(isinstance(part, Stretch) for part in parts):
            return parts
        if verdict.text is None:
            return Documents(
                np.empty(0, np.uint8), np.zeros(1, np.int64), lines=1, rejects=[self._reject(0, byte, verdict, head)]
            )
        text = np.frombuffer(verdict.text.encode(), np.uint8)
        return Documents(text, np.array([0, len(text)], np.int64), lines=1)

    def read(self, chunk: Chunk) -> Documents:
        if isinstance(chunk.payload, Documents):
            return chunk.payload
        if isinstance(chunk.payload, Oversize):
            return chunk.payload.documents()
        raw = read_range(self._source, chunk.start, chunk.end) if chunk.payload is None else chunk.payload
        if chunk.start == 0 and self._text_start:
            # In place of the byte order mark: spaces keep every offset, and mean nothing before a record.
            raw = b" " * self._text_start + raw[self._text_start :]
        return self._documents(raw, json_lines(raw, self._path))

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        with closing(self._reopen()) as feed:
            for part in chunk.payload:
                yield from [part.encode()] if isinstance(part, str) else stretch_pieces(feed, part, self._source.name)
        return 0

    def _documents(self, raw: bytes, lines: JsonLines) -> Documents:
        """The texts that the fast parser took, and Python's verdict on every line that it left."""
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
                rejects.append(self._reject(row, start + len(line) - len(stripped), verdict, stripped))
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
