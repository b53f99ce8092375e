"""A validation split that is of no use is said, with the option that helps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.write.warnings import val_warnings
from tests.corpus import documents, random_words, write_jsonl


def described(val: str, train: tuple[int, int], held_out: tuple[int, int]) -> Any:
    """A manifest with the tokens and documents of each split."""
    splits = {
        name: {"tokens": tokens, "documents": number}
        for name, (tokens, number) in (("train", train), ("val", held_out))
    }
    return {"splits": splits, "options": {"val": val}}


@pytest.mark.parametrize(
    ("val", "train", "held_out", "said"),
    [
        ("0.1", (90_000, 900), (10_000, 100), None),
        ("0.1", (90_000, 1), (0, 0), "val is empty"),
        ("first:5k", (0, 0), (3_000, 7), "train is empty"),
        ("0.9", (0, 0), (3_000, 7), "train is empty"),
        ("0.01", (100_000, 99), (1_023, 1), "only 1,023 tokens"),
        ("0.01", (100_000, 98), (1_024, 1), None),
        ("first:1000", (100_000, 100), (1_000, 1), "only 1,000 tokens"),
        ("first:2k", (100_000, 100), (2_000, 0), None),
        ("tail:0.1", (90_000, 1), (10_000, 1), None),
        ("0.0005", (47_000_000, 11_994), (23_000, 6), "only 6 of 12,000 documents"),
        ("0.0005", (47_000_000, 19_990), (23_000, 10), None),
        ("0.1", (9_000, 91), (1_024, 9), "only 9 of 100 documents"),
        ("0.1", (9_000, 90), (1_024, 9), None),
        ("0.0005", (900_000, 19), (47_000_000, 6), "98 % of the tokens"),
        ("0.1", (60_000, 50), (40_000, 5), None),
        ("0.1", (59_000, 50), (41_000, 5), "41 % of the tokens"),
        ("0.1", (97_500, 50), (2_500, 5), None),
        ("0.1", (97_600, 50), (2_400, 5), "2.4 % of the tokens"),
        ("0.1", (0, 0), (0, 0), None),
    ],
)
def test_each_threshold_has_two_sides(
    val: str, train: tuple[int, int], held_out: tuple[int, int], said: str | None
) -> None:
    found = list(val_warnings(described(val, train, held_out)))
    assert len(found) == (said is not None)
    assert all(str(said) in one and "`--val " in one for one in found)


def test_an_empty_val_is_a_warning_for_people_and_for_programs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(30, seed=1))
    run = [sys.executable, "-m", "shardmill", "prepare", str(tmp_path / "a.jsonl"), "-o"]
    shown = subprocess.run([*run, str(tmp_path / "one")], capture_output=True, text=True, timeout=120, check=True)
    assert "warning: val is empty" in shown.stdout + shown.stderr and "--val 0." in shown.stdout + shown.stderr
    told = subprocess.run([*run, str(tmp_path / "two"), "--json"], capture_output=True, timeout=120, check=True)
    assert any(warning.startswith("val is empty") for warning in json.loads(told.stdout)["warnings"])
    assert not shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "three", val=0).warnings


def test_one_text_with_a_tenth_for_val_needs_no_warning(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_bytes(random_words(3_000_000))
    assert shardmill.prepare(tmp_path / "input.txt", tmp_path / "out", val=0.1).warnings == ()


def test_the_option_in_a_warning_can_be_used(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(300))
    warnings = shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out").warnings
    [warning] = [one for one in warnings if "--val" in one]
    for given in [part.split("`")[0] for part in warning.split("`--val ")[1:]]:
        followed = shardmill.prepare(tmp_path / "a.jsonl", tmp_path / given.replace(":", "-"), val=given)
        assert not [one for one in followed.warnings if "val" in one]
