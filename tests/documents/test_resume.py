"""A later run goes on from any recorded position, with any other chunk size, and loses or repeats nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.documents import SPAN, FreeRoom, Position, Reading
from shardmill.sources import find_sources
from tests.documents.twin import (
    COMPRESSIONS,
    FREE,
    Read,
    arrow_bytes,
    csv_bytes,
    cut,
    jsonl_bytes,
    parquet_bytes,
    read_source,
    table,
)

TEXTS: list[str | None] = [f"text {i} " * (i % 9) if i % 11 else None for i in range(150)]
PROSE = b"\xef\xbb\xbf" + b"\n\n".join((text or "\n").encode() for text in TEXTS) + b"x" * 400 + b" \xff end of it"
SPANNED = b"word and word " * (3 * SPAN // 14) + b"z" * 3000 + b" tail"

LARGEST = {"long.txt": 200, "long.txt.gz": 200, "giant.jsonl": 1000}
CASES: dict[str, tuple[bytes, Reading]] = {
    "separated.txt": (PROSE, Reading(separator=b"\n\n", cut=cut)),
    "separated.txt.gz": (COMPRESSIONS[".gz"](PROSE), Reading(separator=b"\n\n", cut=cut)),
    "whole.txt": (PROSE, Reading(cut=cut)),
    "whole.txt.zst": (COMPRESSIONS[".zst"](PROSE), Reading(cut=cut)),
    "long.txt": (PROSE, Reading(separator=b"\n\n", cut=cut)),
    "long.txt.gz": (COMPRESSIONS[".gz"](PROSE), Reading(separator=b"\n\n", cut=cut)),
    "wide.txt": ("erste Zeile ü 😀 und mehr\n\n".encode("utf-16") * 30, Reading(separator=b"\n\n", cut=cut)),
    "spans.txt": (SPANNED, Reading(cut=cut, only_source=True, spans=True)),
    "spans.txt.gz": (COMPRESSIONS[".gz"](SPANNED), Reading(cut=cut, only_source=True, spans=True)),
    "a.jsonl": (jsonl_bytes(TEXTS), Reading()),
    "a.jsonl.xz": (COMPRESSIONS[".xz"](jsonl_bytes(TEXTS)), Reading()),
    "giant.jsonl": (jsonl_bytes([*TEXTS, "x" * 3000, *TEXTS]), Reading()),
    "a.parquet": (parquet_bytes(table(TEXTS), rows=20), Reading()),
    "one.parquet": (parquet_bytes(table(TEXTS), rows=1000, use_dictionary=False), Reading()),
    "a.arrow": (arrow_bytes(table(TEXTS), rows=20), Reading()),
    "a.csv": (csv_bytes(table([text or "" for text in TEXTS])), Reading()),
    "a.csv.gz": (COMPRESSIONS[".gz"](csv_bytes(table([text or "" for text in TEXTS]))), Reading()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_goes_on_from_any_position_gives_the_same(tmp_path: Path, name: str) -> None:
    data, reading = CASES[name]
    room = FreeRoom(LARGEST[name]) if name in LARGEST else FREE
    path = tmp_path / name
    path.write_bytes(data)
    [source] = find_sources([str(path)])
    whole = read_source(source, 1000 if "giant" in name else 1 << 22, reading, room=room)
    first_sizes = (1000, SPAN) if "spans" in name else (40, 300)
    for first in first_sizes:
        before = read_source(source, first, reading, room=room)
        assert before.documents == whole.documents
        assert before.rejects == whole.rejects
        step = max(1, len(before.positions) // 6)
        for i in range(0, len(before.positions), step):
            position = before.positions[i]
            head = read_source(source, first, reading, most=i + 1, room=room)
            for size in (first // 3 + 1, 1000 if "giant" in name else 1 << 22):
                rest = read_source(source, size, reading, position, room=room)
                joined = _join(head, rest, position)
                assert joined == (whole.documents, whole.rows, whole.records, whole.rejects)


def _join(
    head: Read, rest: Read, position: Position
) -> tuple[list[bytes], list[bytes], list[int], list[tuple[int, str]]]:
    documents = list(head.documents)
    more = list(rest.documents)
    if position.inside:
        documents[-1] += more.pop(0)
    return documents + more, head.rows + rest.rows, head.records + rest.records, head.rejects + rest.rejects


@pytest.mark.parametrize("name", CASES)
def test_a_source_that_was_read_to_its_end_has_nothing_more(tmp_path: Path, name: str) -> None:
    data, reading = CASES[name]
    room = FreeRoom(LARGEST[name]) if name in LARGEST else FREE
    path = tmp_path / name
    path.write_bytes(data)
    [source] = find_sources([str(path)])
    end = read_source(source, 100, reading).positions[-1]
    assert not end.inside
    rest = read_source(source, 100, reading, end, room=room)
    assert rest.chunks == 0


def test_positions_count_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n{"text": "b"}\n')
    [source] = find_sources([str(path)])
    assert read_source(source, 1).positions == [Position(14, 1), Position(15, 2), Position(29, 3)]
