"""Makes a dataset in parts with an executor: has the missing parts made, again if they are lost, and merges meanwhile.

The driver holds no state that matters: only what is published counts, so it can be killed and restarted at any moment.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shardmill.cluster.executors import Executor, PartReport, make_executor
from shardmill.cluster.merging import deleting, merge_parts
from shardmill.cluster.parts import PlannedParts
from shardmill.cluster.place import Place
from shardmill.cluster.planning import (
    PartPlan,
    find_part_plan,
    find_plan,
    finished_dataset,
    missing_parts,
    store_parts,
)
from shardmill.errors import Interrupted, ShardmillError
from shardmill.options import Options
from shardmill.run import resident, settle_allocator
from shardmill.storage import is_url
from shardmill.units import parse_bytes, show_seconds
from shardmill.write import Done, Manifest, Progress, Result, open_destination

# Seconds without progress after which a part is given up and made again. A source is retried for two minutes.
_PATIENCE = 300.0
# How often a part may fail with the same error, and how often the driver has it made in all.
_SAME, _STARTS = 3, 10
# Seconds without any report: no node has room, or the network is down.
_STALLED = 1800.0
_TICK = 1.0
_PAUSE = 0.1  # seconds between two looks at the executor while the merge is at work


def prepare_in_parts(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    executor: str = "local",
    parts: int | None = None,
    keep_parts: bool = False,
    parallel: int | None = None,
    ray_address: str | None = None,
    ray_resources: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Do what `prepare` does in parts: plan, make them with an executor, merge. The same call resumes an earlier one.

    `parallel` is for the executor `local`, `ray_address` and `ray_resources` for `ray`. `workers` are those of one
    part; `memory` is that of the whole command, or on Ray that of one part. `keep_parts`: the shards of the parts are
    those of the dataset, and nothing is merged.
    """
    started = time.monotonic()
    progress = progress or Progress()
    chosen = Options.typed(options)
    settings = {"parallel": parallel, "ray_address": ray_address, "ray_resources": ray_resources}
    given = {name: value for name, value in settings.items() if value is not None}
    memory = None if chosen.get("memory") is None else parse_bytes(chosen["memory"])
    # Absolute, since other nodes must find it.
    out = os.fspath(out) if is_url(out) else os.path.abspath(out)
    runs = make_executor(executor, out, memory=memory, workers=chosen.get("workers"), **given)
    plan, begun = find_plan(sources, out, options), find_part_plan(out)
    if not plan.options.overwrite and begun is None and (done := finished_dataset(plan, out, parts, keep_parts)):
        with deleting(out):
            Place(out).clear()  # leftovers of a kill in the last step
        return Result(open_destination(out).shown, done, already=True)
    whole = store_parts(plan, out, parts, keep_parts=keep_parts)
    result = make_dataset(whole, runs, progress, memory=memory)
    return replace(result, seconds=time.monotonic() - started)


def make_dataset(
    whole: PartPlan, executor: Executor, progress: Progress, *, memory: int | None, named: bool = True
) -> Result:
    """Make the missing parts of a plan and merge them. `memory`: that of the merge.

    `named`: messages speak of parts. A user who has not asked for any need not know of them.
    """
    settle_allocator()
    parts = {part.number: part.bytes for part in whole.parts}
    driver = Driver(parts, lambda: missing_parts(whole), executor, progress, named=named)
    before = driver.done().bytes
    with driver.running():
        result = merge_parts(PartsBeingMade(whole, driver), whole, driver.merge_progress(), memory=memory)
    return replace(
        result,
        peak_memory=max(driver.peak_memory, result.peak_memory),
        retries=driver.done().retries,
        resumed=result.resumed or before > 0,
        text_before=round(_text_of(result) * before / whole.bytes) if whole.bytes else 0,
    )


def _text_of(result: Result) -> int:
    return sum(split["bytes"] for split in result.manifest["splits"].values())


class PartsBeingMade(PlannedParts):
    """Has parts made by an executor, and waits for each that the merge asks for."""

    complete = False

    def __init__(self, whole: PartPlan, driver: Driver) -> None:
        super().__init__(whole)
        self._driver = driver

    def manifest(self, number: int) -> Manifest:
        while True:
            while not self._driver.has_part(number):
                self._driver.step(_TICK)
            manifest = self.find(number)
            if manifest is not None:
                return manifest
            self._driver.make_part_again(number)

    def go_on(self) -> None:
        self._driver.step(0.0)

    def close(self) -> None:
        self._driver.close()


