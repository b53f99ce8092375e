"""The simulation of many cores: the encoder sleeps, and everything else is real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.cores import THREADS

ROOT = Path(__file__).parent.parent


def test_a_run_whose_encoder_sleeps_says_what_each_thread_took(tmp_path: Path) -> None:
    size = ["--size", "300kB", "--workers", "1,9", "--only", "jsonl.zst", "--memory", "1GB"]
    command = [sys.executable, "-m", "benchmarks", "cores", *size, "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("*-cores.json")
    rows = json.loads(kept.read_text())["rows"]
    assert [row["workers"] for row in rows] == [1, 9, 9]
    for row in rows:
        assert row["bytes"] >= 300_000 and row["processes"] == 1
        assert set(row["threads"]) == {*THREADS, "workers without the encoder"}
        assert row["threads"]["main"] > 0
    assert "| jsonl.zst |" in done.stdout
