"""What this process may use and holds, as the system tells it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

from shardmill.run import machine


def test_the_limits_of_a_container_are_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "slice" / "job"
    here.mkdir(parents=True)
    (here / "memory.max").write_text("max\n")
    (tmp_path / "slice" / "memory.max").write_text("700000000\n")
    (here / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(machine, "_cgroup_folders", lambda: [here, tmp_path / "slice", tmp_path])
    assert machine.usable_memory() == 700_000_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: set(range(8)), raising=False)
    assert machine.usable_cpus() == 2


def by_hand_or_by_psutil(monkeypatch: pytest.MonkeyPatch, linux: bool) -> None:
    if linux and not machine._LINUX:
        pytest.skip("/proc is Linux's")
    monkeypatch.setattr(machine, "_LINUX", linux)


@pytest.mark.parametrize("linux", [True, False])
def test_memory_that_is_taken_and_given_back_is_seen(monkeypatch: pytest.MonkeyPatch, linux: bool) -> None:
    by_hand_or_by_psutil(monkeypatch, linux)
    before = machine.resident()
    block = np.ones(100_000_000, np.uint8)
    assert 90_000_000 < machine.resident() - before < 110_000_000
    del block
    assert machine.resident() - before < 10_000_000


@pytest.mark.parametrize("linux", [True, False])
def test_no_more_memory_may_be_used_than_there_is(monkeypatch: pytest.MonkeyPatch, linux: bool) -> None:
    by_hand_or_by_psutil(monkeypatch, linux)
    monkeypatch.setattr(machine, "_cgroup_folders", list)
    assert machine.usable_memory() == psutil.virtual_memory().total


def test_what_arrow_keeps_for_itself_is_handed_back() -> None:
    held = [pa.array(np.ones(250_000, np.uint8)).cast(pa.int32()) for _ in range(100)]
    full = machine.resident()
    del held
    machine.trim_memory()
    assert full - machine.resident() > 80_000_000
