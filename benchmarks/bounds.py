"""What bounds the speed: every step that cannot be left out, alone, and shardmill's runs, in turn, on the same text."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environment, results
from benchmarks.bound_shares import BAR, NEEDS, RUN, SCALED
from benchmarks.containers import CACHE, Text, build
from benchmarks.corpus import Corpus
from benchmarks.measure import run
from benchmarks.ways import ways

SCRIPT = Path(__file__).parent / "steps.py"


@dataclass(frozen=True)
class Item:
    """A process to be measured: a step, the bar, or a run of shardmill."""

    name: str
    container: str = ""
    workers: int = 0
    """0: it makes no difference."""
    tokens: bool = False
    """It needs to know how many tokens the text has."""
    out: bool = False
    """It needs a folder to write to."""


def items(workers: int) -> list[Item]:
    """All that is measured. The engine comes first: it says how many tokens there are."""
    several = sorted({1, workers})
    return [
        *(Item("engine", text, n) for text in ("jsonl", "text", "plain") for n in several),
        Item(BAR, "jsonl", workers),
        *(Item("read", container) for container in NEEDS),
        *(Item("validate", container) for container in ("text", "plain", "jsonl")),
        Item("find", "text"),
        Item("parse", "jsonl"),
        Item("parquet", "parquet-zstd"),
        Item("zstd", "jsonl.zst"),
        Item("gzip", "jsonl.gz"),
        Item("narrow", tokens=True),
        Item("write", tokens=True, out=True),
        Item("digest", tokens=True),
        *(Item("load", workers=n) for n in several),
        Item("start"),
        *(Item(RUN, container, n) for container in NEEDS for n in several if n == workers or container in SCALED),
    ]


@dataclass
class Bench:
    """Where the text lies, and what was measured so far."""

    texts: dict[str, Text]
    memory: str
    timeout: float
    env: dict[str, str]
    tokens: int = 0
    rows: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)

    def measure(self, item: Item) -> None:
        """Run it once; what it says goes into its rows. Ends the program when it fails."""
        out = CACHE / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        if item.container:
            self.texts[item.container].warm()
        done = run(self._command(item, out), timeout=self.timeout, env=self.env)
        shutil.rmtree(out)
        if done.failure or not done.said:
            raise SystemExit(f"error: {item.name} {item.container}: {done.failure or 'said nothing of its time'}")
        whole = item.name in (BAR, RUN)
        for step, said in ({item.name: done.said} if whole else done.said).items():
            if item.name == "engine":
                # A mark after each document: as many ids as a run writes tokens.
                self.tokens = self.tokens or said["did"]
            row = self.rows.setdefault((step, item.container, item.workers), _row(step, item))
            row["cpu"].append(said["cpu"])
            row["seconds"].append(said["seconds"])
            row["others"].append(round(done.others, 2))
            told = f"{said['cpu']:7.3f} s of CPU {said['seconds']:7.3f} s  beside {done.others:.1f} cores"
            print(f"{step:10} {item.container:14} {item.workers or '':2} {told}", file=sys.stderr, flush=True)

    def _command(self, item: Item, out: Path) -> list[str]:
        source = str(self.texts[item.container].path) if item.container else ""
        if item.name in (BAR, RUN):
            names = {BAR: "engine_alone", RUN: "shardmill_prepare"}
            (way,) = [w for w in ways(self.memory) if (w.script, w.container) == (names[item.name], item.container)]
            return way.command(source, str(out), item.workers)
        given = [(source, item.container), (item.workers, item.workers), (self.tokens, item.tokens), (out, item.out)]
        return [sys.executable, str(SCRIPT), item.name, *(str(value) for value, wanted in given if wanted)]


def _row(step: str, item: Item) -> dict[str, Any]:
    return {
        "step": step,
        "container": item.container,
        "workers": item.workers,
        "cpu": [],
        "seconds": [],
        "others": [],
    }


def measure(corpus: Corpus, *, workers: int, memory: str, repeat: int, timeout: float) -> dict[str, Any]:
    """Everything `repeat` times, in turn, so that a slow minute of the machine hits all alike."""
    corpus = corpus.counted()
    texts = {container: build(corpus, container) for container in NEEDS}
    bench = Bench(texts, memory, timeout, environment.ranks())
    for _ in range(repeat):
        for item in items(workers):
            bench.measure(item)
    text = texts["jsonl"]
    return results.frame(
        "bounds",
        versions={"shardmill": environment.ours()},
        text={"description": corpus.describe(text.bytes), "bytes": text.bytes, "documents": text.documents},
        tokens=bench.tokens,
        workers=workers,
        memory=memory,
        repeat=repeat,
        rows=list(bench.rows.values()),
    )
