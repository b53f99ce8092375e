"""What a report finds wrong: repeated documents, val in train, and the command that made the dataset."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.options import FORMATS
from shardmill.reporting.duplicates import Duplicates
from shardmill.units import plural
from tests.corpus import documents, write_jsonl
from tests.datasets import make_dataset


def _page(folder: Path) -> str:
    return shardmill.report(folder, folder.parent / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
@pytest.mark.parametrize("format", FORMATS)
def test_repeated_documents_are_counted_as_a_loop_counts_them(
    format: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.reporting.survey.BLOCK", block)
    draw = random.Random(block)
    some = [np.array([draw.randrange(3) for _ in range(draw.randrange(1, 4))], np.uint16) for _ in range(60)]
    folder = make_dataset(format, tmp_path / "out", {"train": some[:40], "val": some[40:]}, shard_tokens=50)
    train, val = (Counter(one.tobytes() for one in split) for split in (some[:40], some[40:]))
    page = _page(folder)
    repeated = {name: sum(n - 1 for n in found.values()) for name, found in (("train", train), ("val", val))}
    assert f"{repeated['train']:,} in train, {repeated['val']:,} in val" in page
    shared = sum(count for one, count in val.items() if one in train)
    assert f"{plural(shared, 'document')} in val, also in train" in page


def test_more_documents_than_are_kept_are_counted_from_a_fair_sample() -> None:
    draw = np.random.default_rng(0)
    different = draw.integers(0, 1 << 64, 20_000, dtype=np.uint64)
    counted = Duplicates(["train", "val"], most=2_000)
    counted.add("train", np.concatenate([different, different[:5_000]]))
    counted.add("val", different[-4_000:])
    assert not counted.exact and len(counted._values) <= 2_000
    assert abs(counted.repeated("train") - 5_000) < 1_000
    assert abs(counted.shared("val", "train") - 4_000) < 1_000
    few = Duplicates(["train"])
    few.add("train", different)
    assert few.exact and few.repeated("train") == 0


def test_the_page_begins_with_what_looks_wrong_and_has_the_command(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a b.jsonl", [*documents(300), *["the same text"] * 40])
    shardmill.prepare(source, tmp_path / "out", val=0.2, seed=3, format="shards", shard_tokens="1M")
    page = _page(tmp_path / "out")
    assert "equal to an earlier one" in page and "also in train" not in page
    assert "a b.jsonl&#39; -o out --format shards --val 0.2 --seed 3 --shard-tokens 1000000" in page
    shardmill.shuffle(tmp_path / "out", tmp_path / "mixed up", seed=5)
    page = _page(tmp_path / "mixed up")
    assert "shardmill shuffle " in page and "out -o &#39;mixed up&#39;" in page and "--seed 5" in page
    shardmill.pack(tmp_path / "out", tmp_path / "rows", block_size=64)
    assert "--block-size 64" in _page(tmp_path / "rows")
    shardmill.mix({tmp_path / "out": 0.25, tmp_path / "mixed up": 0.75}, tmp_path / "mix", tokens=9_000)
    assert ":0.25" in _page(tmp_path / "mix")


def test_nothing_wrong_is_said_too_and_totals_are_explained(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [text for text in documents(300) if text])
    result = shardmill.prepare(source, tmp_path / "out", val=0)
    page = _page(tmp_path / "out")
    assert "Nothing that this report looks for" in page
    assert f"{result.tokens:,} tokens are {result.tokens - 300 + documents(300).count(''):,} of text" in page


def test_a_few_documents_are_not_plotted_and_a_long_one_can_be_read_whole(tmp_path: Path) -> None:
    long = "word " * 2_000 + "the very end"
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "two", long])
    shardmill.prepare(source, tmp_path / "out", val=0)
    page = _page(tmp_path / "out")
    assert "<svg" not in page and "the very end" in page and "more tokens: the whole text" in page
