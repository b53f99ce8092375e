"""The part in which `--val first:N` ends inside a stream of text is encoded again by the merge, which may be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.cluster import make_part, plan_parts
from shardmill.dataset import verify
from tests.corpus import contents, documents

MEMORY = "8GB"  # more than the tests' own process holds already

KILLED_AFTER = """
import os, sys
from shardmill.cluster import merge, merging
from shardmill.run import budget
from shardmill.write import checkpoints
from shardmill.write.writer import Writer

budget.SMALLEST = budget.LARGEST = 1 << 16
checkpoints._EVERY = 0.0
out, most, recorded = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
read_again, write = merging.MergedParts._text, Writer.write
batches = 0

def written(self, batch):
    write(self, batch)
    if recorded:
        self.checkpoints.keep(now=True)

def counted(self, *arguments, **more):
    for batch in read_again(self, *arguments, **more):
        assert batch is not None
        yield batch
        # The loop has written the batch; its checkpoint is recorded, or under way.
        global batches
        batches += 1
        if batches == most:
            os._exit(9)

merging.MergedParts._text, Writer.write = counted, written
merge(out, memory="8GB")
"""


@pytest.mark.parametrize("recorded", [True, False])
def test_a_merge_killed_while_it_encodes_a_part_again_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(documents(1500, seed=8)))
    options: dict[str, Any] = {"val": "first:100k", "shard_tokens": 30_000, "format": "shards"}
    shardmill.prepare(text, tmp_path / "one", memory=MEMORY, **options)
    plan = plan_parts(text, tmp_path / "out", parts=3, **options)
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
        patch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
        for part in plan.parts:
            make_part(tmp_path / "out", part.number, memory=MEMORY)
    for kills in range(60):
        # What was not recorded is done again, so a merge that is killed too early may come no further.
        most = 1 if recorded else kills + 1
        command = [sys.executable, "-c", KILLED_AFTER, str(tmp_path / "out"), str(most), str(recorded)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            break
        assert done.returncode == 9, done.stderr
    assert 1 < kills < 59, "no part was encoded again, or a killed merge does not come further"
    assert contents(tmp_path / "out") == contents(tmp_path / "one")
    assert verify(tmp_path / "out").damage == []
