"""Plan, parts and merge killed at every step that touches the disk: the same bytes in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus import documents, write_jsonl
from tests.crashing import crash_parts

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize(
    ("every", "power", "format", "keep"),
    [
        (40, 0.0, "shards", False),
        (37, 1.0, "shards", False),
        (60, 0.0, "mds", True),
        pytest.param(1, 0.0, "shards", False, marks=pytest.mark.slow),
        pytest.param(3, 1.0, "shards", False, marks=pytest.mark.slow),
        pytest.param(5, 0.0, "megatron", False, marks=pytest.mark.slow),
        pytest.param(5, 0.0, "mds", False, marks=pytest.mark.slow),
        pytest.param(2, 0.0, "shards", True, marks=pytest.mark.slow),
        pytest.param(3, 1.0, "mds", True, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_they_come_to_the_same_bytes(
    tmp_path: Path, every: int, power: float, format: str, keep: bool, rolling: bool
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(60, seed=9))
    kept = {"keep_parts": True} if keep else {}
    kills = crash_parts(source, tmp_path / "out", 3, every=every, power=power, format=format, val=0.1,
                        shard_tokens=4_000, rolling=rolling, **kept)  # fmt: skip
    assert kills > 1
