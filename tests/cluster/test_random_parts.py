"""Random sources, options and numbers of parts: the dataset is always that of one run."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill.cluster import make_part, merge, missing_parts, plan_parts, read_part_plan
from shardmill.options import FORMATS
from tests.corpus import contents, documents

MEMORY = "8GB"  # more than the tests' own process holds already
BAD = ['{"text": 1}', '{"other": "x"}', "{", '{"text": null}', "[]", '{"text": "\\ud800"}', ""]


def texts_of(chance: random.Random) -> list[str]:
    texts = documents(chance.choice([1, 3, 40, 200]), seed=chance.randrange(10**6))
    if chance.random() < 0.3:  # one that is cut into spans, and across parts
        texts.insert(chance.randrange(len(texts) + 1), "word " * chance.choice([20_000, 60_000]))
    return texts


def json_lines(chance: random.Random) -> bytes:
    lines = [json.dumps({"text": text}) for text in texts_of(chance)]
    for _ in range(chance.choice([0, 0, 2, 30])):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(BAD))
    return "\n".join(lines).encode() + b"\n" * chance.randrange(2)


def write_source(chance: random.Random, folder: Path, number: int) -> Path:
    """A file, or a folder of small ones, of a random kind."""
    kind = chance.choice(["jsonl", "jsonl.gz", "jsonl.zst", "txt", "txt.gz", "parquet", "tiny"])
    path = folder / f"{number}.{kind}"
    if kind == "tiny":
        path.mkdir()
        for i, text in enumerate(documents(chance.choice([3, 60]), seed=chance.randrange(10**6))):
            (path / f"{i:03}.txt").write_text(text)
        return path
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts_of(chance)}), path, row_group_size=chance.choice([7, 50]))
        return path
    data = json_lines(chance) if "jsonl" in kind else "\n\n".join(texts_of(chance)).encode()
    if kind.startswith("txt") and chance.random() < 0.2:
        data = data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :]
    pack = {"gz": gzip.compress, "st": zstandard.compress}.get(kind[-2:], bytes)
    path.write_bytes(pack(data))
    return path


def some_options(chance: random.Random) -> dict[str, Any]:
    formats = chance.sample(FORMATS, chance.choice([1, 1, 2]))
    if {"mds", "litdata"} <= set(formats):  # both write `index.json`
        formats = formats[:1]
    options = {
        "format": formats,
        "val": chance.choice([0, 0.0005, 0.1, 0.5, "first:3k", "first:50k", "tail:0.2"]),
        "separator": chance.choice([None, r"\n\n", r"\n"]),
        "shard_tokens": chance.choice([2_000, 30_000, "100M"]),
        "seed": chance.randrange(3),
        "max_bad": chance.choice(["any", "any", "50%"]),
        "name": "web",
    }
    if chance.random() < 0.25:
        options["limit"] = chance.choice([1, 50, 300, "1k tokens", "20k tokens"])
    if chance.random() < 0.3:
        options["eot"] = chance.choice(["before", "none"])
    if chance.random() < 0.3:
        options["tail"] = "drop"
    return options


def outcome(make: Callable[[], object], out: Path) -> dict[str, bytes] | type[shardmill.ShardmillError]:
    """The files, or the error."""
    try:
        make()
    except shardmill.ShardmillError as error:
        return type(error)
    return contents(out)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 120))])
def test_random_sources_in_any_number_of_parts_give_the_bytes_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("shardmill.cluster.merging._USED", chance.choice([1, 20_000, 1 << 30]))
    monkeypatch.setattr("shardmill.arrange.arranging.BLOCK_TOKENS", chance.choice([300, 5_000, 1 << 21]))
    (tmp_path / "in").mkdir()
    sources = [write_source(chance, tmp_path / "in", number) for number in range(chance.choice([1, 1, 2, 5]))]
    options = some_options(chance)
    expected = outcome(lambda: shardmill.prepare(sources, tmp_path / "one", memory=MEMORY, **options), tmp_path / "one")
    for count in (1, 2, 7) if seed % 4 else (100,):
        out = tmp_path / "out"

        def in_parts(count: int = count, out: Path = out) -> None:
            plan = plan_parts(sources, out, parts=count, **options)
            for number in chance.sample(range(len(plan.parts)), len(plan.parts)):
                make_part(out, number, memory=MEMORY)
            assert missing_parts(read_part_plan(out)) == []
            merge(out, memory=MEMORY)

        assert outcome(in_parts, out) == expected, f"{count} parts, {options}"
        shutil.rmtree(out, ignore_errors=True)
