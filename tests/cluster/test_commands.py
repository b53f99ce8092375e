"""`plan`, `prepare --plan` and `merge` as commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import shardmill
from tests.corpus import contents, documents, write_jsonl
from tests.hub import Hub
from tests.meter import SHARDMILL

FLAGS = ["--val", "0.1", "-f", "shards", "--shard-tokens", "20000"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", documents(300, seed=2))


def run(*words: object, code: int = 0, **environment: str) -> str:
    names = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [*SHARDMILL, *map(str, words)], env={**clean, **environment}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_three_commands_give_what_one_gives(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    shardmill.prepare(source, tmp_path / "one", val=0.1, format="shards", shard_tokens=20_000)
    assert "3 parts (0 to 2) of 1 source" in run("plan", source, "-o", out, "--parts", 3, *FLAGS)
    planned = json.loads(run("plan", source, "-o", out, "--parts", 3, *FLAGS, "--json"))
    assert [part["number"] for part in planned["parts"]] == [0, 1, 2]
    assert sum(part["bytes"] for part in planned["parts"]) == source.stat().st_size
    made = json.loads(run("prepare", "--plan", out, "--part", 2, "--memory", "500MB", "--json"))
    assert made["number"] == 2 and made["made"] is True
    run("prepare", "--plan", out, "-q", SLURM_ARRAY_TASK_ID="0")
    said = run("merge", out, code=2)
    assert "1 of 3 parts are missing: 1" in said and "--part 1" in said
    run("prepare", "--plan", out, "--workers", 1, JOB_COMPLETION_INDEX="1")
    again = json.loads(run("prepare", "--plan", out, "--part", 1, "--json"))
    assert again["made"] is False and again["documents"] > 0
    merged = json.loads(run("merge", out, "--json"))
    assert merged["already"] is False and merged["documents"] + merged["empty"] == 300
    assert contents(out) == contents(tmp_path / "one")
    assert json.loads(run("merge", out, "--json"))["already"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plan", "out"], "which part?"),
        (["--plan", "out", "--part", "9", "--val", "0.1"], "`--val` cannot be used with `--plan`"),
        (["a.txt", "--plan", "out", "--part", "9"], "cannot be used with `--plan`"),
        (["--plan", "nowhere", "--part", "0"], "there is no plan here"),
        (["a.txt", "-o", "out", "--part", "1"], "`--part` needs a `--plan`"),
        (["a.txt"], "no `--out DIR` was given"),
        ([], "no SOURCE was given"),
        (["a.txt", "-o", "out", "--parts", "3"], "`--parts` needs an `--executor`"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Some words.")
    assert said in run("prepare", *words, code=2)
    assert not (tmp_path / "out").exists()


def test_a_task_number_in_the_environment_means_nothing_without_a_plan(tmp_path: Path, source: Path) -> None:
    run("prepare", source, "-o", tmp_path / "out", "-q", SLURM_ARRAY_TASK_ID="7")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_plan_lists_its_sources_once(tmp_path: Path, hub: Hub) -> None:
    files = {f"data/{i}.jsonl": write_jsonl(tmp_path / f"{i}.jsonl", documents(20, seed=i)) for i in range(3)}
    hub.add("someone/web", files)
    words = ("plan", "hf://datasets/someone/web/data", "-o", tmp_path / "out", "--parts", 2, "--json")
    planned = json.loads(run(*words, code=0, **hub.environment))
    assert len(planned["parts"]) == 2
    assert len(hub.answered("/tree/")) == 1