def _total(parts: Sequence[Done]) -> Done:
    """The counts of several parts together."""
    counted = ("bytes", "documents", "tokens", "rejected", "retries")
    return Done(**{name: sum(getattr(done, name) for done in parts) for name in counted})


@dataclass
class RunningPart:
    """A part that is being made."""

    report: PartReport
    came_further: float
    """When it last did, by the driver's clock."""


class NodeMemory:
    """The memory of all running parts, for the progress display: that of the fullest node, or of this machine."""

    def __init__(self, running: Mapping[int, RunningPart], limit: int) -> None:
        """`limit`: of all parts and the driver, if they run on this machine; otherwise 0."""
        self._running, self._limit = running, limit

    def _nodes(self) -> dict[str, tuple[int, int]]:
        nodes: dict[str, tuple[int, int]] = {}
        for part in list(self._running.values()):
            held, limit = nodes.get(part.report.node, (0, 0))
            nodes[part.report.node] = held + part.report.memory, limit + part.report.limit
        return nodes

    def sample(self) -> int:
        """Bytes that the parts on the fullest node hold."""
        return max(self._nodes().values(), default=(0, 0))[0] + (resident() if self._limit else 0)

    @property
    def memory(self) -> int:
        """Bytes that the parts on the fullest node may hold."""
        return self._limit or max(self._nodes().values(), default=(0, 0))[1]


class _MergeProgress(Progress):
    """Shows nothing by itself: the driver shows what the merge waits for, and counts its retries."""

    retries = 0

    def update(self, done: Done) -> None:
        self.retries = done.retries


