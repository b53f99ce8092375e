"""A dataset in parts, by processes and by a Ray cluster on the same cores, against one run; and what merging takes."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import results
from benchmarks.containers import CACHE, build
from benchmarks.corpus import Corpus
from benchmarks.environment import ours
from benchmarks.measure import COMMAND, run

FILES = 100_000
MANY = 1_000
OUT = CACHE / "machines"


def measure(
    corpus: Corpus, *, parts: int, workers: int, memory: str, repeat: int, timeout: float, only: list[str]
) -> dict[str, Any]:
    """Runs in turns, so that a busy machine is as bad for one as for the other; the best of each counts."""
    text = build(corpus, "jsonl")
    share = ["--parts", str(parts), "--workers", "1", "--memory", memory]
    ways = {
        "one run": ["--workers", str(workers), "--memory", memory],
        "local": ["--executor", "local", "--parallel", str(workers), *share],
        "ray": ["--executor", "ray", *share],
    }
    rows: dict[str, dict[str, Any]] = {}
    with _cluster(workers, "ray" in only or not only) as start_ray:
        if start_ray is None:
            del ways["ray"]
        for _ in range(repeat):
            for way, flags in ways.items():
                if only and way not in only:
                    continue
                command = [
                    *COMMAND,
                    "prepare",
                    str(text.path),
                    "-o",
                    str(OUT),
                    "--name",
                    "web",
                    "-f",
                    "shards",
                    "-q",
                    *flags,
                ]
                _add(rows, way, start_ray(command, timeout) if way == "ray" else _timed(command, timeout))
    steps = {"merge": _merging, "plan of files": _planning, "merge of many parts": _merging_many}
    for name, step in steps.items():
        if not only or name in only:
            for row in step(text.path, parts, workers, memory, timeout):
                _add(rows, row.pop("way"), row)
    shutil.rmtree(OUT, ignore_errors=True)
    return results.frame(
        "machines",
        versions={"shardmill": ours()},
        text={"description": corpus.describe(text.bytes), "bytes": text.bytes},
        workers=workers,
        memory=memory,
        parts=parts,
        rows=list(rows.values()),
    )


def _add(rows: dict[str, dict[str, Any]], way: str, row: dict[str, Any]) -> None:
    kept = rows.setdefault(way, {"way": way, "seconds": [], "cpu": [], "peaks": [], "others": []})
    for name, key in (("seconds", "seconds"), ("cpu", "cpu"), ("peak", "peaks"), ("others", "others")):
        kept[key].append(round(row[name], 3))
    kept |= {key: value for key, value in row.items() if key == "bytes"}
    print(_line(kept), file=sys.stderr, flush=True)


def _timed(command: list[str], timeout: float, fresh: bool = True) -> dict[str, Any]:
    """A command with its time, and the CPU of all that it started."""
    if fresh:
        shutil.rmtree(OUT, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(command, timeout=timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.failure:
        raise SystemExit(f"error: {' '.join(command)}: {done.failure}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": done.seconds, "cpu": cpu, "peak": done.peak, "others": done.others}


@contextmanager
def _cluster(cpus: int, wanted: bool) -> Iterator[Any]:
    """Runs commands in a Ray cluster of one node, or nothing where there can be none."""
    from tests.cluster.ray_cluster import ADDRESS, Cluster, why_not

    if not wanted or (reason := why_not()):
        if wanted:
            print(f"without Ray: {reason}", file=sys.stderr)
        yield None
        return
    folder = CACHE / "ray"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Cluster(folder, environment) as cluster:
        cluster.node(0, cpus)

        def timed(command: list[str], timeout: float) -> dict[str, Any]:
            shutil.rmtree(OUT, ignore_errors=True)
            started, most = time.perf_counter(), 0
            before, driver = _cpu_below(cluster.pid), resource.getrusage(resource.RUSAGE_CHILDREN)
            now = dict(before)
            process = cluster.start(*command, "--ray-address", ADDRESS, stdout=None, stderr=None)
            while process.poll() is None:
                if time.perf_counter() - started > timeout:
                    process.kill()
                    raise SystemExit(f"error: Ray: not done after {timeout:.0f} s")
                most = max(most, _largest_part(cluster.pid))
                now |= _cpu_below(cluster.pid)
                time.sleep(0.1)
            if process.returncode:
                raise SystemExit(f"error: Ray: exit code {process.returncode}")
            seconds = time.perf_counter() - started
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - driver.ru_utime - driver.ru_stime
            cpu += sum(now.values()) - sum(before.values())
            return {"seconds": seconds, "cpu": cpu, "peak": most, "others": 0.0}

        yield timed


def _cpu_below(pid: int) -> dict[tuple[int, float], float]:
    """Seconds of CPU of all processes below one, Ray's own included, as far as they have come."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid, process.create_time()] = times.user + times.system
    return found


