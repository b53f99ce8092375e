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
from shardmill.cluster.processes import BUSY_WORKERS

RATE = 190e6
"""Bytes of text that one worker encodes in a second: a slow one, of two threads that share a core."""
BYTES_A_TOKEN = 4.35
CONTAINERS = ("jsonl", "text", "parquet-zstd", "jsonl.zst", "jsonl.gz")
FILES = 16
"""Files that a container is read from. They are the same one: an encoder that sleeps gains nothing from that."""
WORKERS = (1, 2, 4, 8, 16, 32)
THREADS = {"main": "MainThread", "feeder": "shardmill-feeder", "hash and sync": "shardmill-checkpoints"}
"""Threads of which a process has one, by what they do."""
_WORKER = "workers without the encoder"
_INTERVAL = 0.02
_TOLD = "SHARDMILL_BENCHMARK_THREADS"
_ALONE = "SHARDMILL_BENCHMARK_ONE_PROCESS"


def measure(corpus: Corpus, *, workers: list[int], memory: str, timeout: float, only: list[str]) -> dict[str, Any]:
    """Run every container with every number of workers in one process, and in several where shardmill would do that."""
    rows = []
    one_file = Corpus(corpus.kind, (corpus.size or 0) // FILES, corpus.source)
    for container in [one for one in CONTAINERS if not only or one in only]:
        text = build(one_file, container)
        text.warm()
        folder = _linked(text.path)
        for count in workers:
            for alone in (True, False):
                if not alone and count <= max(BUSY_WORKERS.values()):
                    continue
                size = FILES * text.bytes
                row = {"container": container, "workers": count, "bytes": size,
                       **_run(folder, container, count, memory, timeout, alone=alone)}  # fmt: skip
                speed, processes = size / row["seconds"] / 1e6, row["processes"]
                print(f"{container:14} {count:3} workers, {processes} processes {speed:6,.0f} MB/s", file=sys.stderr)
                rows.append(row)
    return results.frame(
        "cores",
        text={"description": f"{FILES} times a file of {one_file.describe(text.bytes)}", "bytes": rows[0]["bytes"]},
        versions=ours(),
        workers="1 to 32",
        memory=memory,
        rate=RATE,
        rows=rows,
    )


def _linked(path: Path) -> Path:
    """A folder that holds a file under several names."""
    folder = path.parent / "many"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for i in range(FILES):
        os.link(path, folder / f"{i:02}-{path.name}")
    return folder


def _run(path: Path, container: str, workers: int, memory: str, timeout: float, *, alone: bool) -> dict[str, Any]:
    """`alone`: in one process, whatever the number of workers."""
    out, told = CACHE / "out", CACHE / "threads"
    for folder in (out, told):
        shutil.rmtree(folder, ignore_errors=True)
    told.mkdir(parents=True)
    command = [*COMMAND, "prepare", str(path), "-o", str(out), "-f", "shards", "--workers", str(workers), "-q"]
    separator = ["--separator", SEPARATOR] if container == "text" else []
    here = Path(__file__).parent
    paths = [str(here / "sleeping"), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), _TOLD: str(told), **({_ALONE: "1"} if alone else {})}
    done = run([*command, "--memory", memory, *separator], timeout=timeout, env=environment)
    if done.failure:
        raise SystemExit(f"error: {path}: {done.failure}")
    shutil.rmtree(out)
    processes = [json.loads(one.read_text()) for one in told.iterdir()]
    began = min(process["began"] for process in processes if process["encoded"])
    threads = {title: sum(process["threads"][title] for process in processes) for title in (*THREADS, _WORKER)}
    return {
        "seconds": max(process["ended"] for process in processes) - began,
        "processes": len(processes),
        "peak": done.peak,
        "others": [round(done.others, 2)],
        "threads": threads,
    }


