"""Makes all parts of a plan with an executor: starts what is missing, and restarts what is lost.

The driver holds no state that matters: only published parts count, so it can be killed and restarted at any moment.
"""

from __future__ import annotations

import collections
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shardmill.cluster.executors import Executor, PartReport, make_executor
from shardmill.cluster.layout import Layout
from shardmill.cluster.merging import merge_by
from shardmill.cluster.pieces import UnusedParts, missing_pieces
from shardmill.cluster.place import place_of
from shardmill.cluster.planning import PartPlan, find_part_plan, finished_parts, missing_parts, plan_parts
from shardmill.errors import Interrupted, ShardmillError, SourceError, UsageError
from shardmill.options import Options
from shardmill.run import Done, Progress, Result, open_destination
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

    number: int
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
    planned, complete = find_part_plan(out) is not None, open_destination(out).manifest() is not None
    if chosen.get("overwrite") and (planned or complete):
        raise UsageError("`--overwrite` cannot be used with `--executor`", place=out, hint="delete what is there first")
    if complete and not planned and (manifest := finished_parts(sources, out, parts, keep_parts, options)):
        place_of(out).clear()  # leftovers of a kill in the last step
        return Result(open_destination(out).shown, manifest, already=True)
    plan = plan_parts(sources, out, parts=parts, keep_parts=keep_parts, **options)
    sizes = {part.number: part.bytes for part in plan.parts}
    driver = Driver(sizes, partial(missing_parts, plan), runs, progress)
    try:
        driver.run()
        runs.open()
        result = merge_by(partial(make_pieces, runs), runs.room(), out, memory, progress)
    finally:
        runs.close()
    most = max(driver.peak_memory, result.peak_memory)
    return replace(result, seconds=time.monotonic() - started, peak_memory=most)


def make_pieces(executor: Executor, plan: PartPlan, layout: Layout, progress: Progress) -> None:
    """Have an executor make all pieces of the final files that are missing."""
    missing = partial(missing_pieces, plan.place, layout)
    parts = UnusedParts(plan, layout, missing())
    progress.end()  # that of the layout
    executor.kind = "piece"
    try:
        Driver(layout.sizes(), missing, executor, progress, finished=parts.remove).run()
    finally:
        executor.close()


