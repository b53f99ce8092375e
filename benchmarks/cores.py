"""How many cores one run keeps busy, by a simulation: the encoder only sleeps, everything else is real.

A worker whose encoder sleeps takes no core, so a machine with two cores shows what the rest of shardmill could feed and
write with thirty-two. The process itself says how much CPU time each of its threads took.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.containers import CACHE, build
from benchmarks.corpus import SEPARATOR, Corpus
from benchmarks.environment import ours
from benchmarks.measure import COMMAND, run

RATE = 190e6
"""Bytes of text that one worker encodes in a second, as it does on this project's machines."""
BYTES_A_TOKEN = 4.35
CONTAINERS = ("jsonl", "text", "parquet-zstd", "16-jsonl.zst", "16-jsonl.gz")
WORKERS = (1, 2, 4, 8, 16, 32)
THREADS = {"main": "MainThread", "feeder": "shardmill-feeder", "hash and sync": "shardmill-checkpoints"}
"""Threads of which a run has one, by what they do."""
_INTERVAL = 0.02
_TOLD = "SHARDMILL_BENCHMARK_THREADS"


def measure(corpus: Corpus, *, workers: list[int], memory: str, timeout: float, only: list[str]) -> dict[str, Any]:
    """Run every container with every number of workers."""
    rows = []
    for container in [one for one in CONTAINERS if not only or one in only]:
        text = build(corpus, container)
        text.warm()
        for count in workers:
            row = {"container": container, "workers": count, "bytes": text.bytes, **_run(text.path, container, count,
                   memory, timeout)}  # fmt: skip
            print(f"{container:14} {count:3} workers {row['bytes'] / row['seconds'] / 1e6:6,.0f} MB/s", file=sys.stderr)
            rows.append(row)
    return results.frame(
        "cores",
        text={"description": corpus.describe(rows[0]["bytes"]), "bytes": rows[0]["bytes"]},
        versions=ours(),
        workers="1 to 32",
        memory=memory,
        rate=RATE,
        rows=rows,
    )


def _run(path: Path, container: str, workers: int, memory: str, timeout: float) -> dict[str, Any]:
    out, told = CACHE / "out", CACHE / "threads.json"
    shutil.rmtree(out, ignore_errors=True)
    told.unlink(missing_ok=True)
    command = [*COMMAND, "prepare", str(path), "-o", str(out), "-f", "shards", "--workers", str(workers), "-q"]
    separator = ["--separator", SEPARATOR] if container == "text" else []
    here = Path(__file__).parent
    environment = {"PYTHONPATH": os.pathsep.join([str(here / "sleeping"), str(here.parent)]), _TOLD: str(told)}
    done = run([*command, "--memory", memory, *separator], timeout=timeout, env=environment)
    if done.failure:
        raise SystemExit(f"error: {path}: {done.failure}")
    shutil.rmtree(out)
    threads = json.loads(told.read_text())
    return {"seconds": threads.pop("seconds"), "peak": done.peak, "others": [round(done.others, 2)], "threads": threads}


def sleep_instead() -> None:
    """Make the encoder of this process sleep; at its end, its threads' CPU time goes to the file named by `_TOLD`."""
    from shardmill.tokens.backends import CoreBackend

    def encode(
        self: Any, data: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], gap: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        began = time.thread_time()
        lengths = ((np.diff(offsets) - gap) / BYTES_A_TOKEN).astype(np.int64) + 1
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths + 1)])
        ids = np.full(int(bounds[-1]), 17, self._encoder.dtype)
        threads.encoder += time.thread_time() - began
        time.sleep(float(offsets[-1] - offsets[0]) / RATE)
        return ids, bounds

    threads = _Threads()
    CoreBackend._encode = encode  # type: ignore[method-assign]
    if _TOLD in os.environ:
        threads.watch(Path(os.environ.pop(_TOLD)))  # not for the processes that this one starts


class _Threads:
    """The CPU seconds of each thread of this process, asked for until it ends."""

    def __init__(self) -> None:
        self.encoder = 0.0
        """CPU seconds of the simulated encoder itself."""
        self._seconds: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._began = time.monotonic()

    def watch(self, told: Path) -> None:
        # A command ends by `os._exit`, which runs nothing that was registered; so the exit is wrapped as well.
        leave = os._exit

        def leaving(status: int) -> None:
            self._tell(told)
            leave(status)

        os._exit = leaving  # type: ignore[assignment]
        atexit.register(self._tell, told)
        threading.Thread(target=self._ask, daemon=True, name="watch").start()

    def _ask(self) -> None:
        while True:
            self._look()
            time.sleep(_INTERVAL)

    def _look(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        for thread in threading.enumerate():
            number = thread.native_id
            try:
                fields = Path(f"/proc/self/task/{number}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if number is not None:
                self._seconds[number] = (int(fields[11]) + int(fields[12])) / tick
                self._names[number] = thread.name

    def _tell(self, told: Path) -> None:
        self._look()
        sums: dict[str, float] = defaultdict(float)
        for number, name in self._names.items():
            sums[name.split("_")[0]] += self._seconds[number]
        found = {title: sums.get(name, 0.0) for title, name in THREADS.items()}
        found["workers without the encoder"] = sums.get("shardmill-worker", 0.0) - self.encoder
        told.write_text(json.dumps({"seconds": time.monotonic() - self._began, **found}))


def table(result: dict[str, Any]) -> str:
    """Markdown: throughput by workers, and CPU seconds by thread."""
    rows = result["rows"]
    counts = sorted({row["workers"] for row in rows})
    containers = list(dict.fromkeys(row["container"] for row in rows))
    speed = {(row["container"], row["workers"]): row["bytes"] / row["seconds"] for row in rows}
    lines = [
        results.heading(result),
        f"Simulated: a worker's encoder sleeps {1e9 / result['rate']:.1f} s for each GB of text and takes no core.",
        "",
        "| MB/s with so many workers | " + " | ".join(map(str, counts)) + " | cores kept busy |",
        "|---|" + "---:|" * (len(counts) + 1),
    ]
    for container in containers:
        speeds = [speed[container, count] for count in counts]
        busy = max(speeds) / result["rate"]
        lines.append(f"| {container} | " + " | ".join(f"{one / 1e6:,.0f}" for one in speeds) + f" | {busy:.1f} |")
    titles = list(rows[0]["threads"])
    lines += ["", "| CPU seconds for each GB of text | " + " | ".join(titles) + " | all |"]
    lines += ["|---|" + "---:|" * (len(titles) + 1)]
    for container in containers:
        row = next(row for row in rows if row["container"] == container and row["workers"] == min(counts, key=_usual))
        each = [row["threads"][title] / row["bytes"] * 1e9 for title in titles]
        lines.append(f"| {container} | " + " | ".join(f"{one:.2f}" for one in [*each, sum(each)]) + " |")
    return "\n".join(lines)


def _usual(count: int) -> int:
    """How far a number of workers is from what the table of threads is made with."""
    return abs(count - 8)