class Driver:
    """Has parts made by an executor, as `step` is called."""

    def __init__(
        self,
        parts: Mapping[int, int],
        missing: Callable[[], Sequence[int]],
        executor: Executor,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        *,
        named: bool = True,
    ) -> None:
        """`parts`: the bytes of each part by its number. `missing`: looks up which are not published.

        `named`: messages speak of parts.
        """
        self._sizes, self._missing, self._executor = dict(parts), missing, executor
        self._total_bytes = sum(parts.values())
        self._progress, self._clock, self._named = progress, clock, named
        first = set(missing())
        self._finished = {number for number in parts if number not in first}
        # The largest ones begin first, or one process would work alone at the end.
        large = 2 * sum(parts.values()) // max(1, len(parts))
        order = sorted(first, key=lambda number: (-parts[number] if parts[number] > large else 0, number))
        self._waiting = dict.fromkeys(order)
        """Parts that nobody makes yet, in the order in which they are submitted."""
        self._running: dict[int, RunningPart] = {}
        self._memory = NodeMemory(self._running, executor.memory_limit)
        self._opened = False
        self._submissions: collections.Counter[int] = collections.Counter()
        self._failures: collections.Counter[tuple[int, str]] = collections.Counter()
        self._started: collections.Counter[int] = collections.Counter()
        self._sum = self._shown = Done(bytes=sum(self._sizes[number] for number in self._finished))
        self._merging = _MergeProgress()
        self._looked = self._last_report = self._last_nudge = clock()
        self.peak_memory = 0
        """The most memory that the parts of one node held together."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show progress; at the end stop everything. Errors say what is kept."""
        try:
            self._progress.status = lambda: self._merging.status() or self._waiting_for()
            self._progress.begin(self._total_bytes, self._sum, self._memory)
            yield
        except ShardmillError as error:
            error.kept = error.kept or self._kept()
            raise
        except KeyboardInterrupt as why:
            # Ray raises an exception of its own when it notices the signal.
            interrupted = why if isinstance(why, Interrupted) else Interrupted()
            interrupted.kept = self._kept()
            raise interrupted from None
        finally:
            self.close()

    def close(self) -> None:
        """Stop everything."""
        self._progress.end()
        self._executor.close()
        self._waiting.clear()
        self._running.clear()

    def merge_progress(self) -> Progress:
        """Return the progress of the merge, which this driver shows."""
        return self._merging

    def has_part(self, number: int) -> bool:
        return number in self._finished

    def make_part_again(self, number: int) -> None:
        """Have a part made that was there, and that somebody has removed."""
        self._finished.remove(number)
        self._waiting[number] = None
        if self._opened:
            self._submit(number)

    def step(self, seconds: float) -> None:
        """Process reports, for which it waits up to `seconds`. Raise the error of a part that cannot be made."""
        if not (self._waiting or self._running) or (not seconds and self._clock() - self._looked < _PAUSE):
            return
        if not self._opened:
            self._executor.open()
            self._opened = True
            for number in self._waiting:
                self._submit(number)
            self._last_report = self._last_nudge = self._clock()
        for number, report in self._executor.reports(seconds):
            self._process_report(number, report)
        self._looked = self._clock()
        self._give_up_stuck()
        self.peak_memory = max(self.peak_memory, self._memory.sample())
        if (done := self.done()) != self._shown:
            self._shown = done
            self._progress.update(done)

    def _submit(self, number: int) -> None:
        self._submissions[number] += 1
        self._executor.submit(number)

    def _process_report(self, number: int, report: PartReport) -> None:
        now = self._last_report = self._clock()
        if number in self._waiting:
            del self._waiting[number]
            self._running[number] = RunningPart(report, now)
        elif number not in self._running:
            return
        if report.kind == "started":
            self._started[number] += 1
        part = self._running[number]
        before, part.report = part.report, report
        if (before.kind, before.done, before.sent) != (report.kind, report.done, report.sent):
            part.came_further = now
        if report.kind == "done":
            self._finish(number)
        elif report.kind == "failed":
            assert report.error is not None
            self._count_failure(number, report, report.error)
            self._make_again(number, str(report.error))
        elif report.kind == "lost":
            self._make_again(number, report.why)

    def _finish(self, number: int) -> None:
        done = self._running.pop(number).report.done
        self._finished.add(number)
        self._sum = _total([self._sum, replace(done, bytes=self._sizes[number])])

    def _count_failure(self, number: int, report: PartReport, error: ShardmillError) -> None:
        """Raise the error if retrying cannot help, or did not."""
        self._failures[number, error.message] += 1
        if isinstance(error, self._executor.final_errors) or self._failures[number, error.message] >= _SAME:
            if self._named:
                where = f"part {number}, on {report.node}" if report.node else f"part {number}"
                error.place = f"{error.place} ({where})" if error.place else where
            error.kept = self._kept()
            raise error

    def _make_again(self, number: int, why: str) -> None:
        node = self._running.pop(number).report.node
        if self._submissions[number] >= _STARTS:
            raise ShardmillError(
                f"part {number} was started {_STARTS} times, and never came to its end",
                place=f"on {node}: {why}" if node else why,
            )
        self._waiting[number] = None
        self._submit(number)

    def _give_up_stuck(self) -> None:
        """Give up parts that have not come further for too long: no system notices a process that only stands."""
        now = self._clock()
        stuck = [number for number, part in self._running.items() if now - part.came_further > _PATIENCE]
        missing = set(self._missing()) if stuck else set()
        self._last_nudge = now if stuck else self._last_nudge
        for number in stuck:
            self._executor.stop(number)
            if number in missing:
                self._make_again(number, f"it has not come further for {show_seconds(_PATIENCE)}")
            else:
                self._finish(number)
        if now - self._last_report > _STALLED:
            raise ShardmillError(
                f"no part has reported for {show_seconds(_STALLED)}",
                hint="the nodes may be busy or out of reach",
            )
        if self._started and not self._running and now - max(self._last_report, self._last_nudge) > _PATIENCE:
            # A part may have been sent to a node that froze before it could say so.
            self._last_nudge = now
            for number in self._waiting:
                self._executor.stop(number)
                self._executor.submit(number)

    def done(self) -> Done:
        """Return the progress of all parts together."""
        running = [(part.report.done, self._sizes[number]) for number, part in self._running.items()]
        parts = [replace(done, bytes=min(done.bytes, size)) for done, size in running]
        again = sum(self._started.values()) - len(self._started)
        total = _total([self._sum, Done(retries=self._merging.retries), *parts])
        if not self._named:
            return replace(total, source=parts[0].source if parts else "")
        shown = f"{self._counts()}, {len(running):,} running{f', {again:,} started again' if again else ''}"
        return replace(total, parts=shown)

    def _waiting_for(self) -> str:
        return self._executor.waiting() if self._opened and not self._started else ""

    def _counts(self) -> str:
        return f"{len(self._finished):,} of {len(self._sizes):,} parts"

    def _kept(self) -> str:
        done = f"{self._counts()} are done" if self._named else f"{self.done().bytes / self._total_bytes:.0%} is done"
        return f"{done}; the same command resumes the run"
