"""The dataset card: what the manifest says, in Markdown that the hub reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardmill
from shardmill.cli import shardmill as command
from shardmill.errors import UsageError
from tests.corpus import documents, write_jsonl


def test_a_card_has_a_head_that_the_hub_reads_and_the_numbers_of_the_manifest(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    folder = tmp_path / 'a: "b"\n---\nlicense: mit|<b>`x`'
    shardmill.prepare(write_jsonl(tmp_path / "a|`b.jsonl", documents(60)), folder, val=0.3)
    made = shardmill.card(folder)
    _, head, body = made.split("---\n", 2)
    known = yaml.safe_load(head)
    assert known["pretty_name"] == folder.name and known["task_categories"] == ["text-generation"]
    assert set(known) == {"pretty_name", "task_categories", "size_categories", "tags"}
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, split in manifest["splits"].items():
        assert f"| {name} | {split['documents']:,} | {split['tokens']:,} |" in body
    assert manifest["fingerprint"] in body and "`gpt2`" in body and "a\\|`b.jsonl" in body
    assert "\n<b>" not in body and body.count("\n# ") == 1


def test_many_sources_are_counted_and_some_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(30):
        (tmp_path / "in" / f"{i}.txt").write_text(f"text number {i}")
    shardmill.prepare(tmp_path / "in", tmp_path / "out", val=0)
    made = shardmill.card(tmp_path / "out")
    assert "## Sources (30)" in made and "and 10 more" in made


def test_the_command_prints_the_card_and_says_what_is_no_dataset(tmp_path: Path) -> None:
    shardmill.prepare(write_jsonl(tmp_path / "a.jsonl", documents(20)), tmp_path / "out", val=0)
    done = CliRunner().invoke(command, ["card", str(tmp_path / "out")])
    assert done.stdout == shardmill.card(tmp_path / "out") + "\n"
    assert isinstance(CliRunner().invoke(command, ["card", str(tmp_path)]).exception, UsageError)
