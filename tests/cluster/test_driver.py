"""What the driver does when copies of parts end well, fail, die, freeze or are slow; on a clock that runs ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import Cluster, SimulatedExecutor
from shardmill.cluster import driver
from shardmill.cluster.executors import EXECUTORS, Executor, PartReport, Task, make_executor
from shardmill.cluster.ray_executor import default_workers
from shardmill.errors import BudgetError, Interrupted, OutputError, ShardmillError, SourceError, UsageError
from shardmill.run.progress import Done, Progress

CALM = Cluster(nodes=2, slots=2, spread=0.0, slow=0.0, lost=0.0)
GB = 10**9


class Troubled(SimulatedExecutor):
    """A cluster in which what happens to the copies of some parts is written down beforehand.

    Each copy of a part takes the next entry: a PartReport in the place of its end; a factor by which it is slower,
    where infinity is a copy that makes nothing and says that it is at work; or "frozen": nothing more is heard of it.
    """

    def __init__(self, parts: int, happens: dict[int, list[PartReport | float | str]], cluster: Cluster = CALM) -> None:
        super().__init__(cluster, dict.fromkeys(range(parts), GB))
        self._happens = {number: list(list_) for number, list_ in happens.items()}
        self._ends: dict[int, PartReport] = {}
        self.started: list[int] = []
        self.stopped: list[int] = []
        self.opened = False
        self.most = 0

    def start(self, copy: int, task: Task) -> None:
        number = task.number
        self.started.append(number)
        what = self._happens[number].pop(0) if self._happens.get(number) else 1.0
        seconds = 10.0 * what if isinstance(what, float) else 10.0
        self._seconds = {number: seconds if seconds < math.inf else 1e9}
        super().start(copy, task)
        self.most = max(self.most, len(self._running))
        if isinstance(what, PartReport):
            self._ends[copy] = what
        elif what == "frozen":
            self._running[copy].frozen = True

    def reports(self, seconds: float) -> Iterator[tuple[int, PartReport]]:
        for copy, report in super().reports(seconds):
            if report.kind == "done" and copy in self._ends:
                self.published.discard(self.started[copy])
                report = self._ends[copy]
            yield copy, report

    def stop(self, copy: int) -> None:
        self.stopped.append(copy)
        self._running[copy].frozen = False  # ended by force, so that its slot is free again
        super().stop(copy)

    def _end(self, copy: int, kind: str) -> PartReport:
        super().stop(copy)
        return PartReport(kind)

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


def drive(executor: Troubled, progress: Progress | None = None) -> driver.Driver:
    sizes = dict(executor._sizes)
    one = driver.Driver(sizes, executor.look, executor, progress or Progress(), executor.clock)
    one.run()
    return one


def failed(kind: type[ShardmillError] = OutputError, message: str = "no space left") -> PartReport:
    return PartReport("failed", "node-7", error=kind(message, place="there", hint="another way"))


def lost(why: str = "SIGKILL") -> PartReport:
    return PartReport("lost", "node-7", why=why)


def test_every_part_is_made_once() -> None:
    executor = Troubled(20, {})
    drive(executor)
    assert executor.started == list(range(20)) and executor.missing() == []


def test_no_more_copies_are_on_their_way_than_there_is_room_for() -> None:
    executor = Troubled(50, {3: [lost(), failed()], 7: ["frozen"]})
    drive(executor)
    assert executor.most <= 4


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


def test_a_copy_of_which_nothing_is_heard_is_given_up() -> None:
    """Also the very first ones, when nothing has been measured yet; and with no room beside them."""
    executor = Troubled(6, {number: ["frozen"] for number in range(4)})
    drive(executor)
    assert executor.missing() == [] and len(executor.started) == 10
    assert sorted(executor.stopped) == [0, 1, 2, 3]


def test_a_silent_copy_that_has_published_its_part_counts() -> None:
    executor = Troubled(3, {0: ["frozen"]})
    sizes, asked = dict(executor._sizes), []

    def look() -> Callable[[Task], bool]:
        asked.append(1)
        return lambda task: task.number in executor.published or (task.number == 0 and len(asked) > 1)

    driver.Driver(sizes, look, executor, Progress(), executor.clock).run()
    assert executor.started.count(0) == 1 and executor.stopped == [0]


def test_a_straggler_gets_a_second_copy_and_the_first_that_is_done_ends_the_other() -> None:
    executor = Troubled(12, {5: [100.0]})
    drive(executor)
    assert executor.started.count(5) == 2 and len(executor.stopped) == 1
    assert executor.now < 200  # alone it would have taken a thousand seconds


def test_a_copy_that_works_and_comes_to_no_end_does_not_hold_up_the_run() -> None:
    executor = Troubled(12, {5: [math.inf]})
    drive(executor)
    assert executor.missing() == [] and executor.started.count(5) == 2


def test_a_straggler_is_not_copied_before_every_part_has_been_started() -> None:
    executor = Troubled(40, {0: [100.0]})
    drive(executor)
    assert executor.started[-1] == 0 and executor.started.count(0) == 2


def test_nothing_is_late_before_something_was_measured() -> None:
    executor = Troubled(2, {0: [50.0], 1: [50.0]})
    drive(executor)
    assert executor.started == [0, 1]


def test_when_nothing_is_heard_from_anywhere_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Troubled(3, {})
    monkeypatch.setattr(executor, "room", lambda: 0)
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


def test_progress_is_gathered_from_all_copies() -> None:
    progress = Seen()
    drive(Troubled(20, {3: [lost()], 19: [math.inf]}), progress)
    assert progress.states == sorted(progress.states, key=lambda done: done.bytes)
    assert any("2 started again" in words for words in progress.words) and progress.ended
    assert any(words.startswith("3 of 20 parts") for words in progress.words)


def test_the_memory_that_is_shown_is_that_of_the_fullest_node() -> None:
    copies = {
        i: driver._Copy(Task("part", i), report=PartReport("running", node, memory=memory, limit=100))
        for i, (node, memory) in enumerate([("a", 10), ("b", 30), ("a", 25), ("c", 34)])
    }
    gathered = driver.Gathered(copies)
    assert (gathered.sample(), gathered.memory) == (35, 200)


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
    with pytest.raises(UsageError, match="`--ray-address` means nothing to the executor `local`"):
        make_executor("local", "out", ray_address="somewhere")


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "workers"),
    [(64, 128, 4), (8, 16, 4), (4, 16, 2), (2, 8, 1), (2, 2, 2), (1, 8, 1), (0, 8, 1)],
)
def test_a_node_runs_two_parts_at_a_time_if_its_memory_suffices(cpus: int, gigabytes: int, workers: int) -> None:
    nodes = [{"CPU": 0.0, "memory": 1e12}, {"CPU": float(cpus), "memory": gigabytes * 1e9}]
    assert default_workers(nodes, 10**9) == workers
