"""Spans of a text without a separator, and its tail: the same for every chunk size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shardmill.documents import SPAN, FreeRoom, Position, Reading, SourceReader
from shardmill.errors import UsageError
from shardmill.sources import find_sources
from tests.documents.twin import COMPRESSIONS, cut, read_path, span_starts


def _prose(size: int) -> bytes:
    words = [b"alpha", b"beta", "gämma".encode(), b"x" * 300, "日本語".encode(), b"\xff\xfe", b"delta\n", b"e"]
    made, state = [], 1
    total = 0
    while total < size:
        state = (state * 48271) % 2147483647
        made.append(words[state % len(words)])
        total += len(made[-1]) + 1
    return b" ".join(made)


@pytest.mark.parametrize("kind", ["prose", "mark", "stretch", "exact"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_spans_are_the_same_for_every_chunk_size(tmp_path: Path, kind: str, ending: str) -> None:
    data = _prose(5 * SPAN + 777)
    if kind == "mark":
        data = b"\xef\xbb\xbf" + data
    if kind == "stretch":
        data = data[: SPAN - 30] + b"y" * (2 * SPAN + 20) + b" z z z " + data[: 2 * SPAN] + b"w" * 70000
    if kind == "exact":
        data = data[: 2 * SPAN]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](data))
    starts = _sound_span_starts(data)
    wanted = [
        data[a:b].decode("utf-8", "replace").encode() for a, b in zip(starts, [*starts[1:], len(data)], strict=True)
    ]
    if kind == "mark":
        wanted[0] = wanted[0].removeprefix(b"\xef\xbb\xbf")
    for size in (1, 1000, SPAN, SPAN + 1, 3 * SPAN, 1 << 22):
        got = read_path(path, size, Reading(cut=cut, only_source=True, spans=True))
        assert got.rows == wanted, size
        assert got.documents == [b"".join(wanted)]


def _sound_span_starts(data: bytes) -> list[int]:
    """As the twin has it, and not beside an invalid byte."""
    starts = {0}
    for multiple in range(SPAN, len(data), SPAN):
        place = cut(data, multiple)
        while place > 0 and any(bad in data[place - 8 : place] for bad in (b"\xff", b"\xfe")):
            place = cut(data, place + 1)
        if place > 0:
            starts.add(place)
    return sorted(starts)


def test_spans_of_valid_text_begin_where_the_twin_says(tmp_path: Path) -> None:
    data = _prose(4 * SPAN).replace(b"\xff\xfe", b"ok")
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    starts = span_starts(data)
    got = read_path(path, 100_000, Reading(cut=cut, only_source=True, spans=True))
    assert [len(row) for row in got.rows] == [b - a for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]


@pytest.mark.parametrize("tail", [0.1, 0.5, 0.999, 1e-9])
@pytest.mark.parametrize("separator", [None, b"\n"])
def test_rows_in_the_tail_are_flagged(tmp_path: Path, tail: float, separator: bytes | None) -> None:
    data = _prose(2 * SPAN).replace(b"\xff\xfe", b"ok")
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    border = math.ceil(len(data) * (1 - tail))
    for size in (100, 5000, 1 << 22):
        got = read_path(path, size, Reading(cut=cut, separator=separator, tail=tail))
        if separator is None:
            place = cut(data, border)
            place = len(data) if place < 0 else place
            flagged = sum(len(row) for row, flag in zip(_rows(path, size, tail), got.tail, strict=True) if flag)
            assert flagged == len(data) - place
        else:
            starts = [0]
            for document in got.documents[:-1]:
                starts.append(starts[-1] + len(document) + 1)
            assert got.document_tail == [start >= border for start in starts]


@pytest.mark.parametrize("tail", [0.1, 0.6])
def test_the_tail_begins_with_a_span_of_its_own(tmp_path: Path, tail: float) -> None:
    data = _prose(4 * SPAN).replace(b"\xff\xfe", b"ok")
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    border = cut(data, math.ceil(len(data) * (1 - tail)))
    starts = sorted({*span_starts(data), border})
    for size in (100, 70_000, 1 << 22):
        got = read_path(path, size, Reading(cut=cut, only_source=True, spans=True, tail=tail))
        assert [len(row) for row in got.rows] == [b - a for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
        assert got.tail == [start >= border for start in starts]


def _rows(path: Path, size: int, tail: float) -> list[bytes]:
    [source] = find_sources([str(path)])
    reader = SourceReader(0, source, Reading(cut=cut, tail=tail), FreeRoom())
    rows = []
    for chunk in reader.chunks(Position(), size):
        documents = reader.read(chunk)
        data = documents.data.tobytes()
        rows += [data[documents.offsets[i] : documents.offsets[i + 1]] for i in range(len(documents))]
    return rows


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl"])
def test_a_tail_of_anything_but_plain_text_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(COMPRESSIONS[".gz" if name.endswith("gz") else ""](b'{"text": "a"}\n'))
    with pytest.raises(UsageError):
        read_path(path, 10, Reading(tail=0.1))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_spans_stay_the_same_around_a_stretch_that_memory_cannot_hold(tmp_path: Path, ending: str) -> None:
    prose = _prose(2 * SPAN).replace(b"\xff\xfe", b"ok")
    data = prose + b"y" * (5 * SPAN) + b" z z " + prose
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](data))
    starts = span_starts(data)
    [source] = find_sources([str(path)])
    for size in (1, SPAN, 2 * SPAN):
        reader = SourceReader(0, source, Reading(cut=cut, only_source=True, spans=True), FreeRoom(2 * SPAN))
        got, long = [], 0
        for chunk in reader.chunks(Position(), size):
            if chunk.long:
                long += 1
                got.append(chunk.start)
                assert b"".join(reader.pieces(chunk, 1000)) == data[chunk.start : chunk.end]
            else:
                got += (chunk.start + reader.read(chunk).offsets[:-1]).tolist()
        assert long == 1
        assert got == starts
