"""`shardmill inspect` as a person or a program meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardmill
from shardmill.options import FORMATS
from shardmill.run import inspect
from tests.corpus import documents, write_jsonl
from tests.meter import metered


def test_json_holds_what_the_python_call_gives(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    run = metered("inspect", source, "--json", "-o", tmp_path, "--workers", "1")
    assert (run.code, run.err) == (0, "")
    said, given = json.loads(run.out), json.loads(json.dumps(inspect(source, tmp_path, workers=1).data()))
    passing = {"seconds", "sampled_seconds", "free_bytes"}  # of the machine
    assert said.keys() == given.keys()
    assert {key: said[key] for key in said.keys() - passing} == {key: given[key] for key in given.keys() - passing}
    assert said["documents"] == {"value": 200, "margin": 0}
    assert said["naive_bytes"] == 41 * said["tokens"]["value"] + said["text_bytes"]["value"]


def test_the_text_says_all_of_it_in_eighty_columns(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(500))
    (tmp_path / "b.txt").write_text("one\n\ntwo\n\n" * 200_000)
    (tmp_path / "c.txt").write_bytes(b"\xff")
    run = metered("inspect", tmp_path, "-o", tmp_path / ("long" * 40), "--workers", "2", "--memory", "512MB")
    assert run.code == 0
    for word in ("jsonl", "text", "documents", "each on average", "separators", "tokens", "bytes per token", "output",
                 "disk", "at most 512 MB", "2 workers", "time", "naive", "warning:", "hint:", *FORMATS):  # fmt: skip
        assert word in " ".join(run.out.split()), word
    for line in run.out.splitlines():
        assert len(line) <= 80 or "longlong" in line, line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.txt"], 2, "nowhere.txt"),
        (["-"], 2, "only once"),
        (["{good}", "--separator", ""], 2, "separator"),
        (["{good}", "-t", "no-such-tokenizer"], 2, "no-such-tokenizer"),
        (["{good}", "--input-format", "parquet"], 1, "would stop:"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    good = write_jsonl(tmp_path / "good.jsonl", documents(10))
    run = metered("inspect", *[argument.format(good=good) for argument in arguments])
    assert run.code == code, run.err
    assert said in run.out + run.err
    assert "Traceback" not in run.err


def test_the_function_is_there_under_the_packages_name(tmp_path: Path) -> None:
    assert shardmill.inspect(write_jsonl(tmp_path / "a.jsonl", documents(3))).documents.value == 3
