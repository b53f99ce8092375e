"""Parquet from a hub against the same files on disk, with a latency on every request, and a row group too large.

The hub is `tests/hub.py` in a process of its own, on the same cores as the run that it serves.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import results
from benchmarks.containers import CACHE
from benchmarks.corpus import Corpus
from benchmarks.environment import ours
from benchmarks.measure import COMMAND, run

ROOT = Path(__file__).parent.parent
FILES = 4
TIGHT = "400MB"
"""Less than the row group of the larger file holds; once only, since what matters here is memory."""


def measure(
    corpus: Corpus, *, latency: float, workers: int, memory: str, repeat: int, timeout: float
) -> dict[str, Any]:
    """Runs on disk and from the hub in turns, so that a busy machine is as bad for one as for the other."""
    folder = CACHE / f"remote-{corpus.key}"
    size = _build(corpus, folder)
    rows = []
    with _hub(folder, latency) as url:
        environment = {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}
        cells = [(name, memory) for name in ("files", "one-group")] + [("one-group", TIGHT)]
        for name, allowed in cells:
            there = {"disk": str(folder / name), "hub": f"hf://datasets/local/files/{name}"}
            made = {
                where: {"data": name, "where": where, "memory": allowed, "seconds": [], "peaks": [], "others": []}
                for where in there
            }
            for _ in range(1 if allowed == TIGHT else repeat):
                for where, source in there.items():
                    _measure(source, made[where], environment, workers, timeout)
            for row in made.values():
                rows.append(row | {"bytes": size})
                print(_line(rows[-1]), file=sys.stderr, flush=True)
    return results.frame(
        "remote",
        versions={"shardmill": ours()},
        text={"description": corpus.describe(size), "bytes": size},
        workers=workers,
        memory=memory,
        latency=latency,
        rows=rows,
    )


def _measure(source: str, row: dict[str, Any], environment: dict[str, str], workers: int, timeout: float) -> None:
    out = CACHE / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [*COMMAND, "prepare", source, "-o", str(out), "--memory", row["memory"], "--workers", str(workers)]
    done = run([*command, "--name", "web", "-q"], timeout=timeout, env=environment)
    if done.failure:
        raise SystemExit(f"error: {source}: {done.failure}")
    row["seconds"].append(done.seconds)
    row["peaks"].append(done.peak)
    row["others"].append(round(done.others, 2))
    shutil.rmtree(out, ignore_errors=True)


def _build(corpus: Corpus, folder: Path) -> int:
    """Files with other columns beside the text, as web datasets have them; and one file that is one row group."""
    told = folder / "bytes"
    if told.exists():
        return int(told.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    (folder / "one-group").mkdir()
    texts = list(corpus.documents())
    share = -(-len(texts) // FILES)
    for i in range(FILES):
        part = texts[i * share : (i + 1) * share]
        pq.write_table(_table(part), folder / "files" / f"{i:03}.parquet", row_group_size=1000, compression="snappy")
    pq.write_table(_table(texts), folder / "one-group" / "all.parquet", row_group_size=len(texts), compression="snappy")
    size = sum(len(text.encode()) for text in texts)
    told.write_text(str(size))
    return size


def _table(texts: list[str]) -> pa.Table:
    numbers = range(len(texts))
    return pa.table(
        {
            "id": [f"<urn:uuid:{i:032x}>" for i in numbers],
            "text": texts,
            "url": [f"https://site-{i % 977}.example/page/{i}.html" for i in numbers],
            "score": [i * 0.5 for i in numbers],
        }
    )


@contextmanager
def _hub(folder: Path, latency: float) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.hub", str(folder), "--latency", str(latency)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            (url,) = islice(server.stdout, 1)
            yield url.strip()
        finally:
            assert server.stdin is not None
            server.stdin.close()  # it ends with its input


def _speed(row: dict[str, Any]) -> float:
    return float(row["bytes"] / 1e6 / min(row["seconds"]))


def _line(row: dict[str, Any]) -> str:
    peak = max(row["peaks"]) / 1e6
    return f"{row['data']:10} {row['where']:5} {row['memory']:6} {_speed(row):7.1f} MB/s {peak:6.0f} MB resident"


def table(result: dict[str, Any]) -> str:
    """Markdown: each kind of file from disk and from the hub, and the share of the speed that is left."""
    parts = [
        results.heading(result),
        f"Every request is answered after {result['latency'] * 1000:.0f} ms. Time is that of the whole process, the "
        "fastest of the repeats; the hub runs on the same cores.",
        "",
        "| parquet | budget | from | time | MB/s | of disk | peak memory |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    names = {"files": f"{FILES} files, row groups of 1,000", "one-group": "one row group"}
    disk: dict[str, Any] = {}
    for row in result["rows"]:
        disk = row if row["where"] == "disk" else disk
        parts.append(
            f"| {names[row['data']]} | {row['memory']} | {row['where']} | {min(row['seconds']):.2f} s "
            f"| {_speed(row):,.0f} | {_speed(row) / _speed(disk):.2f} | {max(row['peaks']) / 1e6:,.0f} MB |"
        )
    return "\n".join(parts)
