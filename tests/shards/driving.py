"""Drives an output as a run does: appends, checkpoints, crashes, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards import SPLITS, ShardWriter, open_output

SHARD = 500


class Driven:
    """An output, and what a journal would know of it."""

    def __init__(self, format: str, folder: Path, **more: Any) -> None:
        more = {"name": "web", "dtype": np.dtype("uint16"), "shard_tokens": SHARD, **more}
        self.format, self.folder, self.more = format, folder, more
        folder.mkdir(exist_ok=True)
        self.output = open_output(format, folder, **more)
        self.output.restore(self.output.position(), set())
        self.files: list = []
        self.unrecorded: list = []
        self.journal: tuple[Any, list] = (self.output.position(), [])

    def checkpoint(self, *, record: bool = True) -> None:
        position = self.output.position()
        self.unrecorded += self.output.prepare_sync()()
        if record:
            self.files += self.unrecorded
            self.unrecorded = []
            self.journal = (position, list(self.files))
            self.output.recorded()

    def finish(self, wanted: tuple[str, ...] = SPLITS) -> None:
        self.output.finish(wanted)
        self.checkpoint()
        self.checkpoint()  # as the writer does: what only the position before needed goes now
        self.output.close()

    def crash_and_go_on(self) -> None:
        """What follows a kill: nothing is closed in order, and another process begins from the journal."""
        self.output.close()
        position, self.files = self.journal[0], list(self.journal[1])
        self.unrecorded = []
        self.output = open_output(self.format, self.folder, **self.more)
        self.output.restore(position, [written for _, written in self.files])

    def names(self, split: str, *, tokens_only: bool = True) -> list[str]:
        return [w.name for s, w in self.files if s == split and not (tokens_only and w.role)]


def documents(seed: int, count: int = 60, longest: int = 300, largest: int = 50257) -> list[tuple[str, np.ndarray]]:
    """Random documents, each with its split; one of them is longer than three shards."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        length = int(random.integers(1, longest)) if i != count // 2 else 3 * SHARD + 321
        split = "val" if random.random() < 0.2 else "train"
        made.append((split, random.integers(0, largest, length).astype(np.uint32 if largest > 65536 else np.uint16)))
    return made


def steps(made: list[tuple[str, np.ndarray]], seed: int = 0) -> list[tuple[str, np.ndarray, np.ndarray, bool]]:
    """(split, tokens, ends, whether the open documents end after it): as batches, or as pieces of one document."""
    random = np.random.default_rng(seed)
    done, i = [], 0
    while i < len(made):
        split = made[i][0]
        if len(made[i][1]) > 250:
            pieces = np.array_split(made[i][1], 4)
            done += [(split, piece, np.empty(0, np.int64), False) for piece in pieces[:-1]]
            if random.random() < 0.5:
                done.append((split, pieces[-1], np.array([len(pieces[-1])]), False))
            else:
                done.append((split, pieces[-1], np.empty(0, np.int64), True))
            i += 1
            continue
        batch: list[np.ndarray] = []
        while i < len(made) and made[i][0] == split and len(made[i][1]) <= 250 and len(batch) < 5:
            batch.append(made[i][1])
            i += 1
        done.append((split, np.concatenate(batch), np.cumsum([len(d) for d in batch]), False))
    return done


def take(output: ShardWriter, step: tuple[str, np.ndarray, np.ndarray, bool]) -> None:
    split, tokens, ends, ends_now = step
    output.append(split, tokens, ends)
    if ends_now:
        output.end_document()


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def whole_run(format: str, folder: Path, made: list[tuple[str, np.ndarray]], **more: Any) -> Driven:
    """All documents through an output, without a crash."""
    run = Driven(format, folder, **more)
    for step in steps(made):
        take(run.output, step)
    run.finish()
    return run