def sleep_instead() -> None:
    """Make the encoder of this process sleep; at its end, the CPU time of its threads goes to the folder `_TOLD`."""
    from shardmill.cluster import processes
    from shardmill.tokens.backends import CoreBackend

    if _ALONE in os.environ:
        processes.BUSY_WORKERS = dict.fromkeys(processes.BUSY_WORKERS, sys.maxsize)

    def encode(
        self: Any, data: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], gap: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        threads.begin()
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
        threads.watch(Path(os.environ[_TOLD]) / f"{os.getpid()}.json")


class _Threads:
    """The CPU seconds of each thread of this process since it first encoded, asked for until it ends."""

    def __init__(self) -> None:
        self.encoder = 0.0
        """CPU seconds of the simulated encoder itself."""
        self._seconds: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._began, self._encoded = time.monotonic(), False

    def begin(self) -> None:
        """Leave out what was before: a start takes a fifth of a second, whatever the size of the text."""
        if not self._encoded:
            self._encoded = True
            self._look()
            self._began, self._before = time.monotonic(), dict(self._seconds)

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
        for thread in threading.enumerate():
            number = thread.native_id
            try:
                nanoseconds = int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0])
            except OSError:
                continue  # it has ended
            if number is not None:
                self._seconds[number] = nanoseconds / 1e9
                self._names[number] = thread.name

    def _tell(self, told: Path) -> None:
        self._look()
        sums: dict[str, float] = defaultdict(float)
        for number, name in self._names.items():
            sums[name.split("_")[0]] += self._seconds[number] - self._before.get(number, 0.0)
        found = {title: sums.get(name, 0.0) for title, name in THREADS.items()}
        found[_WORKER] = sums.get("shardmill-worker", 0.0) - self.encoder
        ended = time.monotonic()
        told.write_text(json.dumps({"began": self._began, "ended": ended, "encoded": self._encoded, "threads": found}))


def table(result: dict[str, Any]) -> str:
    """Markdown: throughput by workers, and CPU seconds by thread."""
    rows = result["rows"]
    counts = sorted({row["workers"] for row in rows})
    containers = list(dict.fromkeys(row["container"] for row in rows))
    speed = {(row["container"], row["workers"], row["processes"] > 1): row["bytes"] / row["seconds"] for row in rows}
    lines = [
        results.heading(result),
        f"Simulated: a worker's encoder sleeps {1e9 / result['rate']:.1f} s for each GB of text and takes no core. "
        "The start of a run, before its first chunk is encoded, is left out.",
        "",
        "| MB/s with so many workers | " + " | ".join(map(str, counts)) + " | cores kept busy |",
        "|---|" + "---:|" * (len(counts) + 1),
    ]
    for container in containers:
        for several in (False, True):
            speeds = [speed.get((container, count, several), 0.0) for count in counts]
            if any(speeds):
                shown = [f"{one / 1e6:,.0f}" if one else "" for one in speeds] + [f"{max(speeds) / result['rate']:.1f}"]
                lines.append(f"| {container}{', several processes' * several} | " + " | ".join(shown) + " |")
    titles = list(rows[0]["threads"])
    bound = "all | GB/s of one process, at most | cores"
    lines += ["", "| CPU seconds for each GB of text, one process | " + " | ".join(titles) + f" | {bound} |"]
    lines += ["|---|" + "---:|" * (len(titles) + 3)]
    for container in containers:
        row = min((row for row in rows if row["container"] == container), key=lambda row: abs(row["workers"] - 8))
        each = [row["threads"][title] / row["bytes"] * 1e9 for title in titles]
        # A process has one of each thread but the workers, so the busiest of them limits it.
        most = 1 / max(each[: len(THREADS)])
        shown = [f"{one:.2f}" for one in [*each, sum(each)]] + [f"{most:.1f}", f"{most * 1e9 / result['rate']:.0f}"]
        lines.append(f"| {container} | " + " | ".join(shown) + " |")
    return "\n".join(lines)
