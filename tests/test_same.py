"""Same, as a property: whatever the input and however the work is cut, one dataset comes out.

Random documents and damage, in a random container, are prepared twice with random workers and chunk sizes; and by the
command, twice with random workers and memory.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import shardmill
from tests.corpus import HARD, contents
from tests.meter import SHARDMILL
from tests.test_prepare import KINDS

NUMBERS = "1 -0 1e5 Inf -Inf NaN Infinity -Infinity 01 1. .5 +1 1e 0x10 1e999".split()
ODD_LINES = [
    "", " ", "{", "}", "[]", "null", '"text"', "{}", '{"text": null}', '{"text": 1}', '{"text": ["a"]}', '{"text": {}}',
    '{"text": "a"} x', '{"text": "a"},', '{"text": "a",}', '{"text": "\\ud800"}', '{"text": "\\udc00\\ud800"}',
    '{"text": "a", "text": "b"}', '{"text": 1, "text": "b"}', '{"text": "b", "text": null}', "{'text': 'a'}",
    '{"text": "a\tb"}', '{"text": "\\x"}', '{"text": "\\u12"}', '{"text": "a" "b"}', '{"text" "a"}', '{text: "a"}',
    '{"text": "a", "n": tru}', '{"text": "a", "n": [1, 2}', '// {"text": "a"}', '{"text": "a"} // x', '{"a.b": 1}',
    '{"text": "\\u0000"}', '{"text": "a\x00b"}', '{"te\\u0078t": "escaped key"}', '\ufeff{"text": "a"}', "x" * 3000,
    '{"text": "a", "deep": ' + "[" * 600 + "]" * 600 + "}", '{"text": "unclosed', '\x0b{"text": "a"}', '{"text":"a"}\r',
]  # fmt: skip


def jsonl(chance: random.Random) -> bytes:
    """Lines of which some are odd in every way that parsers have been seen to disagree about."""
    lines = []
    for i in range(chance.randrange(1, 1200)):
        if chance.random() < 0.15:
            line = chance.choice(ODD_LINES)
        elif chance.random() < 0.1:
            line = f'{{"n": {chance.choice(NUMBERS)}, "text": "number {i}"}}'
        else:
            line = json.dumps({"id": i, "text": _text(chance)}, ensure_ascii=chance.random() < 0.5)
        raw = line.encode()
        if chance.random() < 0.02:
            at, damage = chance.randrange(len(raw) + 1), chance.choice([b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00"])
            raw = raw[:at] + damage + raw[at + chance.randrange(2) :]
        lines.append(raw)
    return b"\n".join(lines) + chance.choice([b"", b"\n", b"\n\n"])


def csv(chance: random.Random) -> bytes:
    """Rows with all kinds of quoting, too few or too many fields, invalid UTF-8, and perhaps an open end."""
    rows = [b"id,text,more"]
    for i in range(chance.randrange(1, 900)):
        text = _text(chance).replace("\x00", "").replace("\r", "").encode()
        field = b'"' + text.replace(b'"', b'""') + b'"'
        kind = chance.random()
        rows.append(
            b"%d,%s" % (i, field) if kind < 0.03
            else b"%d,%s,1,2,3" % (i, field) if kind < 0.06
            else b"%d,\xff\xfe,x" % i if kind < 0.08
            else b"%d,plain words,%s" % (i, field) if kind < 0.2
            else b"%d,,x" % i if kind < 0.25
            else b"%d,%s,x" % (i, field)
        )  # fmt: skip
    return chance.choice([b"\n", b"\r\n"]).join(rows) + chance.choice([b"", b"\n"])


def text(chance: random.Random) -> bytes:
    """Text with separators, invalid UTF-8 and long stretches."""
    parts = [_text(chance).encode() for _ in range(chance.randrange(1, 900))]
    if chance.random() < 0.5:
        parts[chance.randrange(len(parts))] += b"\xff\xc3" * 3
    return chance.choice([b"\x1e", b"\x1e\x1e"]).join(parts)


def rows(chance: random.Random) -> bytes:
    """Some rows as parquet or Arrow, in any of the ways that they may be written."""
    kind = chance.choice([kind for kind in KINDS if kind.endswith(("parquet", "arrow", "feather"))])
    return KINDS[kind]([_text(chance) for _ in range(chance.randrange(1, 900))])


def _text(chance: random.Random) -> str:
    words = " ".join(chance.choice(HARD) for _ in range(chance.randrange(3)))
    return words * chance.choice([1, 1, 1, 1, 30]) + f" {chance.random()}" * chance.randrange(2)


INPUTS: dict[str, Callable[[random.Random], bytes]] = {
    ".jsonl": jsonl, ".jsonl.gz": jsonl, ".csv": csv, ".csv.zst": csv, ".txt": text, ".txt.gz": text, ".rows": rows,
}  # fmt: skip


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstandard.compress(data) if name.endswith(".zst") else data


def run_once(source: Path, out: Path, chance: random.Random, options: dict[str, Any]) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        # Not below the 64 KiB by which a document's split is decided.
        size = chance.choice([1 << 16, 77_777, 1 << 17, 1 << 18, 1 << 22])
        patch.setattr("shardmill.run.budget.LARGEST", size)
        patch.setattr("shardmill.run.budget.SMALLEST", size)
        workers = chance.randrange(1, 4)
        shardmill.prepare(source, out, workers=workers, memory="8GB", max_bad="any", **options)
    return contents(out)


def write_source(name: str, data: bytes, folder: Path) -> Path:
    kind = ".parquet" if data[:4] == b"PAR1" else ".arrow" if name == ".rows" else name
    source = folder / f"data{kind}"
    source.write_bytes(packed(name, data))
    return source


def check_same(name: str, seed: int, folder: Path) -> None:
    chance = random.Random(f"{name} {seed}")
    source = write_source(name, INPUTS[name](chance), folder)
    options = {
        "val": chance.choice(["0", "0.2", "first:500"]),
        "eot": chance.choice(["after", "before", "none"]),
        "format": chance.choice([["nanogpt"], ["shards", "megatron"], ["mds"]]),
        "shard_tokens": 3000,
        **({"separator": "\x1e"} if chance.random() < 0.7 else {}),
    }
    one, other = (run_once(source, folder / f"out{i}", chance, options) for i in range(2))
    assert one.keys() == other.keys()
    assert [path for path in one if one[path] != other[path]] == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", INPUTS)
def test_the_same_input_gives_the_same_bytes_however_the_work_is_cut(name: str, seed: int, tmp_path: Path) -> None:
    check_same(name, seed, tmp_path)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
@pytest.mark.parametrize("name", INPUTS)
def test_the_same_input_gives_the_same_bytes_in_any_memory(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"memory {name} {seed}")
    many = 1 if name == ".rows" else 60
    source = write_source(name, b"\n".join(INPUTS[name](chance) for _ in range(many)), tmp_path)
    made = []
    for memory in chance.sample(["400MB", "512MB", "700MB", "1GB"], 2):
        settings = ["--memory", memory, "--workers", str(chance.randrange(1, 3)), "--max-bad", "any"]
        out = tmp_path / memory
        run = subprocess.run(
            [*SHARDMILL, "prepare", source, "-o", out, *settings], capture_output=True, text=True, timeout=150
        )
        assert run.returncode == 0, run.stderr
        made.append(contents(out))
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("seed", range(100, 180))
def test_the_same_input_gives_the_same_bytes_in_many_more_cases(name: str, seed: int, tmp_path: Path) -> None:
    check_same(name, seed, tmp_path)
