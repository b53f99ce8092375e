"""Checkpoints of a conversion: what it has written and how far it has read, brought to disk in the background."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError, ShardmillError
from shardmill.journal import Begun, Journal
from shardmill.writing import SPLITS, Output, Written

_EVERY = 1.0  # seconds between checkpoints
_FULL = 8  # files that may wait for their name
_PATIENCE = 600.0  # seconds for one checkpoint; a disk that takes longer has failed


class Keeping:
    """The state of a conversion, and the outputs whose positions belong to it. One thread uses it."""

    def __init__(self, out: Path, journal: Journal, outputs: list[Output], keeper: Executor) -> None:
        self._out, self._journal, self._outputs, self._keeper = out, journal, outputs, keeper
        self.split = 0
        """The split that is being read, by number."""
        self.at = 0
        """The token of it that comes next."""
        self.tokens = [dict.fromkeys(SPLITS, 0) for _ in outputs]
        """Written to each output."""
        self.marks = dict.fromkeys(SPLITS, 0)
        """End-of-text tokens that were read."""
        self.files: list[tuple[int, str, Written]] = []
        self._consistent = True
        self._checkpoint: Future[None] | None = None
        self._settled = time.monotonic()

    def begin(self, facts: dict[str, Any], begun: Begun | None) -> None:
        """Start from nothing, or from what an earlier run has recorded; OutputError if other files are in the way."""
        saved = begun.state if begun else None
        positions = [output.position() for output in self._outputs]
        if begun is None and (foreign := [name for output in self._outputs for name in output.foreign()]):
            raise OutputError(
                f"files of another making are in the way: {', '.join(foreign[:3])}",
                place=str(self._out),
                hint="choose another folder, or replace them with `--overwrite`",
            )
        if begun and saved:
            positions = saved.pop("outputs")
            self.split, self.at, self.tokens, self.marks = (saved[k] for k in ("split", "at", "tokens", "marks"))
            self.files = [(i, split, Written(**entry)) for i, split, entry in begun.files]
            saved["outputs"] = positions
        for i, output in enumerate(self._outputs):
            output.restore(positions[i], {written.name for j, _, written in self.files if j == i})
        self._journal.begin(facts, saved)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around all that must be recorded together or not at all: an interrupt may come between any two lines."""
        self._consistent = False
        yield
        self._consistent = True

    def keep(self, *, now: bool = False) -> None:
        """Bring everything to the disk and record it, in the background; with `now` also when it is not time yet."""
        if self._checkpoint is not None and self._checkpoint.done():
            self._wait()
        crowd = sum(output.full for output in self._outputs) >= _FULL
        due = time.monotonic() - self._settled >= _EVERY and self._checkpoint is None
        if not (now or crowd or due):
            return
        self._wait()
        self._settled = time.monotonic()
        saved = {
            "split": self.split,
            "at": self.at,
            "tokens": [dict(tokens) for tokens in self.tokens],
            "marks": dict(self.marks),
            "outputs": [output.position() for output in self._outputs],
        }
        with self.step():
            settling = [output.settling() for output in self._outputs]

            def settle() -> None:
                done = [(i, split, written) for i, work in enumerate(settling) for split, written in work()]
                self._journal.record([[i, split, written.entry()] for i, split, written in done], saved)
                self.files += done
                for output in self._outputs:
                    output.recorded()

            self._checkpoint = self._keeper.submit(settle)
        if now:
            self._wait()

    def stop(self, why: BaseException) -> None:
        """Record what is done before it ends early, and say in the error that it is kept."""
        try:
            if self._consistent:
                self.keep(now=True)
        except OutputError as also:  # the disk is the trouble: what was recorded before stands
            if why is not also and isinstance(why, ShardmillError) and why.hint is None:
                why.hint = also.message
        if isinstance(why, ShardmillError) and why.kept is None:
            why.kept = f"{len(self.files):,} files complete; the same command goes on from there"

    def _wait(self) -> None:
        if self._checkpoint is None:
            return
        if not wait_for([self._checkpoint], timeout=_PATIENCE).done:
            raise OutputError(f"the disk has not answered for {_PATIENCE:.0f} seconds", place=str(self._out))
        # One that failed stays: nothing may be recorded after files that never got their names.
        self._checkpoint.result()
        self._checkpoint = None
