"""JSON Lines without the compiled core: pyarrow's parser, for the lines on which it agrees with Python's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from shardmill.byte_search import occurrences, places
from shardmill.core import LEFT, TAKEN, JsonLines
from shardmill.documents.arrow_columns import layout, valid_rows
from shardmill.storage import is_valid

# Fewer lines or bytes are left to Python: a call of pyarrow costs 0.1 ms, and ten times that on a busy machine.
FEW = 16
LITTLE = 1 << 14

_NEWLINE, _CR, _OPEN, _CLOSE = b"\n\r{}"


def json_lines(raw: bytes, path: Sequence[str]) -> JsonLines:
    """The field at the path of each line that pyarrow can read, as `core.json_lines` returns it."""
    data = np.frombuffer(raw, np.uint8)
    ends = places(data == _NEWLINE)
    if raw[-1:] not in (b"\n", b""):
        ends = np.append(ends, len(raw))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1, np.array([len(raw)], np.int64)])[: len(ends) + 1]
    plain = _plain(raw, data, starts, ends)
    verdicts = np.full(len(ends), LEFT, np.uint8)
    sizes = np.zeros(len(ends), np.int64)
    texts = [np.empty(0, np.uint8)]
    rows = np.flatnonzero(plain)
    if len(rows) < len(plain):
        runs = np.flatnonzero(np.diff(plain, prepend=False, append=False))
        view = memoryview(raw)
        raw = b"".join(view[a:b] for a, b in starts[runs].reshape(-1, 2).tolist())
    borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(starts)[rows])])
    waiting = [(0, len(rows))]
    while waiting:
        a, b = waiting.pop()
        start, end = int(borders[a]), int(borders[b])
        if a == b or end - start < LITTLE:
            continue
        column = _parse(pa.py_buffer(raw).slice(start, end - start), path, b - a)
        if column is None:
            if b - a > FEW:
                half = (a + b) // 2
                waiting += [(half, b), (a, half)]
            continue
        mine = rows[a:b]
        if column.null_count:
            mine, column = mine[valid_rows(column)], column.drop_null()
        text, offsets = layout(column)
        texts.append(text)
        verdicts[mine], sizes[mine] = TAKEN, np.diff(offsets)
    text = texts[1] if len(texts) == 2 else np.concatenate(texts)
    return JsonLines(text, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), verdicts, starts)


def _plain(
    raw: bytes, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which lines pyarrow's parser may be given: those that hold an object each, and on which it agrees with Python.

    It takes a NUL for the end of its input, accepts some invalid UTF-8, and knows three numbers that Python does not:
    Inf, -Inf and -NaN. Inside of a text these do no harm, but to know that one would have to parse.
    """
    last = data[ends - 1]
    plain: NDArray[np.bool_] = (data[starts[:-1]] == _OPEN) & (
        np.where(last == _CR, data[np.maximum(ends - 2, 0)], last) == _CLOSE
    )
    if not is_valid(raw) or b"\0" in raw:
        for i in np.flatnonzero(plain):
            line = raw[starts[i] : starts[i + 1]]
            plain[i] = is_valid(line) and b"\0" not in line
    for number in (b"Inf", b"-NaN"):
        at = occurrences(data[:-1], number)
        # A number is followed by one of these; Inf in a text mostly by a letter, as in "Information".
        at = at[np.isin(data[at + len(number)], np.frombuffer(b" \t\r,]}", np.uint8))]
        plain[np.searchsorted(starts, at, side="right") - 1] = False
    return plain


def _parse(block: pa.Buffer, path: Sequence[str], count: int) -> pa.Array | None:
    """The field of so many lines that begin and end an object; None where pyarrow cannot parse one of them."""
    if len(block) > 1 << 30:
        return None
    kind: pa.DataType = pa.string()
    for step in reversed(path[1:]):
        kind = pa.struct([(step, kind)])
    schema = pa.schema([(path[0], kind)])
    try:
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 16),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        # Raised for all text that it cannot parse; any other error is no verdict on a line.
        return None
    if table.num_rows != count:
        return None
    array = table.combine_chunks().to_batches()[0].column(0)
    for step in path[1:]:
        array = pc.struct_field(array, [step])
    return array.cast(pa.large_string())