def _largest_part(pid: int) -> int:
    from tests.cluster.trouble import part_processes

    most = 0
    for process in part_processes(pid).values():
        with suppress(psutil.NoSuchProcess):
            most = max(most, process.memory_info().rss)
    return most


def _merging(source: Path, parts: int, workers: int, memory: str, timeout: float) -> Iterator[dict[str, Any]]:
    """All parts made, then `merge` on the clock, and `cp` of what it wrote."""
    _make_parts(source, parts)
    yield {"way": "merge", **_timed([*COMMAND, "merge", str(OUT), "-q"], timeout, fresh=False), "bytes": _size(OUT)}
    copy = OUT.with_name("machines-copy")
    shutil.rmtree(copy, ignore_errors=True)
    copying = ["sh", "-c", 'cp -r "$0" "$1" && sync -f "$1"', str(OUT), str(copy)]
    yield {"way": "cp of the dataset", **_timed(copying, timeout, fresh=False), "bytes": _size(copy)}
    shutil.rmtree(copy)


def _merging_many(source: Path, parts: int, workers: int, memory: str, timeout: float) -> Iterator[dict[str, Any]]:
    _make_parts(source, MANY)
    row = _timed([*COMMAND, "merge", str(OUT), "-q"], timeout, fresh=False)
    yield {"way": f"merge of {MANY:,} parts", **row, "bytes": _size(OUT)}


def _make_parts(source: Path, parts: int) -> None:
    """In this process, since a thousand processes would take longer to start than to work."""
    from shardmill.cluster import make_part, missing_parts, plan_parts
    from shardmill.cluster.part import LoadedTokenizer

    shutil.rmtree(OUT, ignore_errors=True)
    plan, loaded = plan_parts(source, OUT, parts=parts, name="web", format="shards"), LoadedTokenizer()
    for number in missing_parts(plan):
        make_part(OUT, number, loaded=loaded)


def _planning(source: Path, parts: int, workers: int, memory: str, timeout: float) -> Iterator[dict[str, Any]]:
    folder = CACHE / f"files-{FILES}"
    if not folder.exists():
        for i in range(FILES):
            path = folder / f"{i // 1000:03}" / f"{i:06}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"The text of file {i}.\n")
    command = [*COMMAND, "plan", str(folder), "-o", str(OUT), "--parts", "100"]
    yield {"way": f"plan of {FILES:,} files", **_timed(command, timeout)}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _line(row: dict[str, Any]) -> str:
    return f"{row['way']}: {row['seconds'][-1]:.2f} s, CPU {row['cpu'][-1]:.2f} s, {row['peaks'][-1] / 1e6:.0f} MB"


def table(result: dict[str, Any]) -> str:
    """Markdown; the best of the repeats, time and CPU each by itself."""
    lines = [
        f"{results.heading(result)} {result['parts']} parts.",
        "",
        "| | time | CPU | MB/s | most memory of a process |",
        "|---|---:|---:|---:|---:|",
    ]
    whole = result["text"]["bytes"]
    for row in result["rows"]:
        size = row.get("bytes", whole if row["way"] in ("one run", "local", "ray") else 0)
        speed = f"{size / min(row['seconds']) / 1e6:,.0f}" if size else ""
        lines.append(
            f"| {row['way']} | {min(row['seconds']):.2f} s | {min(row['cpu']):.2f} s | {speed} | "
            f"{max(row['peaks']) / 1e6:,.0f} MB |"
        )
    return "\n".join(lines)