class Driver:
    """Makes numbered parts or pieces: `run` is called once."""

    def __init__(
        self,
        sizes: Mapping[int, int],
        missing: Callable[[], list[int]],
        executor: Executor,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        *,
        finished: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`sizes`: bytes of each part by its number. `missing`: lists those that are not published yet.

        `finished` is called with the number of each part that gets published.
        """
        self._what, self._finished = executor.kind, finished
        self._bytes, self._missing = sizes, missing
        self._executor, self._progress, self._clock = executor, progress, clock
        self._waiting: collections.deque[int] = collections.deque()
        self._copies: dict[int, _Copy] = {}
        self._names = itertools.count()
        self._starts: collections.Counter[int] = collections.Counter()
        self._failures: collections.Counter[tuple[int, str]] = collections.Counter()
        self._pace: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._finished_count = 0
        self._restarts = 0
        self._sum = self._shown = Done()
        self.peak_memory = 0
        """The most memory that one part's process held."""

    def run(self) -> None:
        """Make all parts that are missing. Raise the error of a part that cannot be made."""
        missing = self._missing()
        published = sum(self._bytes.values()) - sum(self._bytes[number] for number in missing)
        self._finished_count, self._sum = len(self._bytes) - len(missing), Done(bytes=published)
        if not missing:
            return
        try:
            self._executor.open()
            self._progress.begin(sum(self._bytes.values()), self._sum, Gathered(self._copies))
            # In a loop: somebody may have removed a part meanwhile.
            while missing := self._missing():
                self._waiting.extend(missing)
                self._run_waiting()
        except ShardmillError as error:
            error.kept = error.kept or self._kept()
            raise
        except KeyboardInterrupt as why:
            # Ray raises an exception of its own when it notices the signal.
            interrupted = why if isinstance(why, Interrupted) else Interrupted()
            interrupted.kept = self._kept()
            raise interrupted from None
        finally:
            self._progress.end()

    def _run_waiting(self) -> None:
        last_report = self._clock()
        while self._waiting or self._copies:
            self._start_copies()
            for name, report in self._executor.reports(_TICK):
                last_report = self._clock()
                self._process_report(name, report, last_report)
            self._drop_silent(self._clock())
            if (done := self._done()) != self._shown:
                self._shown = done
                self._progress.update(done)
            if self._clock() - last_report > _STALLED:
                raise ShardmillError(
                    f"no part has reported for {show_seconds(_STALLED)}",
                    hint="the nodes may be busy or out of reach",
                )

    def _start_copies(self) -> None:
        """Start as many copies as there is room for: first of parts that nobody makes, then of late ones."""
        for _ in range(self._executor.room()):
            number = self._waiting.popleft() if self._waiting else self._most_overdue(self._clock())
            if number is None:
                return
            name = next(self._names)
            self._copies[name] = _Copy(number)
            self._starts[number] += 1
            self._executor.start(name, number)

    def _most_overdue(self, now: float) -> int | None:
        """Return the most overdue part that has only one copy, or None."""
        if len(self._pace) < _MEASURED:
            return None
        alone = collections.Counter(copy.number for copy in self._copies.values())
        pace = statistics.median(self._pace)
        overdue = {
            copy.number: now - copy.started - (_LATE * pace * self._bytes[copy.number] + _GRACE)
            for copy in self._copies.values()
            if copy.started is not None and alone[copy.number] == 1 and self._starts[copy.number] < _STARTS
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
            self._pace.append((now - copy.started) / max(1, self._bytes[copy.number]))
            self._finish(copy)
        elif report.error is not None:
            self._count_failure(copy.number, report, report.error)
            self._start_again(copy, str(report.error))
        else:
            self._start_again(copy, report.why)

    def _finish(self, copy: _Copy) -> None:
        """Count a part that is published, and stop other copies of it."""
        self._finished_count += 1
        self._finished(copy.number)
        done = copy.report.done
        self._sum = Done(
            self._sum.bytes + self._bytes[copy.number],
            self._sum.documents + done.documents,
            self._sum.tokens + done.tokens,
            self._sum.rejected + done.rejected,
            retries=self._sum.retries + done.retries,
        )
        for name in [name for name, other in self._copies.items() if other.number == copy.number]:
            del self._copies[name]
            self._executor.stop(name)

    def _count_failure(self, number: int, report: PartReport, error: ShardmillError) -> None:
        """Raise the error if retrying cannot help, or did not."""
        self._failures[number, error.message] += 1
        if isinstance(error, (UsageError, SourceError)) or self._failures[number, error.message] >= _SAME:
            where = f"{self._what} {number}" + (f", on {report.node}" if report.node else "")
            error.place = f"{error.place} ({where})" if error.place else where
            error.kept = self._kept()
            raise error

    def _start_again(self, copy: _Copy, why: str) -> None:
        if any(other.number == copy.number for other in self._copies.values()):
            return
        if self._starts[copy.number] >= _STARTS:
            raise ShardmillError(
                f"{self._what} {copy.number} was started {_STARTS} times, and never came to its end",
                place=f"on {copy.report.node}: {why}" if copy.report.node else why,
            )
        self._restarts += 1
        self._waiting.appendleft(copy.number)

    def _drop_silent(self, now: float) -> None:
        """Give up copies that have been silent for too long, unless they have published their part."""
        silent = [
            name for name, copy in self._copies.items() if copy.started is not None and now - copy.last_report > _SILENT
        ]
        if not silent:
            return
        missing = set(self._missing())
        for name in silent:
            if name not in self._copies:
                continue  # stopped as the second copy of a part that is published
            copy = self._copies.pop(name)
            self._executor.stop(name)
            if copy.number in missing:
                self._start_again(copy, f"it has not reported for {show_seconds(_SILENT)}")
            else:
                self._finish(copy)

    def _done(self) -> Done:
        """Return the progress of all parts together."""
        furthest: dict[int, Done] = {}
        for copy in self._copies.values():
            done = copy.report.done
            if copy.number not in furthest or done.bytes > furthest[copy.number].bytes:
                furthest[copy.number] = done
        running = furthest.values()
        return Done(
            self._sum.bytes + sum(min(done.bytes, self._bytes[number]) for number, done in furthest.items()),
            self._sum.documents + sum(done.documents for done in running),
            self._sum.tokens + sum(done.tokens for done in running),
            self._sum.rejected + sum(done.rejected for done in running),
            retries=self._sum.retries + sum(done.retries for done in running),
            parts=self._parts_shown(),
        )

    def _parts_shown(self) -> str:
        running = sum(copy.started is not None for copy in self._copies.values())
        restarts = f", {self._restarts} started again" if self._restarts else ""
        return f"{self._finished_count:,} of {len(self._bytes):,} {self._what}s, {running:,} running{restarts}"

    def _kept(self) -> str:
        return (
            f"{self._finished_count:,} of {len(self._bytes):,} {self._what}s are done; the same command resumes the run"
        )
