"""JSON Lines: one object a line, of which one field is the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from shardmill.documents.chunks import Chunk, Documents, Position, Reject
from shardmill.documents.columns import excerpt, layout
from shardmill.documents.cutting import last_separator, next_stop, thinned
from shardmill.documents.lines import Lines, find_lines
from shardmill.documents.oversize import Oversize
from shardmill.documents.reading import Reading
from shardmill.documents.records import NESTED, Verdict, judge
from shardmill.errors import BudgetError, SourceError
from shardmill.storage.feeds import Feed, read_range
from shardmill.storage.source import Source
from shardmill.storage.unicode import BOM, is_valid

# Below these a block is judged line by line: a call of pyarrow costs 0.1 ms, and ten times that on a busy machine.
FEW = 16
LITTLE = 1 << 14
HEAD = 1 << 16
# Bytes of a line up to which its end is looked for, to say how much memory it needs. Few machines have room for more.
LONGEST = 4 << 30
_NO_LINES = "is this JSON Lines? Each document stands on a line of its own, as one JSON object"
_NUL = "the line begins with NUL bytes: the file has a hole, as a copy or download that broke off leaves it"


class JsonLinesReader:
    """Each line is judged on its own: what stands beside it never matters."""

    unit = "line"

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        self._index = index
        self._source = source
        self._reading = reading
        self._field = reading.text_field
        self._path = tuple(reading.text_field.split("."))
        self._text_start = len(BOM) if head.startswith(BOM) else 0
        self._parse: pj.ParseOptions | None = None

    def chunks(self, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        position = start.offset
        if position == 0:
            head = feed.peek(0, HEAD)
            self._refuse_array(head)
            self._look_for_field(head)
        feed.drop(position)
        if position and feed.end_by(position) is not None:
            return
        while True:
            size = max(1, size)
            room = thinned(feed.peek, position, size, b"\n")
            chunk = self._chunk(feed, position, room)
            if room < size:  # many tiny lines weigh more than their text
                chunk = chunk._replace(cost=chunk.cost * size // room)
            yield chunk
            endless = isinstance(chunk.payload, Oversize) and chunk.payload.hint  # it ends the run
            if endless or feed.end_by(chunk.end) is not None:
                return
            position = chunk.end

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
        if len(head) == HEAD:
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
            hole = not feed.peek(position, HEAD).strip(b"\0")
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
        try:
            lines = find_lines(raw)
            found = _Found(lines, self._field)
            self._judge_all(raw, lines, found)
            return found.documents()
        except MemoryError as error:
            # No reject: another machine would have had room for the line.
            raise BudgetError(
                "the system has no memory left to read lines of JSON",
                place=f"{self._source.name}, bytes {chunk.start:,} to {chunk.end:,}",
                hint="end other programs, or lift the limit that binds this one",
            ) from error

    def _judge_all(self, raw: bytes, lines: Lines, found: _Found) -> None:
        """Runs of lines that look like objects go to the fast parser, the rest is judged one by one."""
        plain = lines.plain
        # The fast parser takes a NUL for the end of its input, and lets some invalid UTF-8 pass.
        if not is_valid(raw) or b"\0" in raw:
            for i in np.flatnonzero(plain):
                line = raw[lines.starts[i] : lines.ends[i]]
                plain[i] = is_valid(line) and b"\0" not in line
        borders = np.flatnonzero(np.diff(plain.astype(np.int8))) + 1
        for a, b in zip([0, *borders], [*borders, len(plain)], strict=True):
            if a < b and plain[a]:
                self._block(raw, lines, int(a), int(b), found)
            else:
                self._one_by_one(raw, lines, int(a), int(b), found)

    def _block(self, raw: bytes, lines: Lines, first: int, last: int, found: _Found) -> None:
        """Lines that look like objects, parsed at once; where that fails, by halves."""
        waiting = [(first, last)]
        while waiting:
            a, b = waiting.pop()
            if a >= b:
                continue
            start, end = int(lines.starts[a]), int(lines.ends[b - 1])
            column = self._fast(raw, start, end, b - a) if end - start >= LITTLE else None
            if column is not None:
                found.add(column, a, b)
                for i in found.nulls(column, a):
                    found.reject(i, raw, self._judge(raw[lines.starts[i] : lines.ends[i]]))
            elif b - a <= FEW or end - start < LITTLE:
                self._one_by_one(raw, lines, a, b, found)
            else:
                half = (a + b) // 2
                waiting += [(half, b), (a, half)]

    def _fast(self, raw: bytes, start: int, end: int, count: int) -> pa.Array | None:
        view = pa.py_buffer(raw).slice(start, end - start)
        if len(view) > 1 << 30:
            return None
        if self._parse is None:
            self._parse = _parse_options(self._path)
        options = pj.ReadOptions(use_threads=False, block_size=len(view) + 16)
        try:
            table = pj.read_json(pa.BufferReader(view), read_options=options, parse_options=self._parse)
        except pa.ArrowInvalid:
            # What it says of all text that it cannot parse; any other error is no verdict on a line.
            return None
        if table.num_rows != count:
            return None
        batches = table.combine_chunks().to_batches()
        array = batches[0].column(0)
        for step in self._path[1:]:
            array = pc.struct_field(array, [step])
        return array

    def _one_by_one(self, raw: bytes, lines: Lines, first: int, last: int, found: _Found) -> None:
        texts: list[str] = []
        rows: list[int] = []
        for i in range(first, last):
            verdict = self._judge(raw[lines.starts[i] : lines.ends[i]])
            if verdict.text is None:
                found.reject(i, raw, verdict)
            else:
                texts.append(verdict.text)
                rows.append(i)
        if rows:
            found.add(pa.array(texts, pa.large_string()), rows[0], rows[-1] + 1, np.array(rows))

    def _judge(self, line: bytes) -> Verdict:
        """The standard library's verdict, except where its recursion ends: pyarrow's parser has no such limit."""
        verdict = judge(line, self._path)
        if verdict.reason != NESTED or line[:1] + line[-1:] != b"{}" or b"\0" in line:
            return verdict
        column = self._fast(line, 0, len(line), 1)
        if column is None:
            return verdict
        text = column[0].as_py()
        return Verdict(reason="{field} is missing or null") if text is None else Verdict(text=text)

    def place(self, record: int, byte: int) -> str:
        return f"line {record + 1:,}"


def _parse_options(path: tuple[str, ...]) -> pj.ParseOptions:
    kind: pa.DataType = pa.string()
    for step in reversed(path[1:]):
        kind = pa.struct([(step, kind)])
    return pj.ParseOptions(explicit_schema=pa.schema([(path[0], kind)]), unexpected_field_behavior="ignore")


class _Found:
    """What was found so far in a chunk, in the order of its lines."""

    def __init__(self, lines: Lines, field: str) -> None:
        self._lines = lines
        self._field = field
        self._columns: list[pa.Array] = []
        self._rows: list[NDArray[np.int64]] = []
        self._rejects: list[Reject] = []

    def nulls(self, column: pa.Array, first: int) -> list[int]:
        if not column.null_count:
            return []
        return [first + int(i) for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))]

    def add(self, column: pa.Array, first: int, last: int, rows: NDArray[np.int64] | None = None) -> None:
        numbers = np.arange(first, last) if rows is None else rows
        if column.null_count:
            numbers = numbers[column.is_valid().to_numpy(zero_copy_only=False)]
            column = column.drop_null()
        self._columns.append(column)
        self._rows.append(numbers)

    def reject(self, i: int, raw: bytes, verdict: Verdict) -> None:
        start = int(self._lines.starts[i])
        line = raw[start : min(start + 320, int(self._lines.ends[i]))]
        reason = verdict.reason.replace("{field}", f"field `{self._field}`")
        self._rejects.append(Reject(int(self._lines.numbers[i]), start, reason, excerpt(line)))

    def documents(self) -> Documents:
        count = self._lines.total
        if not self._columns:
            none = np.empty(0, np.int64)
            return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64), none, lines=count, rejects=self._rejects)
        if len(self._columns) == 1:
            column = self._columns[0]
        else:
            column = pa.concat_arrays([part.cast(pa.large_string()) for part in self._columns])
        data, offsets = layout(column)
        records = self._lines.numbers[np.concatenate(self._rows)]
        whole = len(records) == count
        return Documents(data, offsets, None if whole else records, lines=count, rejects=self._rejects)
