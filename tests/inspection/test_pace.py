"""The time of a run is that of whatever it waits for longest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.documents import Reading
from shardmill.documents.jsonl import JsonLinesReader
from shardmill.inspection.pace import Pace, pace
from shardmill.sampling import Amount, Expected, places
from shardmill.sampling.places import SampledPlace
from shardmill.sampling.sample import Kind, take_sample
from shardmill.sources import find_sources
from shardmill.tokens import load_tokenizer
from tests.corpus import documents, write_jsonl


@pytest.mark.parametrize(
    ("needed", "workers", "cpus", "bound", "least"),
    [
        (Pace(feeding=1, working=40, keeping=1, download=500), 4, 4, "download", 500),
        (Pace(feeding=100, working=40, keeping=1, download=5), 4, 4, "feeder", 100),
        (Pace(feeding=1, working=40, keeping=1, download=5), 1, 4, "workers", 40),
        (Pace(feeding=10, working=40, keeping=1, download=5), 4, 4, "cpus", 51 / 4),
        (Pace(feeding=1, working=8, keeping=1), 1, 1, "cpus", 10),
    ],
)
def test_the_slowest_part_bounds_the_time(needed: Pace, workers: int, cpus: int, bound: str, least: float) -> None:
    seconds, by = needed.seconds(workers, cpus)
    assert by == bound
    assert least <= seconds < 1.3 * least


def sample(stored: int, speeds: list[float]) -> tuple[Kind, Expected]:
    """Places of a megabyte, encoded at these speeds in MB/s, and what they stand for."""
    kind = Kind("text", "", [0], np.array([stored]), np.array([stored]))
    kind.places = [SampledPlace(text=10**6, reading=1e-3, encoded=10**6, encoding=1 / speed) for speed in speeds]
    return kind, Expected(Amount(stored), Amount(stored // 10**4), Amount(stored // 10**4), Amount(stored // 4))


def test_cold_caches_are_paid_for_once_a_worker_and_not_for_every_byte() -> None:
    kind, holds = sample(10**12, [20.0] * 10 + [200.0] * 10)
    warm = pace([kind], [holds], 2, 4, 0.0).working
    assert warm == pytest.approx(10**12 / 200e6 + 1000 + 4 * 0.45, rel=0.2)
    one, four = (pace([kind], [holds], 2, workers, 0.0).working for workers in (1, 4))
    assert four - one == pytest.approx(3 * 10 * (1 / 20 - 1 / 200))


def test_what_loads_libraries_is_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose first chunks take a second each, as an import does, and no time after that."""
    write_jsonl(tmp_path / "a.jsonl", documents(4000))
    now = [0.0]
    calls = []

    def slow_at_first(self: Any, chunk: Any) -> Any:
        calls.append(chunk)
        now[0] += 1.0 if len(calls) <= 2 else 0.0
        return read(self, chunk)

    read = JsonLinesReader.read
    monkeypatch.setattr(JsonLinesReader, "read", slow_at_first)
    monkeypatch.setattr(places, "clock", lambda: now[0])
    monkeypatch.setattr(places, "UNIT", 1 << 14)
    sources = find_sources([str(tmp_path / "a.jsonl")])
    kinds = take_sample(sources, Reading(), load_tokenizer("gpt2").engine())
    assert len(calls) > 10
    assert pace(kinds, [Expected(text=Amount(10**12))], 2, 1, 0.0).working == 0.0
