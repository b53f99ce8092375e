"""What the driver does when parts end well, fail, die or stand still; on a clock that runs ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.cluster import driver
from shardmill.cluster.executors import EXECUTORS, Executor, PartReport, make_executor
from shardmill.cluster.ray_executor import default_workers, parse_resources
from shardmill.errors import BudgetError, Interrupted, OutputError, ShardmillError, SourceError, UsageError
from shardmill.write.progress import Done, Progress
from tests.cluster.simulated import Cluster, SimulatedExecutor

CALM = Cluster(nodes=2, slots=2, spread=0.0, slow=0.0, lost=0.0)
GB = 10**9


class Troubled(SimulatedExecutor):
    """A cluster in which what happens to some parts is written down beforehand.

    Each time such a part is made, it takes the next entry: a PartReport in the place of its end; a factor by which it
    is slower, where infinity is a part that never ends; or "frozen": nothing more is heard of it.
    """

    def __init__(self, parts: int, happens: dict[int, list[PartReport | float | str]], cluster: Cluster = CALM) -> None:
        super().__init__(cluster, dict.fromkeys(range(parts), GB))
        self._happens = {number: list(list_) for number, list_ in happens.items()}
        self._ends: dict[int, PartReport] = {}
        self.started: list[int] = []
        self.stopped: list[int] = []
        self.opened = False
        self.most = 0

    def _start(self, copy: int, number: int) -> None:
        self.started.append(number)
        what = self._happens[number].pop(0) if self._happens.get(number) else 1.0
        seconds = 10.0 * what if isinstance(what, float) else 10.0
        self._seconds = {number: seconds if seconds < math.inf else 1e9}
        super()._start(copy, number)
        self.most = max(self.most, len(self._running))
        if isinstance(what, PartReport):
            self._ends[number] = what
        elif what == "frozen":
            self._running[copy].frozen = True

    def reports(self, seconds: float) -> Iterator[tuple[int, PartReport]]:
        for number, report in super().reports(seconds):
            if report.kind == "done" and number in self._ends:
                self.published.discard(number)
                report = self._ends.pop(number)
            yield number, report

    def stop(self, number: int) -> None:
        self.stopped.append(number)
        for running in self._running.values():  # ended by force, so that its slot is free again
            running.frozen = running.frozen and running.number != number
        super().stop(number)

    def open(self) -> None:
        self.opened = True


class Seen(Progress):
    def begin(self, total: int | None, done: Done, budget: Any) -> None:
        self.states, self.total, self.memory = [done], total, budget
        self.words: list[Any] = []

    def update(self, done: Done) -> None:
        self.states.append(done)
        self.words.append(done.parts)

    def end(self) -> None:
        self.ended = True


def drive(
    executor: Troubled, progress: Progress | None = None, missing: Callable[[], list[int]] | None = None
) -> driver.Driver:
    """Make all parts, as a merge that asks for one after another."""
    sizes = dict(executor._sizes)
    one = driver.Driver(sizes, missing or executor.missing, executor, progress or Progress(), executor.clock)
    with one.running():
        while not all(map(one.has_part, sizes)):
            one.step(1.0)
    return one


def failed(kind: type[ShardmillError] = OutputError, message: str = "no space left") -> PartReport:
    return PartReport("failed", "node-7", error=kind(message, place="there", hint="another way"))


def lost(why: str = "SIGKILL") -> PartReport:
    return PartReport("lost", "node-7", why=why)


def test_every_part_is_made_once() -> None:
    executor = Troubled(20, {})
    drive(executor)
    assert executor.started == list(range(20)) and executor.missing() == []


def test_all_parts_are_submitted_at_once() -> None:
    executor, seen = Troubled(50, {}), []
    submit = executor.submit
    executor.submit = lambda number: (seen.append(executor.now), submit(number))[1]  # type: ignore[method-assign]
    drive(executor)
    assert seen == [0.0] * 50 and executor.most <= 4


def test_what_is_published_is_not_made_again() -> None:
    executor = Troubled(10, {})
    executor.published |= {0, 1, 5}
    progress = Seen()
    drive(executor, progress)
    assert sorted(executor.started) == [2, 3, 4, 6, 7, 8, 9]
    assert progress.states[0].bytes == 3 * GB and progress.states[-1].bytes == progress.total == 10 * GB


def test_nothing_is_opened_when_nothing_is_missing() -> None:
    executor = Troubled(3, {})
    executor.published |= {0, 1, 2}
    drive(executor)
    assert executor.started == [] and not executor.opened


def test_a_lost_part_is_started_again_before_others() -> None:
    executor = Troubled(20, {0: [lost(), lost()]})
    drive(executor)
    assert executor.missing() == [] and executor.started.count(0) == 3
    assert executor.started.index(0, 1) < 10


@pytest.mark.parametrize("error", [OutputError, BudgetError, ShardmillError])
def test_a_part_that_fails_may_do_so_twice(error: type[ShardmillError]) -> None:
    executor = Troubled(5, {2: [failed(error), failed(error)]})
    drive(executor)
    assert executor.missing() == []


def test_a_part_that_fails_three_times_with_the_same_error_stops_the_run_with_it() -> None:
    executor = Troubled(5, {2: [failed()] * 9})
    with pytest.raises(OutputError, match="no space left") as caught:
        drive(executor)
    assert executor.started.count(2) == 3
    assert caught.value.place == "there (part 2, on node-7)" and caught.value.hint == "another way"
    assert caught.value.kept == "4 of 5 parts are done; the same command resumes the run"


def test_different_errors_are_counted_apart_up_to_a_number_of_starts() -> None:
    executor = Troubled(5, {2: [failed(message=f"trouble {i}") for i in range(99)]})
    with pytest.raises(ShardmillError, match="started 10 times") as caught:
        drive(executor)
    assert "node-7" in caught.value.place and "trouble 9" in caught.value.place


@pytest.mark.parametrize("error", [UsageError, SourceError])
def test_an_error_that_cannot_go_away_stops_the_run_at_once(error: type[ShardmillError]) -> None:
    executor = Troubled(8, {1: [failed(error)] * 9})
    with pytest.raises(error):
        drive(executor)
    assert executor.started.count(1) == 1


def test_a_part_that_is_lost_again_and_again_stops_the_run() -> None:
    executor = Troubled(5, {2: [lost("ended by SIGKILL")] * 99})
    with pytest.raises(ShardmillError, match="part 2 was started 10 times") as caught:
        drive(executor)
    assert "ended by SIGKILL" in caught.value.place


def test_a_part_that_does_not_come_further_is_given_up_and_made_again() -> None:
    """Also the very first ones, and with no room beside them."""
    executor = Troubled(6, {number: ["frozen"] for number in range(4)})
    drive(executor)
    assert executor.missing() == [] and len(executor.started) == 10
    assert sorted(executor.stopped) == [0, 1, 2, 3]


def test_reports_in_which_nothing_is_new_are_not_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Troubled(3, {1: [math.inf]})
    reports = executor.reports

    def still(seconds: float) -> Iterator[tuple[int, PartReport]]:
        for number, report in reports(seconds):
            yield number, PartReport("running") if report.kind == "running" else report

    monkeypatch.setattr(executor, "reports", still)
    drive(executor)
    assert executor.missing() == [] and executor.started.count(1) == 2 and executor.stopped == [1]


def test_a_part_that_is_slow_and_comes_further_is_left_alone() -> None:
    executor = Troubled(3, {1: [100.0]})
    drive(executor)
    assert executor.started == [0, 1, 2] and executor.stopped == []


def test_a_part_that_stands_still_after_it_was_published_counts() -> None:
    executor = Troubled(3, {0: ["frozen"]})
    asked = []

    def missing() -> list[int]:
        asked.append(1)
        return [number for number in executor.missing() if number or len(asked) == 1]

    drive(executor, missing=missing)
    assert executor.started.count(0) == 1 and executor.stopped == [0]


def test_parts_that_were_sent_to_a_node_that_froze_before_it_said_so_are_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Troubled(6, {})
    submit, swallowed = executor.submit, [3, 4]

    def sent(number: int) -> None:
        if number in swallowed:
            swallowed.remove(number)
            executor.stop = lambda number: None  # type: ignore[method-assign]
        else:
            submit(number)

    monkeypatch.setattr(executor, "submit", sent)
    drive(executor)
    assert executor.missing() == []


def test_when_nothing_is_heard_from_anywhere_the_run_ends() -> None:
    executor = Troubled(3, {})
    executor._free = {}
    with pytest.raises(ShardmillError, match="no part has reported"):
        drive(executor)


@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt])
def test_an_interrupt_says_what_is_kept(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    executor = Troubled(30, {})
    reports = executor.reports

    def interrupted(seconds: float) -> Iterator[tuple[int, PartReport]]:
        yield from reports(seconds)
        if len(executor.published) >= 6:
            raise kind

    monkeypatch.setattr(executor, "reports", interrupted)
    with pytest.raises(Interrupted) as caught:
        drive(executor)
    assert caught.value.kept.startswith("8 of 30 parts are done")


def test_progress_is_gathered_from_all_parts() -> None:
    progress = Seen()
    drive(Troubled(20, {3: [lost()], 19: ["frozen"]}), progress)
    assert progress.states[-1].bytes == 20 * GB
    assert any("2 started again" in words for words in progress.words) and progress.ended
    assert any(words.startswith("3 of 20 parts") for words in progress.words)


def test_the_memory_that_is_shown_is_that_of_the_fullest_node() -> None:
    running = {
        i: driver.RunningPart(PartReport("running", node, memory=memory, limit=100), 0.0)
        for i, (node, memory) in enumerate([("a", 10), ("b", 30), ("a", 25), ("c", 34)])
    }
    shown = driver.NodeMemory(running, 0)
    assert (shown.sample(), shown.memory) == (35, 200)


def test_a_report_survives_its_way_through_a_line_of_json() -> None:
    done = Done(1, 2, 3, 4)
    for report in (PartReport("running", "a", done, 5, 6), failed(), failed(SourceError, "ü\n"), lost()):
        line = report.line()
        back = PartReport.read(line)
        assert "\n" not in line and str(back.error) == str(report.error) and type(back.error) is type(report.error)
        assert back.line() == line


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_of_the_table_can_be_made(name: str, tmp_path: Path) -> None:
    if name == "ray":
        pytest.importorskip("ray", reason="ray is not installed")
    assert isinstance(make_executor(name, str(tmp_path)), Executor)


def test_an_executor_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="no executor `slurm`") as caught:
        make_executor("slurm", "out")
    assert "local" in caught.value.hint


def test_a_setting_of_another_executor_is_refused() -> None:
    with pytest.raises(UsageError, match="`ray_address` means nothing to the executor `local`"):
        make_executor("local", "out", ray_address="somewhere")


def test_resources_of_ray_are_an_object_of_numbers() -> None:
    assert parse_resources('{"label": 1, "disk": 0.5}') == {"label": 1.0, "disk": 0.5} and parse_resources(None) == {}
    for wrong in ("label", "[1]", '{"label": "x"}'):
        with pytest.raises(UsageError, match="ray_resources"):
            parse_resources(wrong)


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "workers"),
    [(64, 128, 4), (8, 16, 4), (4, 16, 2), (2, 8, 1), (2, 2, 2), (1, 8, 1), (0, 8, 1)],
)
def test_a_node_runs_two_parts_at_a_time_if_its_memory_suffices(cpus: int, gigabytes: int, workers: int) -> None:
    nodes = [{"CPU": 0.0, "memory": 1e12}, {"CPU": float(cpus), "memory": gigabytes * 1e9}]
    assert default_workers(nodes, 10**9) == workers
