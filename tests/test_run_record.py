"""The record that a run leaves of itself: small, outside of the dataset, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shardmill
from shardmill.errors import SourceError
from shardmill.run import record
from shardmill.run.progress import Done
from shardmill.run.record import POINT, RunRecord, read_record
from tests.corpus import documents, write_jsonl

BUDGET: Any = SimpleNamespace(sample=lambda: 5, memory=100, workers=2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("shardmill.run.record.time.monotonic", lambda: now.seconds)
    return now


def begun(folder: Path, *, resumed: bool = False) -> RunRecord:
    (folder / ".shardmill").mkdir(exist_ok=True)
    return RunRecord(folder / ".shardmill", lambda work: work(), BUDGET, "engine 1", Done(), resumed=resumed)


def test_a_run_leaves_a_record_whose_last_point_is_what_the_manifest_says(tmp_path: Path) -> None:
    made = shardmill.prepare(write_jsonl(tmp_path / "a.jsonl", documents(200)), tmp_path / "out", val=0.2)
    (attempt,) = read_record(tmp_path / "out")
    last = dict(zip(POINT, attempt["points"][-1], strict=True))
    assert attempt["state"] == "complete" and attempt["engine"] == made.engine
    assert last["documents"] == made.manifest["documents"]
    assert last["tokens"] == sum(split["tokens"] for split in made.manifest["splits"].values())
    assert last["memory"] > 0 and last["seconds"] <= made.seconds + 0.01


def test_a_run_that_was_stopped_and_resumed_has_two_attempts_and_a_new_one_has_one(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    good = source.read_bytes()
    source.write_bytes(good + b"not json\n")
    with pytest.raises(SourceError):
        shardmill.prepare(source, tmp_path / "out", max_bad=0)
    assert [one["state"] for one in read_record(tmp_path / "out")] == ["ended early"]
    with pytest.raises(SourceError):
        shardmill.prepare(source, tmp_path / "out", max_bad=0)
    assert len(read_record(tmp_path / "out")) == 2
    shardmill.prepare(source, tmp_path / "out", max_bad=1, overwrite=True)
    assert [one["state"] for one in read_record(tmp_path / "out")] == ["complete"]


def test_the_record_stays_small_however_long_a_run_takes_and_however_often_it_is_resumed(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_SAVED", 1e9)  # what is written on the way would be replaced at the end anyhow
    for attempt in range(record._ATTEMPTS + 3):
        made = begun(tmp_path, resumed=attempt > 0)
        for step in range(3000):
            clock.seconds += 1.0 if step % 50 else 11.0
            made.update(Done(bytes=step, tokens=step))
        made.end(Done(bytes=3000, tokens=3000), complete=True)
    attempts = read_record(tmp_path)
    assert len(attempts) == record._ATTEMPTS
    for one in attempts:
        assert len(one["points"]) <= record._POINTS + 2 and len(one["stalls"]) == record._STALLS
        seconds = [point[0] for point in one["points"]]
        assert seconds == sorted(seconds) and seconds[0] == 0 and one["points"][-1][1] == 3000
    assert (tmp_path / ".shardmill" / "run.json").stat().st_size < 500_000


def test_a_record_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, clock: SimpleNamespace) -> None:
    made = begun(tmp_path)
    (tmp_path / ".shardmill" / "run.json").mkdir()  # where the file should go
    clock.seconds += 60
    made.update(Done())
    made.end(Done(), complete=True)
    assert read_record(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"attempts": 3}',
        '{"attempts": [3, {}, {"memory": 1, "points": [[1, 2]], "stalls": []}]}',
        json.dumps({"attempts": [{"memory": 1, "points": [["<b>"] * len(POINT)], "stalls": []}]}),
    ],
)
def test_a_record_of_another_making_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".shardmill").mkdir()
    (tmp_path / ".shardmill" / "run.json").write_text(text)
    assert read_record(tmp_path) == []
