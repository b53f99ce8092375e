"""Sections of a source, wherever they are cut, hold together what the source holds, each record once and in order."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from shardmill.documents import FreeRoom, Reading, SourceReader
from shardmill.documents.chunks import Position, Section
from shardmill.sources import find_sources
from tests.documents.twin import arrow_bytes, compress_zstd, csv_bytes, cut, jsonl_bytes, parquet_bytes, table

TEXTS = [f"{'word ' * (i % 37)}{i} ünï {'日本 ' * (i % 5)}" for i in range(300)]
LINES = ("\n".join(TEXTS) + "\n").encode()
OVERLAPPING = "\n\n".join(text + "\n" * (i % 7) for i, text in enumerate(TEXTS)).encode()
SOURCES: dict[str, tuple[str, bytes, Reading]] = {
    "a document": ("a.txt", LINES, Reading(cut=cut)),
    "a stream": ("a.txt", LINES, Reading(cut=cut, only_source=True)),
    "a mark before it": ("a.txt", b"\xef\xbb\xbf" + LINES, Reading(cut=cut, only_source=True)),
    "spans": ("a.txt", LINES * 12, Reading(cut=cut, only_source=True, spans=True)),
    "spans and a tail": ("a.txt", LINES * 12, Reading(cut=cut, only_source=True, spans=True, tail=0.31)),
    "no place to cut": ("a.txt", b"x" * 30_000 + b" y z" + b"w" * 9_000, Reading(cut=cut, only_source=True)),
    "a tokenizer without safe places": ("a.txt", LINES, Reading()),
    "lines": ("a.txt", LINES, Reading(cut=cut, separator=b"\n")),
    "a separator that overlaps itself": ("a.txt", OVERLAPPING, Reading(cut=cut, separator=b"\n\n")),
    "another": ("a.txt", OVERLAPPING.replace(b"\n", b"aba"), Reading(cut=cut, separator=b"abaaba")),
    "nothing but separators": ("a.txt", b"\n" * 20_001, Reading(cut=cut, separator=b"\n\n")),
    "invalid bytes": ("a.txt", LINES.replace(b"word", b"w\xffrd"), Reading(cut=cut, only_source=True)),
    "jsonl": ("a.jsonl", jsonl_bytes(list(TEXTS)), Reading()),
    "bad lines": ("a.jsonl", jsonl_bytes(list(TEXTS)).replace(b'"7', b"7"), Reading()),
    "jsonl without a last newline": ("a.jsonl", jsonl_bytes(list(TEXTS)).rstrip(b"\n"), Reading()),
    "parquet": ("a.parquet", parquet_bytes(table([*TEXTS, None])), Reading()),
    "compressed": ("a.jsonl.zst", compress_zstd(jsonl_bytes(list(TEXTS))), Reading()),
    "arrow": ("a.arrow", arrow_bytes(table(list(TEXTS))), Reading()),
    "csv": ("a.csv", csv_bytes(table(list(TEXTS))), Reading()),
    "utf-16": ("a.txt", LINES.decode().encode("utf-16"), Reading(cut=cut, only_source=True)),
    "empty": ("a.txt", b"", Reading(cut=cut, only_source=True)),
}


def _read(path: Path, reading: Reading, size: int, section: Section) -> tuple[list[tuple[bytes, bool, bool]], int]:
    """Rows, whether each begins and ends a document; neighbours within a document are one. And the bad records."""
    [source] = find_sources([str(path)], "auto")
    reader = SourceReader(0, source, reading, FreeRoom())
    rows: list[tuple[bytes, bool, bool]] = []
    bad = 0
    for chunk in reader.chunks(Position(), size, section):
        if chunk.long:
            texts, spans = [b"".join(reader.pieces(chunk, 1000))], False
        else:
            documents = reader.read(chunk)
            texts = [
                documents.data[a : a + n].tobytes()
                for a, n in zip(documents.offsets[:-1].tolist(), documents.lengths.tolist(), strict=True)
            ]
            spans = chunk.stream
            bad += len(documents.rejects)
        last = len(texts) - 1
        for i, text in enumerate(texts):
            whole = not spans and chunk.begins and chunk.ends
            rows.append((text, whole or (i == 0 and chunk.begins), whole or (i == last and chunk.ends)))
    return rows, bad


def _joined(rows: list[tuple[bytes, bool, bool]]) -> list[bytes]:
    """The documents; AssertionError where one ends and none begins."""
    documents: list[bytes] = []
    closed = True
    for text, begins, ends in rows:
        assert begins is closed
        documents = [*documents, text] if begins else [*documents[:-1], documents[-1] + text]
        closed = ends
    assert closed
    return documents


@pytest.mark.parametrize("kind", SOURCES)
def test_sections_hold_together_what_the_source_holds(tmp_path: Path, kind: str) -> None:
    name, data, reading = SOURCES[kind]
    path = tmp_path / name
    path.write_bytes(data)
    whole, bad = _read(path, reading, 1 << 20, Section())
    rng = random.Random(kind)
    for count in (1, 2, 7, 40):
        borders = sorted(rng.sample(range(1, max(len(data), 100)), count - 1))
        bounds = list(pairwise([0, *borders, None]))
        if rng.random() < 0.5 and len(data) > 10:
            bounds = [(0, 3), (3, 4), (4, None)]
        parts = [_read(path, reading, rng.choice([1, 997, 1 << 20]), Section(a or 0, b)) for a, b in bounds]
        rows = [row for part, _ in parts for row in part]
        assert _joined(rows) == _joined(whole), (count, bounds)
        if reading.spans:
            assert [row for row, _, _ in rows] == [row for row, _, _ in whole]
        assert sum(found for _, found in parts) == bad


@pytest.mark.parametrize("kind", ["a stream", "lines", "jsonl", "parquet", "spans"])
def test_large_sources_are_really_divided(tmp_path: Path, kind: str) -> None:
    name, data, reading = SOURCES[kind]
    path = tmp_path / name
    path.write_bytes(data)
    middle = len(data) // 2
    first, second = (_read(path, reading, 1 << 20, section)[0] for section in (Section(0, middle), Section(middle)))
    sizes = [sum(len(text) for text, _, _ in rows) for rows in (first, second)]
    assert min(sizes) > 0.1 * sum(sizes), sizes
