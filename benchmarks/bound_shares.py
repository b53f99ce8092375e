"""From the steps to the bounds: what each container needs, the least time for it, and the share that is reached."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import results

BAR, RUN = "bar", "shardmill"
PAGE = Path(__file__).parents[1] / "docs" / "bounds.md"


class Need(NamedTuple):
    """A step that a container cannot do without."""

    step: str
    measured: str = ""
    """The container whose file it was measured on, where that matters."""
    thread: str = "worker"
    """Which thread of a run does it; there are several workers and one of each other."""
    each: bool = False
    """It takes more with more workers, each of which begins with an engine of its own."""


def _tokens(text: str) -> tuple[Need, ...]:
    return (
        Need("load", each=True),
        Need("engine", text, each=True),
        Need("narrow"),
        Need("write", thread="writer"),
        Need("sync", thread="keeper"),
        Need("hash", thread="keeper"),
    )


_LINES = (Need("validate", "jsonl"), Need("parse", "jsonl"), *_tokens("jsonl"))

NEEDS: dict[str, tuple[Need, ...]] = {
    "text": (Need("read", "text"), Need("find", "text"), Need("validate", "text"), *_tokens("text")),
    "plain": (Need("read", "plain"), Need("validate", "plain"), *_tokens("plain")),
    "jsonl": (Need("read", "jsonl"), *_LINES),
    "parquet-zstd": (
        Need("read", "parquet-zstd"),
        Need("decode", "parquet-zstd"),
        Need("validate", "text"),
        *_tokens("jsonl"),
    ),
    **{
        name: (Need("read", name, "feeder"), Need("decompress", name, "feeder"), *_LINES)
        for name in ("jsonl.zst", "jsonl.gz")
    },
}
SCALED = ("text", "plain", "jsonl")
"""Containers that are also run with one worker."""

TITLES = {
    "text": "text with separators",
    "plain": "text as it is",
    "jsonl": "JSON Lines",
    "parquet-zstd": "parquet (zstd)",
    "jsonl.zst": "`.jsonl.zst`",
    "jsonl.gz": "`.jsonl.gz`",
}
STEPS = {
    BAR: "the bar: cold engines over documents in memory, through awkward arrays as in `compare`",
    "engine": "cold engines, called as shardmill does: all rows one text, marks or separators between them",
    "read": "`pread` from the page cache",
    "validate": "UTF-8 validation (pyarrow)",
    "find": "finding separators (numpy)",
    "parse": "JSON parsing (pyarrow)",
    "decode": "parquet decoding (pyarrow)",
    "decompress": "decompression (pyarrow's zstd, isal's gzip)",
    "narrow": "ids from four bytes to two (numpy)",
    "write": "writing the token file to the page cache",
    "sync": "`fdatasync` of it",
    "hash": "SHA-256 of it",
    "load": "making the engines",
    "start": "starting Python and importing what a run needs (before the clock of a run starts)",
}
COLUMNS = {
    "engines made": ("load",),
    "read": ("read",),
    "decompress": ("decompress",),
    "find, parse, decode": ("find", "parse", "decode"),
    "validate": ("validate",),
    "engine": ("engine",),
    "narrow": ("narrow",),
    "write, sync": ("write", "sync"),
    "SHA-256": ("hash",),
}


def cpu(result: Mapping[str, Any], step: str, container: str = "", workers: int = 0) -> float:
    """CPU seconds of the cheapest repeat."""
    return float(min(_row(result, step, container, workers)["cpu"]))


def seconds(result: Mapping[str, Any], step: str, container: str = "", workers: int = 0) -> float:
    """Seconds of the fastest repeat."""
    return float(min(_row(result, step, container, workers)["seconds"]))


def _row(result: Mapping[str, Any], step: str, container: str, workers: int) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = result["rows"]
    (row,) = [r for r in rows if (r["step"], r["container"], r["workers"]) == (step, container, workers)]
    return row


def steps_of(result: Mapping[str, Any], container: str, workers: int) -> dict[Need, float]:
    """CPU seconds of each step that the container needs."""
    return {need: cpu(result, need.step, need.measured, workers if need.each else 0) for need in NEEDS[container]}


def least_seconds(steps: Mapping[Need, float], workers: int, cores: int) -> float:
    """The least time for these steps, when no core and no thread ever waits for another.

    All cores share all of it, the workers share theirs, and what has one thread cannot be faster than that.
    """
    threads: defaultdict[str, float] = defaultdict(float)
    for need, spent in steps.items():
        threads[need.thread] += spent
    alone = [spent for thread, spent in threads.items() if thread != "worker"]
    return max(sum(threads.values()) / cores, threads["worker"] / workers, *alone)


@dataclass(frozen=True)
class Bound:
    """One container: what its steps allow, and what shardmill reaches. Shares are of the bar's speed."""

    needed: float
    """CPU seconds of the necessary steps."""
    least: float
    """Seconds, if nothing else cost anything and no core ever waited."""
    bound: float
    """The share that this would be."""
    spent: float
    """CPU seconds that shardmill takes."""
    took: float
    """Seconds that it takes."""
    share_of_cpu: float
    share_of_time: float
    busy: float
    """The share of all cores' time that it uses."""

    @property
    def beyond(self) -> float:
        """CPU seconds that shardmill takes for anything else than the necessary steps."""
        return self.spent - self.needed


