"""Makes a dataset in parts with an executor: starts what is missing, restarts what is lost, and merges meanwhile.

The driver holds no state that matters: only what is published counts, so it can be killed and restarted at any moment.
"""

from __future__ import annotations

import collections
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from shardmill.cluster.executors import Executor, PartReport, Task, make_executor
from shardmill.cluster.merging import merge_parts
from shardmill.cluster.parts import PlannedParts
from shardmill.cluster.place import part_name, place_of
from shardmill.cluster.planning import PartPlan, find_part_plan, finished_parts, plan_parts
from shardmill.errors import Interrupted, ShardmillError, SourceError, UsageError
from shardmill.options import Options
from shardmill.run import Done, Progress, Result, open_destination, settle_allocator
from shardmill.storage import is_url
from shardmill.units import parse_bytes, show_seconds

# Seconds of silence after which a copy is taken for dead; it reports every second or two.
_SILENT = 60.0
# A part is late when it takes this many times as long as others of its size, plus this many seconds. Then a second
# copy is started, where there is room. benchmarks/scale.py shows what other values cost.
_LATE, _GRACE = 1.5, 10.0
# How many parts must be done before one can be late, and how many recent ones are compared.
_MEASURED, _REMEMBERED = 3, 100
# How often a part may fail with the same error, and how often it may be started in all.
_SAME, _STARTS = 3, 10
# Seconds without any report: no node has room, or the network is down.
_STALLED = 1800.0
_TICK = 1.0


@dataclass
class _Copy:
    """A part that is being made."""

    task: Task
    started: float | None = None
    last_report: float = 0.0
    report: PartReport = field(default_factory=lambda: PartReport("running"))


class Gathered:
    """The memory of all running copies, for the progress display."""

    def __init__(self, copies: dict[int, _Copy]) -> None:
        self._copies = copies

    def _nodes(self) -> dict[str, tuple[int, int]]:
        nodes: dict[str, tuple[int, int]] = {}
        for copy in list(self._copies.values()):
            held, limit = nodes.get(copy.report.node, (0, 0))
            nodes[copy.report.node] = held + copy.report.memory, limit + copy.report.limit
        return nodes

    def sample(self) -> int:
        """Bytes that the parts on the fullest node hold."""
        return max(self._nodes().values(), default=(0, 0))[0]

    @property
    def memory(self) -> int:
        """Bytes that the parts on the fullest node may hold."""
        return max(self._nodes().values(), default=(0, 0))[1]


