"""Plan, parts and merge killed at every step that touches the disk: the same bytes in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus import documents, write_jsonl
from tests.crashing import crash_parts


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("every", "power", "format"),
    [
        (40, False, "shards"),
        pytest.param(1, False, "shards", marks=pytest.mark.slow),
        pytest.param(3, True, "shards", marks=pytest.mark.slow),
        pytest.param(5, False, "megatron", marks=pytest.mark.slow),
        pytest.param(5, False, "mds", marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_they_come_to_the_same_bytes(tmp_path: Path, every: int, power: bool, format: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(250, seed=9))
    kills = crash_parts(source, tmp_path / "out", 3, every=every, power=power, format=format, val=0.1,
                        shard_tokens=9_000)  # fmt: skip
    assert kills > 1
