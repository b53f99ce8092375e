"""shardmill beside what people use instead, in one run, on the same text."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import environment, results
from benchmarks.containers import CACHE, Text, build
from benchmarks.corpus import Corpus
from benchmarks.measure import Run, run
from benchmarks.oracle import Oracle, digest
from benchmarks.ways import OF_OTHER_KINDS, Way, ways


@dataclass
class _Case:
    """A way on a text, and its row of the table."""

    way: Way
    text: Text
    oracle: Oracle
    row: dict[str, Any]


def compare(
    corpus: Corpus,
    also: dict[str, Corpus],
    *,
    slice_bytes: int,
    workers: int,
    memory: str,
    repeat: int,
    timeout: float,
    only: list[str],
) -> dict[str, Any]:
    """Run every way `repeat` times, in turn, so that a slow minute of the machine hits all alike.

    `also`: texts of other kinds by their names, which go only the ways of `OF_OTHER_KINDS`.
    """
    env = environment.prepare()
    os.environ.update(env)
    chosen = [way for way in ways(memory) if not only or any(word in f"{way.name} {way.container}" for word in only)]
    if not chosen:
        raise SystemExit(f"error: no way is called {' or '.join(only)}")
    corpus = corpus.counted()
    cases = list(_cases(chosen, "", corpus, slice_bytes))
    for name, other in also.items():
        some = [way for way in chosen if (way.script, way.container) in OF_OTHER_KINDS]
        cases += _cases(some, f", {name}", other.counted(), slice_bytes)
    for _ in range(repeat):
        for case in cases:
            _measure(case, env, workers, timeout)
    largest = max((case.text for case in cases), key=lambda text: text.bytes)
    return results.frame(
        "compare",
        versions=environment.versions(),
        text={
            "description": corpus.describe(largest.bytes),
            "bytes": largest.bytes,
            "documents": largest.documents,
        },
        workers=workers,
        memory=memory,
        rows=[case.row for case in cases],
    )


def _cases(chosen: list[Way], suffix: str, corpus: Corpus, slice_bytes: int) -> Iterator[_Case]:
    oracle = Oracle(_sized(corpus, slice_bytes))
    for way in chosen:
        text = build(_portion(corpus, way, slice_bytes), way.container)
        yield _Case(way, text, oracle, _row(way, way.container + suffix, text))


def _sized(corpus: Corpus, size: int) -> Corpus:
    return Corpus(corpus.kind, min(size, corpus.size or size), corpus.source)


def _portion(corpus: Corpus, way: Way, slice_bytes: int) -> Corpus:
    return corpus if way.slices is None else _sized(corpus, way.slices * slice_bytes)


def _row(way: Way, container: str, text: Text) -> dict[str, Any]:
    return {
        "way": way.name,
        "container": container,
        "bytes": text.bytes,
        "documents": text.documents,
        "seconds": [],
        "whole_seconds": [],
        "peaks": [],
        "others": [],
        "tokens": None,
        "sha256": None,
        "verdict": "writes nothing",
        "failure": None,
    }


def _measure(case: _Case, env: dict[str, str], workers: int, timeout: float) -> None:
    way, text, row = case.way, case.text, case.row
    if row["failure"]:
        return
    out = CACHE / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    text.warm()
    done = run(way.command(str(text.path), str(out), workers), timeout=timeout, env=env)
    _note(row, done)
    if row["failure"] is None and way.writes:
        before = row["sha256"]
        row["tokens"], row["sha256"] = digest(out)
        if before is None:
            row["verdict"] = case.oracle.judge(out, way.eot)
        elif before != row["sha256"]:
            row["failure"] = "other tokens than in an earlier repeat"
    shutil.rmtree(out)
    said = row["failure"]
    if said is None:
        said = f"{text.bytes / 1e6 / row['seconds'][-1]:8.1f} MB/s  {done.peak / 1e6:6.0f} MB  {row['verdict']}"
    print(f"{way.name:38} {row['container']:18} {said}", file=sys.stderr, flush=True)


def _note(row: dict[str, Any], done: Run) -> None:
    row["failure"] = done.failure or (None if "seconds" in done.said else "said nothing of its time")
    if row["failure"] is None:
        row["seconds"].append(done.said["seconds"])
        row["whole_seconds"].append(done.seconds)
        row["peaks"].append(done.peak)
        row["others"].append(round(done.others, 2))
        row["tokens"] = done.said.get("tokens", row["tokens"])


def table(result: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    done = [row for row in result["rows"] if not row["failure"]]
    ours = {row["container"]: _speed(row) for row in done if row["way"] == "shardmill"}
    lines = [
        "| way | container | text | MB/s | tokens/s | shardmill is | start-up | peak memory | equal to tiktoken |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in result["rows"]:
        head = f"| {row['way']} | {row['container']} | {row['bytes'] / 1e6:,.0f} MB "
        if row["failure"]:
            lines.append(f"{head}| – | – | – | – | – | {row['failure']} |")
            continue
        speed = _speed(row)
        best = min(row["seconds"])
        rate = f"{row['tokens'] / best / 1e6:,.2f} M" if row["tokens"] else "–"
        apart = row["way"] != "shardmill" and row["container"] in ours
        ratio = f"{ours[row['container']] / speed:.3g}×" if apart else "–"
        start = min(whole - work for whole, work in zip(row["whole_seconds"], row["seconds"], strict=True))
        peak = f"{max(row['peaks']) / 1e6:,.0f} MB"
        lines.append(f"{head}| {speed:,.1f} | {rate} | {ratio} | {start:.1f} s | {peak} | {row['verdict']} |")
    return "\n".join([results.heading(result), "", *lines, "", NOTES])


def _speed(row: dict[str, Any]) -> float:
    return float(row["bytes"] / 1e6 / min(row["seconds"]))


NOTES = (
    "MB/s of text: the documents as UTF-8, without what the container adds; the fastest of the repeats. The clock "
    "starts after imports and, for the others, after the vocabulary is loaded; start-up is the rest of the process. "
    "Peak memory is that resident in the process tree, sampled every 50 ms. Tokens are compared on the first slice."
)
