"""The time of a run is that of whatever it waits for longest."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.inspection.inspection import _seconds
from shardmill.sampling import Amount, Expected
from shardmill.sampling.places import SampledPlace
from shardmill.sampling.sample import Kind


@pytest.mark.parametrize(
    ("feeding", "encoding", "download", "workers", "bound", "least"),
    [
        (1e-3, 9e-3, 90_000, 4, "download", 90_000),
        (9e-3, 1e-3, 5, 4, "feeder", 9_000),
        (1e-3, 9e-3, 5, 1, "workers", 10_000),
        (1e-3, 9e-3, 5, 4, "workers", 2_500),
    ],
)
def test_the_slowest_part_bounds_the_time(
    feeding: float, encoding: float, download: float, workers: int, bound: str, least: float
) -> None:
    stored = 10**12
    kind = Kind("text", "", [0], np.array([stored]), np.array([stored]))
    slow = [SampledPlace(text=10**6, encoded=10**6, reading=1.0, encoding=1.0)] * 2  # while libraries are loaded
    kind.places = slow + [SampledPlace(text=10**6, encoded=10**6, feeding=feeding, encoding=encoding)] * 9
    seconds, by = _seconds([kind], [Expected(text=Amount(stored))], workers, download)
    assert by == bound
    assert least <= seconds < 1.01 * least
