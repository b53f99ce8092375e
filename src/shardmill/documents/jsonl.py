"""JSON Lines: one object a line, of which one field is the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill import core
from shardmill.core import LEFT, TAKEN, JsonLines, json_lines
from shardmill.documents.chunks import WHOLE, Chunk, Documents, Oversize, Position, Reject, Section, excerpt
from shardmill.documents.cutting import last_separator, next_stop, thinned
from shardmill.documents.reading import FormatReader, Reading
from shardmill.documents.records import judge
from shardmill.errors import SourceError
from shardmill.storage import SMALL, Before, Feed, RandomAccess, Source, read_range

# Bytes of a line up to which its end is looked for, to say how much memory it needs. Few machines have room for more.
LONGEST = 4 << 30
_NO_LINES = "is this JSON Lines? Each document stands on a line of its own, as one JSON object"
_NUL = "the line begins with NUL bytes: the file has a hole, as a copy or download that broke off leaves it"
# About so many lines in a chunk at the most. A bad line costs 5 µs with the interpreter's lock held, and a run that has
# too many of them stops only after whole chunks.
LINES = 1 << 16
_WHITE = b" \t\r\n"


class JsonLinesReader(FormatReader):
    """Each line is judged on its own: what stands beside it never matters."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading, reopen, head)
        self._path = tuple(self._field.split("."))

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        position = start.offset or self._enter(feed, section.begin)
        if section.end is not None:
            if position >= section.end:
                return
            feed = Before(feed, self._enter(feed, section.end))
        if position == 0:
            head = feed.peek(0, SMALL)
            self._refuse_array(head)
            self._look_for_field(head)
        feed.drop(position)
        if position and feed.end_by(position) is not None:
            return
        while True:
            size = max(1, size)
            room = thinned(feed.peek, position, size, b"\n", LINES)
            chunk = self._chunk(feed, position, room)
            if room < size:  # many tiny lines weigh more than their text
                chunk = chunk._replace(cost=chunk.cost * size // room)
            yield chunk
            endless = isinstance(chunk.payload, Oversize) and chunk.payload.hint  # it ends the run
            if endless or feed.end_by(chunk.end) is not None:
                return
            position = chunk.end

    def _enter(self, feed: Feed, byte: int) -> int:
        """Where the first line begins that begins at or after a byte."""
        if byte == 0:
            return 0
        assert isinstance(feed, RandomAccess)
        stop = next_stop(feed.look, start=byte - 1, at=byte - 1, floor=byte - 1, separator=b"\n", cut=None)
        assert stop is not None
        return stop.offset

    def _refuse_array(self, head: bytes) -> None:
        """Raise when the file is one JSON array."""
        text = head[self._text_start :].strip()
        first, more, _ = text.partition(b"\n")
        if first[:1] == b"[" and not (more and judge(first, self._path).reason.startswith("not an object")):
            raise SourceError(
                "the file is one JSON array, not JSON Lines",
                place=self._source.name,
                hint="turn it into one object a line: `jq -c '.[]' file.json > file.jsonl`",
            )

    def _look_for_field(self, head: bytes) -> None:
        """Raise when every record at the beginning lacks the field: then it has another name."""
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
            fields = ", ".join(f"`{name}`" for name in list(seen)[:20])
            raise SourceError(
                f"no record has the field `{self._field}`",
                place=self._source.name,
                hint=f"the fields are {fields}: choose with `--text-field`",
            )

    def _chunk(self, feed: Feed, position: int, size: int) -> Chunk:
        limit = position + size
        end = feed.end_by(limit)
        if end is None and (found := last_separator(feed.peek, position, limit, b"\n")) >= 0:
            end = found
        if end is None:
            most = self._reading.largest
            stop = next_stop(feed.peek, start=position, at=limit, floor=position, separator=b"\n", cut=None, most=most)
            end = stop.offset if stop is not None and stop.offset - position <= most + 1 else None
        payload: Any = None
        cost = size
        if end is None:
            hole = not feed.peek(position, SMALL).strip(b"\0")
            stop = next_stop(
                feed.peek, start=position, at=limit, floor=position, separator=b"\n", cut=None, forget=feed.drop,
                most=most if hole else LONGEST,
            )  # fmt: skip
            if stop is None:
                end = limit
                payload = Oversize("line", most if hole else LONGEST, _NUL if hole else _NO_LINES)
            else:
                end = stop.offset
                length = end - position - (feed.peek(end - 1, 1) == b"\n")
                feed.drop(end)
                payload = Oversize("line", length)
        else:
            payload = feed.take(position, end)
            cost = end - position
        return Chunk(self._index, position, end, cost, through=feed.stored(end), payload=payload)

    def read(self, chunk: Chunk) -> Documents:
        raw = chunk.payload
        if isinstance(raw, Oversize):
            return raw.documents(record=0, lines=1)
        if raw is None:
            raw = read_range(self._source, chunk.start, chunk.end)
        if chunk.start == 0 and self._text_start:
            # Spaces keep every offset, and stand before a record without meaning.
            raw = b" " * self._text_start + raw[self._text_start :]
        return self._documents(raw, _parse(raw, self._path))

    def _documents(self, raw: bytes, lines: JsonLines) -> Documents:
        """What was taken, and Python's verdict on every line that was left."""
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
                reason = verdict.reason.replace("{field}", f"field `{self._field}`")
                rejects.append(Reject(row, start + len(line) - len(stripped), reason, excerpt(stripped)))
            else:
                rows.append(row)
                texts.append(verdict.text.encode())
        data, offsets, taken = lines.text, lines.offsets, lines.verdicts == TAKEN
        if rows:
            data, offsets = _with(lines, rows, texts)
            taken[rows] = True
        if taken.all():
            return Documents(data, offsets, lines=len(taken), rejects=rejects)
        # The other rows are empty, so that each of those that are left ends where the next begins.
        records = np.flatnonzero(taken)
        return Documents(data, np.append(offsets[records], len(data)), records, lines=len(taken), rejects=rejects)


def _with(lines: JsonLines, rows: list[int], texts: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The text and offsets of the lines with other texts put into some rows, which have none."""
    pieces: list[bytes | memoryview] = []
    view, done = lines.text.data, 0
    for at, text in zip(lines.offsets[rows].tolist(), texts, strict=True):
        pieces += [view[done:at], text]
        done = at
    pieces.append(view[done:])
    sizes = np.diff(lines.offsets)
    sizes[rows] = [len(text) for text in texts]
    return np.frombuffer(b"".join(pieces), np.uint8), np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _parse(raw: bytes, path: tuple[str, ...]) -> JsonLines:
    if core.available():
        return json_lines(raw, path)
    from shardmill.documents import json_blocks  # with pyarrow, a tenth of a second that the core does without

    return json_blocks.json_lines(raw, path)
