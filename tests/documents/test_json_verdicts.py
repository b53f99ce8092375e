"""The verdict on a line of JSON is Python's on that line alone, whoever parses it and in whatever company."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardmill.documents import FreeRoom, Position, Reading, SourceReader, jsonl
from shardmill.documents.records import judge
from shardmill.sources import find_sources
from tests.documents.twin import read_path
from tests.odd_lines import odd_lines, real_lines


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("field", ["text", "a.b"])
@pytest.mark.parametrize("seed", range(3))
def test_a_verdict_is_that_on_the_line_alone_whatever_stands_beside_it(tmp_path: Path, seed: int, field: str) -> None:
    chance = random.Random(f"{seed} {field}")
    keys = field.split(".")
    good = [line.replace(b'"text":', b'"a":{"b":"x"},"text":') for line in real_lines()]
    # Odd lines stand among more or fewer good ones, so that blocks of all lengths can be parsed at once.
    share = chance.choice([0.002, 0.02, 0.2, 1.0])
    odd = iter(odd_lines(chance, 1_000))
    lines = [good[0], *(next(odd) if chance.random() < share else chance.choice(good) for _ in range(1_000))]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    alone = [(i, judge(line, keys)) for i, line in enumerate(lines) if line.strip(b" \t\r")]
    texts = [verdict.text.encode() for _, verdict in alone if verdict.text is not None]
    reasons = [
        (i, verdict.reason.replace("{field}", f"field `{field}`")) for i, verdict in alone if verdict.text is None
    ]
    for size in (1 << 22, chance.randrange(100, 5_000), chance.randrange(5_000, 500_000)):
        got = read_path(path, size, Reading(text_field=field))
        assert got.rejects == reasons
        assert got.documents == texts
        assert got.records == [i for i, verdict in alone if verdict.text is not None]


def test_what_is_nested_too_deeply_for_python_gets_a_verdict_by_the_same_rules() -> None:
    deep, field = b"[" * 2000 + b"%s" + b"]" * 2000, ["text"]
    for inner, good in [
        (b"", True), (b"1", True), (b'{"a": [1, "]", {}], "b": NaN}', True), (b'"\\ud800", -1.5e+3, null', True),
        (b"Inf", False), (b"-NaN", False), (b"01", False), (b"1,", False), (b"{1: 2}", False), (b'{"a" 1}', False),
        (b'"\\x"', False), (b"]", False), (b"1 2", False), (b'"', False), (b'{"a": 1,}', False),
    ]:  # fmt: skip
        value = deep % inner
        for line in (b'{"text": "a", "x": %s}', b'{"x": %s, "text": "a"}', b'{"x": {"y": [0, %s ]} , "text": "a"}'):
            assert (judge(line % value, field).text == "a") is good, inner
            assert judge(line % (b"[" * 400 + inner + b"]" * 400), field).text == ("a" if good else None)
        assert judge(b'{"text": %s}' % value, field).reason.startswith("{field} is an array" if good else "not valid")
        assert judge(b'{"text": "a", "x": %s} y' % value, field).text is None
    assert judge(b'{"text": "%s"}' % (b"[" * 2000), field).text == "[" * 2000
    assert judge(b'{"a": {"b": "x", "c": %s}}' % (deep % b"7"), ["a", "b"]).text == "x"


def test_a_hundred_thousand_levels_are_a_verdict_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = b'{"text": "deep", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    broken = b'{"text": "deep", "x": ' + b"[" * 100_000 + b"}"
    path.write_bytes(b'{"text": "a"}\n' + deep + b"\n" + broken + b'\n{"text": "b"}\n')
    for size in (100, 1 << 23):
        got = read_path(path, size)
        assert got.documents == [b"a", b"deep", b"b"]
        assert [record for record, _ in got.rejects] == [2]


def test_a_chunk_has_no_more_lines_because_memory_allows_it(tmp_path: Path) -> None:
    # A run that has to stop because all lines are bad stops after whole chunks.
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x\n" * 500_000)
    [source] = find_sources([str(path)], "auto")
    for size in (1 << 16, 1 << 20, 1 << 23, 1 << 26):
        sizes = [
            chunk.end - chunk.start for chunk in SourceReader(0, source, Reading(), FreeRoom()).chunks(Position(), size)
        ]
        assert sum(sizes) == 1_000_000
        assert max(sizes) <= 2 * jsonl.LINES
