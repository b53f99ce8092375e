"""Time and peak memory against size, workers, budget, container, kind of text, and number of files and documents."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.containers import CACHE, Text, build
from benchmarks.corpus import KINDS, SEPARATOR, Corpus
from benchmarks.environment import ours
from benchmarks.measure import run

COMMAND = [sys.executable, "-c", "import sys; from shardmill.cli import main; sys.exit(main())"]
CONTAINERS = ("text", "jsonl", "parquet-snappy", "parquet-zstd", "jsonl.gz", "jsonl.zst")
SHAPES = ("jsonl", "tiny-documents", "huge-documents", "plain", "tiny-files")
BUDGETS = ("256MB", "384MB", "512MB", "1GB", "2GB")


@dataclass(frozen=True)
class Cell:
    """One run of the command: the whole process is on the clock, imports and all."""

    question: str
    kind: str
    size: int
    container: str
    workers: int
    memory: str


def cells(sizes: list[int], *, size: int, workers: int, memory: str) -> list[Cell]:
    """`sizes` for the question of size; `size` for all others."""
    usual = Cell("", "english", size, "text", workers, memory)
    change = dataclasses.replace
    return [
        *(change(usual, question="size", size=s, workers=w) for s, w in itertools.product(sizes, sorted({1, workers}))),
        *(change(usual, question="budget", memory=m) for m in BUDGETS),
        *(change(usual, question="container", container=c) for c in CONTAINERS),
        *(change(usual, question="kind", kind=k, container="jsonl") for k in KINDS),
        *(change(usual, question="shape", container=s) for s in SHAPES),
        change(usual, question="start", size=1_000_000),
    ]


def grow(chosen: list[Cell], corpus_input: Path | None, *, repeat: int, timeout: float) -> dict[str, Any]:
    """Run every cell `repeat` times; text larger than a gigabyte is deleted after its last use."""
    rows = []
    for i, cell in enumerate(chosen):
        corpus = Corpus(cell.kind, cell.size, corpus_input if cell.kind == "english" else None)
        text = build(corpus, cell.container)
        row = _row(cell, text)
        for _ in range(repeat):
            _measure(cell, text, row, timeout)
        rows.append(row)
        print(_line(row), file=sys.stderr, flush=True)
        needed = {(later.kind, later.size, later.container) for later in chosen[i + 1 :]}
        if cell.size > 1_000_000_000 and (cell.kind, cell.size, cell.container) not in needed:
            text.delete()
    largest = max(rows, key=lambda row: row["bytes"])
    description = Corpus("english", None, corpus_input).describe(largest["bytes"])
    return results.frame(
        "growth",
        versions={"shardmill": ours()},
        text={"description": description, "bytes": largest["bytes"]},
        workers=max(cell.workers for cell in chosen),
        memory=chosen[0].memory,
        rows=rows,
    )


def _row(cell: Cell, text: Text) -> dict[str, Any]:
    return {
        **dataclasses.asdict(cell),
        "bytes": text.bytes,
        "documents": text.documents,
        "seconds": [],
        "peaks": [],
        "others": [],
        "failure": None,
    }


def _measure(cell: Cell, text: Text, row: dict[str, Any], timeout: float) -> None:
    if row["failure"]:
        return
    out = CACHE / "out"
    shutil.rmtree(out, ignore_errors=True)
    text.warm()
    command = [*COMMAND, "prepare", str(text.path), "-o", str(out), "--memory", cell.memory]
    command += ["--workers", str(cell.workers), "-q", *(["--separator", SEPARATOR] if cell.container == "text" else [])]
    done = run(command, timeout=timeout)
    row["failure"] = done.failure
    if done.failure is None:
        row["seconds"].append(done.seconds)
        row["peaks"].append(done.peak)
        row["others"].append(round(done.others, 2))
    shutil.rmtree(out, ignore_errors=True)


def _speed(row: dict[str, Any]) -> float:
    return float(row["bytes"] / 1e6 / min(row["seconds"]))


def _line(row: dict[str, Any]) -> str:
    what = f"{row['question']:10} {row['kind']:8} {row['container']:15} {row['bytes'] / 1e6:9,.0f} MB"
    said = row["failure"] or f"{_speed(row):7.1f} MB/s {max(row['peaks']) / 1e6:6.0f} MB resident"
    return f"{what} {row['workers']} workers {row['memory']:6} {said}"


def table(result: dict[str, Any]) -> str:
    """A Markdown table for each question."""
    parts = [results.heading(result), "", NOTES]
    for question, rows in itertools.groupby(result["rows"], key=lambda row: row["question"]):
        parts += [
            f"\n### {TITLES[question]}\n",
            "| text | container | size | workers | budget | time | MB/s | peak memory |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in rows:
            line = f"| {row['kind']} | {row['container']} | {row['bytes'] / 1e6:,.0f} MB "
            line += f"| {row['workers']} | {row['memory']} "
            if not row["failure"]:
                line += f"| {min(row['seconds']):.2f} s | {_speed(row):,.0f} | {max(row['peaks']) / 1e6:,.0f} MB |"
            else:
                line += f"| {row['failure']} | – | – |"
            parts.append(line)
    return "\n".join(parts)


TITLES = {
    "size": "Size and workers",
    "budget": "Memory budget",
    "container": "Container",
    "kind": "Kind of text",
    "shape": "Few and many documents, one file and many",
    "start": "From start to end on a small file",
}
NOTES = (
    "Time is that of the whole process, imports included; the fastest of the repeats. Peak memory is that resident in "
    "the process tree, sampled every 50 ms; the highest of the repeats."
)


def series(result: dict[str, Any], figure: str) -> dict[str, list[tuple[float, float]]]:
    """(gigabytes, MB/s or resident MB) for each number of workers, for the plots."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in result["rows"]:
        if row["question"] == "size" and not row["failure"]:
            y = _speed(row) if figure == "speed" else max(row["peaks"]) / 1e6
            name = "1 worker" if row["workers"] == 1 else f"{row['workers']} workers"
            lines.setdefault(name, []).append((row["bytes"] / 1e9, y))
    return lines