def prepare_in_parts(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    executor: str = "local",
    parts: int | None = None,
    keep_parts: bool = False,
    parallel: int | None = None,
    ray_address: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Do what `prepare` does in parts: plan, make them with an executor, merge. The same call resumes an earlier one.

    `parallel` is for the executor `local`, `ray_address` for `ray`. `memory` and `workers` are those of one part.
    `keep_parts`: the shards of the parts are those of the dataset, and nothing is merged.
    """
    started = time.monotonic()
    progress = progress or Progress()
    chosen = Options.typed(options)
    settings = {"parallel": parallel, "ray_address": ray_address}
    given = {name: value for name, value in settings.items() if value is not None}
    memory = None if chosen.get("memory") is None else parse_bytes(chosen["memory"])
    # Absolute, since other nodes must find it.
    out = os.fspath(out) if is_url(out) else os.path.abspath(out)
    runs = make_executor(executor, out, memory=memory, workers=chosen.get("workers"), **given)
    planned, complete = find_part_plan(out) is not None, open_destination(out).has_manifest()
    if (
        complete
        and not planned
        and not chosen.get("overwrite")
        and (manifest := finished_parts(sources, out, parts, keep_parts, options))
    ):
        place_of(out).clear()  # leftovers of a kill in the last step
        return Result(open_destination(out).shown, manifest, already=True)
    settle_allocator()
    plan = plan_parts(sources, out, parts=parts, keep_parts=keep_parts, **options)
    driver = Driver({part.number: part.bytes for part in plan.parts}, lambda: _published(plan), runs, progress)
    with driver.running():
        made = PartsBeingMade(plan, driver)
        result = merge_parts(made, plan, _hidden_progress(progress), memory=memory)
    most = max(driver.peak_memory, result.peak_memory)
    return replace(result, seconds=time.monotonic() - started, peak_memory=most)


def _published(plan: PartPlan) -> Callable[[Task], bool]:
    """Return a function that tells whether a part is published by now."""
    names = plan.place.published()
    return lambda task: part_name(task.number) in names


class PartsBeingMade(PlannedParts):
    """Has parts made by an executor, and waits for each that the merge asks for."""

    complete = False

    def __init__(self, whole: PartPlan, driver: Driver) -> None:
        super().__init__(whole)
        self._driver = driver

    def manifest(self, number: int) -> dict[str, Any]:
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


def _hidden_progress(shown: Progress) -> Progress:
    """Return a progress display that shows nothing, except that `shown` takes over its status."""
    hidden = Progress()
    shown.status = lambda: hidden.status()
    return hidden


class Driver:
    """Has parts made by an executor, as `step` is called."""

    def __init__(
        self,
        parts: Mapping[int, int],
        published: Callable[[], Callable[[Task], bool]],
        executor: Executor,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parts`: the bytes of each part by its number. `published`: looks up what is there, and returns a test."""
        self._sizes = {Task("part", number): size for number, size in parts.items()}
        self._published, self._executor, self._progress, self._clock = published, executor, progress, clock
        there = published()
        self._finished = {task for task in self._sizes if there(task)}
        self._waiting = collections.deque(task for task in self._sizes if task not in self._finished)
        self._copies: dict[int, _Copy] = {}
        self._names = itertools.count()
        self._starts: collections.Counter[Task] = collections.Counter()
        self._failures: collections.Counter[tuple[Task, str]] = collections.Counter()
        self._pace: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._restarts = 0
        self._sum = self._shown = Done(bytes=sum(self._sizes[task] for task in self._finished))
        self._last_report: float | None = None
        self.peak_memory = 0
        """The most memory that one part's process held."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show progress; at the end stop everything. Errors say what is kept."""
        try:
            self._progress.begin(sum(self._sizes.values()), self._sum, Gathered(self._copies))
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

    def make_part_again(self, number: int) -> None:
        """Have a part made that was there, and that somebody has removed."""
        task = Task("part", number)
        self._finished.remove(task)
        self._waiting.appendleft(task)

    def has_part(self, number: int) -> bool:
        return Task("part", number) in self._finished

    def run(self) -> None:
        """Make everything that is missing."""
        with self.running():
            while self._busy:
                self.step(_TICK)

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._copies)

    def step(self, seconds: float) -> None:
        """Start copies, and process reports, for which it waits up to `seconds`.

        Raise the error of a part that cannot be made.
        """
        if not self._busy:
            self._last_report = None
            return
        if self._last_report is None:
            self._executor.open()
            self._last_report = self._clock()
        self._start_copies()
        for name, report in self._executor.reports(seconds):
            self._last_report = self._clock()
            self._process_report(name, report, self._last_report)
        self._drop_silent(self._clock())
        if (done := self._done()) != self._shown:
            self._shown = done
            self._progress.update(done)
        if self._clock() - self._last_report > _STALLED:
            raise ShardmillError(
                f"no part has reported for {show_seconds(_STALLED)}",
                hint="the nodes may be busy or out of reach",
            )

    def _start_copies(self) -> None:
        """Start as many copies as there is room for: first of parts that nobody makes, then of late ones."""
        for _ in range(self._executor.room()):
            task = self._waiting.popleft() if self._waiting else self._most_overdue(self._clock())
            if task is None:
                return
            name = next(self._names)
            self._copies[name] = _Copy(task)
            self._starts[task] += 1
            self._executor.start(name, task)

    def _most_overdue(self, now: float) -> Task | None:
        """Return the most overdue task that has only one copy, or None."""
        alone = collections.Counter(copy.task for copy in self._copies.values())
        if len(self._pace) < _MEASURED:
            return None
        pace = statistics.median(self._pace)
        overdue = {
            copy.task: now - copy.started - (_LATE * pace * self._sizes[copy.task] + _GRACE)
            for copy in self._copies.values()
            if copy.started is not None and alone[copy.task] == 1 and self._starts[copy.task] < _STARTS
        }
        latest = max(overdue, key=overdue.__getitem__, default=None)
        if latest is None or overdue[latest] <= 0:
            return None
        self._restarts += 1
        return latest

    def _process_report(self, name: int, report: PartReport, now: float) -> None:
        """Process a report."""
        if name not in self._copies:
            return  # stopped meanwhile
        copy = self._copies[name]
        copy.report, copy.last_report = report, now
        copy.started = copy.started or now
        self.peak_memory = max(self.peak_memory, report.memory)
        if not report.last:
            return
        del self._copies[name]
        if report.kind == "done":
            self._pace.append((now - copy.started) / max(1, self._sizes[copy.task]))
            self._finish(copy)
        elif report.error is not None:
            self._count_failure(copy.task, report, report.error)
            self._start_again(copy, str(report.error))
        else:
            self._start_again(copy, report.why)

    def _finish(self, copy: _Copy) -> None:
        """Count what is published, and stop other copies of it."""
        self._finished.add(copy.task)
        for name in [name for name, other in self._copies.items() if other.task == copy.task]:
            del self._copies[name]
            self._executor.stop(name)
        done = copy.report.done
        self._sum = Done(
            self._sum.bytes + self._sizes[copy.task],
            self._sum.documents + done.documents,
            self._sum.tokens + done.tokens,
            self._sum.rejected + done.rejected,
            retries=self._sum.retries + done.retries,
        )

    def _count_failure(self, task: Task, report: PartReport, error: ShardmillError) -> None:
        """Raise the error if retrying cannot help, or did not."""
        self._failures[task, error.message] += 1
        if isinstance(error, (UsageError, SourceError)) or self._failures[task, error.message] >= _SAME:
            where = f"{task}, on {report.node}" if report.node else str(task)
            error.place = f"{error.place} ({where})" if error.place else where
            error.kept = self._kept()
            raise error

    def _start_again(self, copy: _Copy, why: str) -> None:
        if any(other.task == copy.task for other in self._copies.values()):
            return
        if self._starts[copy.task] >= _STARTS:
            raise ShardmillError(
                f"{copy.task} was started {_STARTS} times, and never came to its end",
                place=f"on {copy.report.node}: {why}" if copy.report.node else why,
            )
        self._restarts += 1
        self._waiting.appendleft(copy.task)

    def _drop_silent(self, now: float) -> None:
        """Give up copies that have been silent for too long, unless they have published their part."""
        silent = [
            name for name, copy in self._copies.items() if copy.started is not None and now - copy.last_report > _SILENT
        ]
        if not silent:
            return
        there = self._published()
        for name in silent:
            if name not in self._copies:
                continue  # stopped as the second copy of a part that is published
            copy = self._copies.pop(name)
            self._executor.stop(name)
            if there(copy.task):
                self._finish(copy)
            else:
                self._start_again(copy, f"it has not reported for {show_seconds(_SILENT)}")

    def _done(self) -> Done:
        """Return the progress of all parts together."""
        furthest: dict[Task, Done] = {}
        for copy in self._copies.values():
            done = copy.report.done
            if done.bytes >= furthest.get(copy.task, done).bytes:
                furthest[copy.task] = done
        running = furthest.values()
        return Done(
            self._sum.bytes + sum(min(done.bytes, self._sizes[task]) for task, done in furthest.items()),
            self._sum.documents + sum(done.documents for done in running),
            self._sum.tokens + sum(done.tokens for done in running),
            self._sum.rejected + sum(done.rejected for done in running),
            retries=self._sum.retries + sum(done.retries for done in running),
            parts=self._parts_shown(),
        )

    def _counts(self) -> str:
        """Return how many parts are done, as a phrase."""
        return f"{len(self._finished):,} of {len(self._sizes):,} parts"

    def _parts_shown(self) -> str:
        running = sum(copy.started is not None for copy in self._copies.values())
        restarts = f", {self._restarts} started again" if self._restarts else ""
        return f"{self._counts()}, {running:,} running{restarts}"

    def _kept(self) -> str:
        return f"{self._counts()} are done; the same command resumes the run"