def bound(result: Mapping[str, Any], container: str) -> Bound:
    workers, cores = result["workers"], result["machine"]["cores"]
    steps = steps_of(result, container, workers)
    least = least_seconds(steps, workers, cores)
    bar = cpu(result, BAR, "jsonl", workers)
    spent, took = cpu(result, RUN, container, workers), seconds(result, RUN, container, workers)
    return Bound(
        needed=sum(steps.values()),
        least=least,
        bound=bar / min(workers, cores) / least,
        spent=spent,
        took=took,
        share_of_cpu=bar / spent,
        share_of_time=seconds(result, BAR, "jsonl", workers) / took,
        busy=spent / cores / took,
    )


@dataclass(frozen=True)
class Gain:
    """How much faster several workers are than one, which leaves the other cores to whatever runs beside it."""

    by_steps: float
    """If nothing but the necessary steps cost anything."""
    by_cpu: float
    """If the run with several workers took the CPU that it takes, and no core ever waited."""
    reached: float


def gain(result: Mapping[str, Any], container: str) -> Gain:
    workers, cores = result["workers"], result["machine"]["cores"]
    one, several = (least_seconds(steps_of(result, container, n), n, cores) for n in (1, workers))
    took = seconds(result, RUN, container, 1)
    return Gain(
        by_steps=one / several,
        by_cpu=took / (cpu(result, RUN, container, workers) / cores),
        reached=took / seconds(result, RUN, container, workers),
    )


def table(result: Mapping[str, Any]) -> str:
    """All of it as Markdown."""
    parts = [results.heading(dict(result)), "", NOTES, *_steps(result), *_needs(result), *_bounds(result)]
    if result["workers"] > 1:
        parts += _gains(result)
    return "\n".join(parts)


def _steps(result: Mapping[str, Any]) -> list[str]:
    lines = ["", "### Each step alone", "", "| step | text | threads | CPU | time |", "|---|---|---:|---:|---:|"]
    for row in result["rows"]:
        if row["step"] != RUN:
            head = f"| {STEPS[row['step']]} | {TITLES.get(row['container'], '')} | {row['workers'] or 1} "
            lines.append(f"{head}| {min(row['cpu']):.2f} s | {min(row['seconds']):.2f} s |")
    return lines


def _needs(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        "### What each container needs, in seconds of CPU",
        "",
        f"| container | {' | '.join(COLUMNS)} | sum |",
        f"|---|{'---:|' * (len(COLUMNS) + 1)}",
    ]
    for container in NEEDS:
        steps = steps_of(result, container, result["workers"])
        figures = []
        for names in COLUMNS.values():
            found = [spent for need, spent in steps.items() if need.step in names]
            figures.append(f"{sum(found):.2f}" if found else "–")
        lines.append(f"| {TITLES[container]} | {' | '.join(figures)} | {sum(steps.values()):.2f} |")
    return lines


def _bounds(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        "### The bound, and what shardmill reaches",
        "",
        "| container | CPU of the steps | bound | shardmill's CPU | share of CPU | time | MB/s | share of time "
        "| cores busy | CPU beyond the steps |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for container in NEEDS:
        found = bound(result, container)
        lines.append(
            f"| {TITLES[container]} | {found.needed:.2f} s | {found.bound:.2f} | {found.spent:.2f} s "
            f"| {found.share_of_cpu:.2f} | {found.took:.2f} s | {result['text']['bytes'] / 1e6 / found.took:,.0f} "
            f"| {found.share_of_time:.2f} | {found.busy:.0%} | {found.beyond:.2f} s |"
        )
    return lines


def _gains(result: Mapping[str, Any]) -> list[str]:
    workers = result["workers"]
    lines = [
        "",
        f"### {workers} workers against one",
        "",
        GAINS,
        "",
        "| container | by the steps | by shardmill's CPU | measured | time of one |",
        "|---|---:|---:|---:|---:|",
    ]
    for container in SCALED:
        found = gain(result, container)
        one = seconds(result, RUN, container, 1)
        lines.append(
            f"| {TITLES[container]} | {found.by_steps:.2f} | {found.by_cpu:.2f} | {found.reached:.2f} | {one:.2f} s |"
        )
    return lines


NOTES = (
    "Every figure is the best of the repeats, for CPU and time separately. A step's CPU time is that of its library "
    "for the whole text, alone and with its input in memory. It is a minimum, because in a run the cores share caches "
    "and memory. The bound is the share of the bar's speed that would be reached if only the steps took time and "
    "no core ever waited. It can exceed 1 if the engine is faster when called as shardmill calls it. The share of "
    "CPU is the bar's CPU time divided by shardmill's. The share of time is that of `compare`, whose clock starts "
    "after imports."
)
GAINS = (
    "The gain is less than the number of workers, because a single worker leaves the other cores to the feeder, the "
    "writer and the hash, and because each worker fills its own cache. By the steps: the minimum time of the steps "
    "with one worker, divided by that with all. By shardmill's CPU: the time of one worker, divided by the CPU time of "
    "the run with all workers, spread evenly over the cores."
)


def page(result: Mapping[str, Any], kept: Path, source: Path | None, where: Path = PAGE) -> str:
    """The page for the docs; `kept` is where the result lies."""
    link = Path(os.path.relpath(kept, where.parent)).as_posix()
    command = f"python -m benchmarks bounds{f' {source.name}' if source else ''}"
    head = f"From `{command}` ([result]({link})), the best of {result['repeat']}."
    return f"# What bounds the speed\n\n{head}\n\n{table(result)}\n"
