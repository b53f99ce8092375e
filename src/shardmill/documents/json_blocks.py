"""JSON Lines without the compiled core: pyarrow's parser, for blocks on which it agrees with Python's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from shardmill.byte_search import occurrences
from shardmill.core import LEFT, TAKEN, JsonLines
from shardmill.documents.arrow_columns import layout, valid_rows
from shardmill.storage import is_valid

_LARGEST = 1 << 30  # bytes that pyarrow parses at once
_CR, _OPEN, _CLOSE = b"\r{}"


def json_lines(raw: bytes, path: Sequence[str]) -> JsonLines:
    """The field at the path of each line, as `core.json_lines` returns it; if in doubt, all lines are LEFT."""
    starts = np.append(np.zeros(1, np.int64), occurrences(np.frombuffer(raw, np.uint8), b"\n") + 1)
    if starts[-1] < len(raw):
        starts = np.append(starts, len(raw))
    verdicts = np.full(len(starts) - 1, LEFT, np.uint8)
    column = _parsed(raw, path) if _is_plain(raw, starts) else None
    if column is None or len(column) != len(verdicts):
        return JsonLines(np.empty(0, np.uint8), np.zeros_like(starts), verdicts, starts)
    verdicts[valid_rows(column)] = TAKEN
    return JsonLines(*layout(column), verdicts, starts)


def _is_plain(raw: bytes, starts: NDArray[np.int64]) -> bool:
    """Whether every line holds an object, and nothing on which pyarrow's parser and Python's may differ.

    pyarrow's takes a NUL for the end of its input, accepts some invalid UTF-8, and knows three numbers that Python does
    not: Inf, -Inf and -NaN. Inside of a text these do no harm, but to know that one would have to parse.
    """
    if not 0 < len(raw) < _LARGEST or b"\0" in raw or not is_valid(raw):
        return False
    data, ends = np.frombuffer(raw, np.uint8), starts[1:] - 1
    ends[-1] += not raw.endswith(b"\n")
    if (data[starts[:-1]] != _OPEN).any():
        return False
    last = data[ends - 1]
    if (np.where(last == _CR, data[ends - 2], last) != _CLOSE).any():
        return False
    for number in (b"Inf", b"-NaN"):
        # A number is followed by one of these; Inf in a text mostly by a letter, as in "Information".
        following = data[occurrences(data[:-1], number) + len(number)]
        if np.isin(following, np.frombuffer(b" \t\r,]}", np.uint8)).any():
            return False
    return True


def _parsed(raw: bytes, path: Sequence[str]) -> pa.Array | None:
    """The field of all objects; None where pyarrow cannot parse one of them."""
    kind: pa.DataType = pa.large_string()
    for step in reversed(path[1:]):
        kind = pa.struct([(step, kind)])
    try:
        table = pj.read_json(
            pa.BufferReader(raw),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(raw) + 16),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(path[0], kind)]), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        # Raised for all text that it cannot parse; any other error is no verdict on a line.
        return None
    array = table.combine_chunks().to_batches()[0].column(0)
    for step in path[1:]:
        array = pc.struct_field(array, [step])
    return array
