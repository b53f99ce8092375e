"""Text files without a separator: each is a document, whole in one split; a stream of text is dealt in spans."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.dataset import verify
from shardmill.options import Options
from shardmill.run import EncodedText, Plan, open_outputs
from shardmill.sources import find_sources
from shardmill.tokens import load_tokenizer
from shardmill.write import Destination, Progress, Run
from tests.corpus import contents, random_words
from tests.reference import check, gpt2, twin

pytestmark = pytest.mark.thorough

EOT = 50256
MEMORY = "8GB"  # more than the tests' own process holds already
STREAM_BYTES = 16 * 1024 * 1024


def split_documents(out: Path, split: str, eot: str = "after") -> list[list[int]]:
    """The documents of a split of `nanogpt`, by their end-of-text tokens."""
    found: list[list[int]] = [[]]
    for token in np.fromfile(out / f"{split}.bin", np.uint16).tolist():
        if token == EOT:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop(-1 if eot == "after" else 0) == []
    return found


def small_chunks(monkeypatch: pytest.MonkeyPatch, size: int = 1 << 16) -> None:
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", size)
    monkeypatch.setattr("shardmill.run.budget.LARGEST", size)


def write_tree(folder: Path, chance: random.Random, limit: int) -> None:
    """A folder as people have it: nested, some files empty or with a mark, some tiny, some around the limit."""
    for number in range(chance.choice([1, 2, 12, 40])):
        path = folder.joinpath(*(chance.choice("abc") for _ in range(chance.randrange(3))), f"{number:02}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        size = chance.choice([0, 0, 1, 300, 5_000, 70_000, limit - 1, limit, limit + 1, 3 * limit])
        text = random_words(size, chance.randrange(10**6))[:size]
        path.write_bytes(chance.choice([b"", b"", b"\xef\xbb\xbf"]) * (size % limit > 1) + text)


@pytest.mark.parametrize("seed", range(12))
def test_the_documents_of_a_folder_are_those_of_an_independent_reader_each_whole_in_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, limit = random.Random(seed), 200_000
    small_chunks(monkeypatch, chance.choice([1 << 16, 1 << 18, 1 << 22]))
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    write_tree(folder, chance, limit)
    eot = chance.choice(["after", "after", "before"])
    options = Options.of({"val": chance.choice([0.02, 0.3, 0.6]), "seed": seed, "eot": eot, "workers": 2})
    plan = Plan(find_sources([str(folder)]), load_tokenizer("gpt2"), options, stream_bytes=limit)
    out.mkdir()
    outputs = open_outputs(plan, out)
    Run(EncodedText(plan, outputs), Destination(out), outputs, Progress()).go()
    expected = twin(folder, stream_bytes=limit)
    check(out, expected, eot)
    found = {
        split: split_documents(out, split, eot) for split in ("train", "val") if (out / f"{split}.bin").stat().st_size
    }
    every = [document for some in found.values() for document in some]
    for i, tokens in enumerate(expected.tokens):
        if i not in expected.streams:
            every.remove(tokens.tolist())
    # What remains are the stretches of streams: each has the tokens of its own text.
    data = shardmill.open(out)
    for stretch in every:
        assert expected.streams and gpt2()(data.decode(np.array(stretch))) == stretch


def test_of_twenty_books_each_is_whole_in_one_split(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i:02}.txt").write_bytes(f"Book {i}. ".encode() + random_words(350_000, i))
    manifest = shardmill.prepare(folder, tmp_path / "out", val=0.2).manifest
    books = [tokens.tolist() for tokens in twin(folder).tokens]
    found = {split: split_documents(tmp_path / "out", split) for split in ("train", "val")}
    assert [book for book in books if book in found["val"]] == found["val"]
    assert [book for book in books if book not in found["val"]] == found["train"]
    assert {name: split["documents"] for name, split in manifest["splits"].items()} == {
        name: len(some) for name, some in found.items()
    }
    assert found["val"] and manifest["documents"] == 20


@pytest.mark.parametrize(("size", "stream"), [(STREAM_BYTES - 1, False), (STREAM_BYTES, True)])
def test_from_16_mib_on_a_file_is_a_stream_of_text(tmp_path: Path, size: int, stream: bool) -> None:
    block = random_words(1 << 20)
    (tmp_path / "a.txt").write_bytes((block * 17)[:size])
    (tmp_path / "b.txt").write_text("a short one")
    manifest = shardmill.prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", val=0.3).manifest
    assert (manifest["documents"] > 2) is stream
    assert manifest["sources"][1]["documents"] == 1
    assert verify(tmp_path / "out").damage == []


@pytest.mark.parametrize("kind", ["plain", "gzip", "utf-16", "pipe"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_rule_is_the_same_for_every_way_to_store_a_text(tmp_path: Path, kind: str, alone: bool) -> None:
    text = random_words(700_000).decode()
    path = tmp_path / ("a.txt.gz" if kind == "gzip" else "a.txt")
    path.write_bytes({"gzip": gzip.compress(text.encode()), "utf-16": text.encode("utf-16")}.get(kind, text.encode()))
    (tmp_path / "b.txt").write_text("a short one")
    others = [] if alone else [str(tmp_path / "b.txt")]
    command = [sys.executable, "-m", "shardmill", "prepare", "-" if kind == "pipe" else str(path), *others]
    with open(path, "rb") as stdin:
        run = subprocess.run(
            [*command, "-o", str(tmp_path / "out"), "--val", "0.4", "--json", "-q"],
            stdin=stdin, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = split_documents(tmp_path / "out", "train"), split_documents(tmp_path / "out", "val")
    whole = gpt2()(text)
    # The size of a pipe is unknown, so it is a stream.
    if alone or kind == "pipe":
        assert len(found[0]) + len(found[1]) >= 3
        assert sum(map(len, found[0])) + sum(map(len, found[1])) == len(whole) + (0 if alone else 3)
    else:
        assert sum(some.count(whole) for some in found) == 1 and len(found[0]) + len(found[1]) == 2
    counts = json.loads(run.stdout)["splits"]
    assert [counts[split]["documents"] for split in ("train", "val")] == [len(some) for some in found]


FORMATS = ("nanogpt", "megatron", "datatrove", "mds", "litdata", "olmo")


@pytest.mark.parametrize(
    ("format", "eot", "val"),
    [
        *((format, eot, "0.5") for format in FORMATS for eot in ("after", "before", "none")),
        *(("megatron", "after", val) for val in ("0", "first:30k", "tail:0.3")),
    ],
)
def test_seams_do_not_depend_on_chunks_or_parts_in_any_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, eot: str, val: str
) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(640_000, 3) + b"x" * 30_000 + b" " + random_words(500_000, 4))
    options: dict[str, Any] = {"format": format, "eot": eot, "val": val, "shard_tokens": 40_000, "name": "x"}
    shardmill.prepare(source, tmp_path / "one", memory=MEMORY, **options)
    expected = contents(tmp_path / "one")
    small_chunks(monkeypatch)
    shardmill.prepare(source, tmp_path / "small", workers=2, **options)
    assert contents(tmp_path / "small") == expected
    plan = plan_parts(source, tmp_path / "parts", parts=7, **options)
    for part in plan.parts:
        make_part(tmp_path / "parts", part.number, memory=MEMORY)
    merge(tmp_path / "parts", memory=MEMORY)
    assert contents(tmp_path / "parts") == expected
    assert verify(tmp_path / "one").damage == []


@pytest.mark.parametrize("limit", ["1", "3", "4", "1k tokens", "16385 tokens", "70k tokens", "200k tokens"])
@pytest.mark.parametrize(("files", "eot"), [(1, "after"), (1, "before"), (1, "none"), (3, "after")])
def test_a_limit_does_not_depend_on_chunks_or_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, eot: str, files: int
) -> None:
    (tmp_path / "in").mkdir()
    for i in range(files):
        (tmp_path / "in" / f"{i}.txt").write_bytes(random_words(900_000 // files, i))
    options: dict[str, Any] = {"limit": limit, "eot": eot, "val": 0.5}
    shardmill.prepare(tmp_path / "in", tmp_path / "one", memory=MEMORY, **options)
    expected = contents(tmp_path / "one")
    for size in (1 << 16, 1 << 17):
        small_chunks(monkeypatch, size)
        shardmill.prepare(tmp_path / "in", tmp_path / f"{size}", **options)
        assert contents(tmp_path / f"{size}") == expected
    plan = plan_parts(tmp_path / "in", tmp_path / "parts", parts=5, **options)
    for part in plan.parts:
        make_part(tmp_path / "parts", part.number, memory=MEMORY)
    merge(tmp_path / "parts", memory=MEMORY)
    assert contents(tmp_path / "parts") == expected
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_bytes())
    if limit.isdigit():
        assert manifest["documents"] <= int(limit)


def test_a_part_judges_by_the_plan_and_not_by_its_own_stretch(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(2):
        (tmp_path / "in" / f"{i}.txt").write_bytes(random_words(500_000, i))
    shardmill.prepare(tmp_path / "in", tmp_path / "one", val=0.5, memory=MEMORY)
    plan = plan_parts(tmp_path / "in", tmp_path / "parts", parts=2, val=0.5)
    assert [part.byte for part in plan.parts] == [0, 0]
    for part in plan.parts:
        make_part(tmp_path / "parts", part.number, memory=MEMORY)
    merge(tmp_path / "parts", memory=MEMORY)
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")
    assert shardmill.open(tmp_path / "parts").manifest["documents"] == 2


def test_neighbours_in_one_split_stay_joined_and_seams_are_at_the_spans(tmp_path: Path) -> None:
    text = random_words(2_000_000)
    (tmp_path / "a.txt").write_bytes(text)
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", val=0.3)
    data = shardmill.open(tmp_path / "out")
    stretches = [
        data.decode(np.array(d)).encode()
        for split in ("train", "val")
        for d in split_documents(tmp_path / "out", split)
    ]
    places = sorted((text.find(stretch), len(stretch)) for stretch in stretches)
    assert places[0][0] == 0 and sum(size for _, size in places) == len(text)
    for (start, size), (following, _) in pairwise(places):
        assert start + size == following and following % 65536 < 200
