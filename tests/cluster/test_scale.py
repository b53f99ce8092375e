"""The simulation against what is known: a calm cluster, real processes, and the reasons for the driver's figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import GB, Cluster, paper, replay, simulate
from shardmill.cluster import driver
from shardmill.cluster.executors import PartReport
from shardmill.cluster.local_executor import LocalExecutor
from shardmill.run.progress import Progress

CALM = Cluster(nodes=4, slots=4, spread=0.0, slow=0.0, lost=0.0)


def test_in_a_calm_cluster_the_time_can_be_reckoned() -> None:
    outcome = simulate(CALM, 64 * 10 * GB, 10 * GB)
    each = CALM.start + 10 * GB / CALM.rate
    assert outcome.seconds == pytest.approx(4 * each, rel=0.02)
    assert outcome.worked == pytest.approx(64 * each / (640 * GB / CALM.rate), rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_every_part_is_made_also_where_nodes_are_lost_every_few_minutes(seed: int) -> None:
    outcome = simulate(Cluster(nodes=8, lost=12.0, away=60.0), 400 * GB, 4 * GB, seed)
    assert outcome.seconds < 20 * outcome.ideal


def test_the_page_has_what_the_figures_give() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    table = "\n".join(paper())
    assert table in page, "put this into docs/scale.md:\n" + table


class Watched(LocalExecutor):
    """Real processes, and how many seconds of a slot each part took, from when it was free."""

    def __init__(self, out: Any, parallel: int, **settings: Any) -> None:
        super().__init__(out, parallel=parallel, **settings)
        self.began = self.ended = time.monotonic()
        self.seconds: dict[int, float] = {}
        self._free = [self.began] * parallel
        self._begun: dict[int, float] = {}

    def reports(self, seconds: float) -> Iterator[tuple[int, PartReport]]:
        for number, report in super().reports(seconds):
            if report.kind == "started":
                self._begun[number] = self._free.pop(0)
            if report.kind == "done":
                self.ended = time.monotonic()
                self.seconds[number] = self.ended - self._begun[number]
                self._free.append(self.ended)
            yield number, report


def test_a_real_run_takes_as_long_as_the_simulation_of_its_parts(tmp_path: Path) -> None:
    from shardmill.cluster import missing_parts, plan_parts
    from tests.corpus import documents, write_jsonl

    source = write_jsonl(tmp_path / "web.jsonl", documents(500))
    plan = plan_parts(source, tmp_path / "out", parts=7)
    executor = Watched(str(tmp_path / "out"), memory=1_000_000_000, workers=1, parallel=2)
    sizes = {part.number: part.bytes for part in plan.parts}
    driver.Driver(sizes, lambda: missing_parts(plan), executor, Progress()).run()
    # Both are sums of the same seconds, so the speed of the machine does not matter.
    real = executor.ended - executor.began
    assert replay([executor.seconds[number] for number in range(7)], 2) == pytest.approx(real, rel=1e-6)
