"""The examples for batch systems, run as those would run them: in any order, some tasks twice, some killed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardmill
from tests.corpus import contents, documents, write_jsonl

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = 4
OPTIONS: dict[str, Any] = {"val": 0.05, "format": "shards", "shard_tokens": 20_000}
FLAGS = ["--val", "0.05", "-f", "shards", "--shard-tokens", "20000"]
# What Slurm's command gets is written down; the number of the job is its answer.
_SBATCH = """#!/bin/sh
printf '%s\\n' "$@" -- >> "$SUBMITTED"
echo 4711
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "web.jsonl", documents(600, seed=8))


@pytest.fixture
def expected(tmp_path: Path, source: Path) -> dict[str, bytes]:
    shardmill.prepare(source, tmp_path / "alone", **OPTIONS)
    return contents(tmp_path / "alone")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a command to its end, with `shardmill` and `sbatch` on its path."""
    (tmp_path / "bin").mkdir()
    for name, text in (("shardmill", f'#!/bin/sh\nexec {sys.executable} -m shardmill "$@"\n'), ("sbatch", _SBATCH)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(*command: object, **more: str) -> str:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SUBMITTED": str(tmp_path / "submitted"),
            **more,
        }
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def in_any_order() -> list[int]:
    """All parts, some of them twice."""
    chance = random.Random(11)
    numbers = [*range(PARTS), 1, 3]
    chance.shuffle(numbers)
    return numbers


def test_slurm(tmp_path: Path, source: Path, expected: dict[str, bytes], run: Callable[..., str]) -> None:
    script, out = EXAMPLES / "slurm.sh", tmp_path / "out of all"
    run(script, out, PARTS, source, *FLAGS)
    array, merge = (tmp_path / "submitted").read_text().removesuffix("--\n").split("--\n")
    assert array.splitlines() == ["--parsable", f"--array=0-{PARTS - 1}", str(script), str(out)]
    for number in in_any_order():
        run(*array.splitlines()[2:], SLURM_ARRAY_TASK_ID=str(number), SLURM_CPUS_PER_TASK="1")
    last = merge.splitlines()
    assert last[0] == "--dependency=afterok:4711"
    run("bash", "-c", last[-1].removeprefix("--wrap="))
    assert contents(out) == expected


def test_kubernetes(tmp_path: Path, source: Path, expected: dict[str, bytes], run: Callable[..., str]) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    assert job["kind"] == "Job" and job["spec"]["completionMode"] == "Indexed"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    out = tmp_path / "tokens"
    run("shardmill", "plan", source, "-o", out, "--parts", PARTS, *FLAGS)
    command = [word.replace("/data/tokens", str(out)) for word in container["command"]]
    for number in in_any_order():
        run(*command, JOB_COMPLETION_INDEX=str(number))
    run("shardmill", "merge", out)
    assert contents(out) == expected


@pytest.mark.skipif(not shutil.which("parallel"), reason="GNU parallel is not installed")
def test_parallel(tmp_path: Path, source: Path, expected: dict[str, bytes], run: Callable[..., str]) -> None:
    run(EXAMPLES / "parallel.sh", tmp_path / "out", PARTS, source, *FLAGS)
    assert contents(tmp_path / "out") == expected
    run(EXAMPLES / "parallel.sh", tmp_path / "out", PARTS, source, *FLAGS)
    assert contents(tmp_path / "out") == expected
