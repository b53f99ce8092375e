"""Datasets in another order or format, in turns with `cp` of the same files: speed, CPU time, peak memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import shardmill
from benchmarks import results
from benchmarks.environment import ours
from benchmarks.measure import COMMAND, children, run

BLOCK_SIZE = 2049


def measure(folder: Path, *, memory: str, repeat: int, timeout: float, only: list[str]) -> dict[str, Any]:
    """Results are written to a temporary folder beside the dataset, so that all of them use the same disk."""
    data = shardmill.open(folder)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=folder.resolve().parent, prefix="arrange-") as made:
        out = Path(made) / "out"
        commands = {
            "cp": ["cp", "-r", str(folder), str(out)],
            "convert": [*COMMAND, "convert", str(folder), "-o", str(out), "-f", "shards", "--memory", memory],
            "shuffle": [*COMMAND, "shuffle", str(folder), "-o", str(out), "--memory", memory],
            # One dataset: its keys and its runs take the same work as those of several.
            "mix": [*COMMAND, "mix", f"{folder}:1", "-o", str(out), "--memory", memory],
            "pack": [
                *[*COMMAND, "pack", str(folder), "-o", str(out), "--block-size", str(BLOCK_SIZE)],
                *["--memory", memory],
            ],
        }
        for _ in range(repeat):
            for name, command in commands.items():
                if only and name not in ("cp", *only):
                    continue
                row = rows.setdefault(
                    name, {"name": name, "seconds": [], "cpu": [], "peaks": [], "others": [], "failure": None}
                )
                before = children()
                done = run(command, timeout=timeout)
                row["cpu"].append(children() - before)
                row["seconds"].append(done.seconds)
                row["peaks"].append(done.peak)
                row["others"].append(done.others)
                row["failure"] = row["failure"] or done.failure
                shutil.rmtree(out, ignore_errors=True)
    text = {
        "description": "a finished dataset",
        "bytes": sum(len(data[split]) * data.dtype.itemsize for split in data),
        "documents": sum(data[split].described["documents"] for split in data),
    }
    versions = {"shardmill": ours()}
    return results.frame("arrange", versions=versions, text=text, memory=memory, workers=1, rows=list(rows.values()))


def table(result: dict[str, Any]) -> str:
    """The fastest run of each; a ratio compares it with the fastest `cp`."""
    copied = min(result["rows"][0]["seconds"])
    lines = [
        "| | seconds | speed of `cp` = 1 | CPU seconds | peak, MB |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        if row["failure"]:
            lines.append(f"| {row['name']} | failed: {row['failure']} | | | |")
            continue
        seconds = min(row["seconds"])
        lines.append(
            f"| {row['name']} | {seconds:.1f} | {copied / seconds:.2f} | {min(row['cpu']):.1f} "
            f"| {max(row['peaks']) / 1e6:.0f} |"
        )
    return "\n".join([results.heading(result), "", *lines])
