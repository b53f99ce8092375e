"""Memory: leases, the least that works, what a container allows, and flat lines under a slow disk."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import BudgetError
from shardmill.run import budget
from shardmill.run.budget import MB, Budget
from shardmill.run.machine import resident, usable_memory
from shardmill.storage.fetching import CONNECTIONS, Fetcher
from tests.corpus import random_words
from tests.meter import metered


def test_a_lease_waits_until_there_is_room_and_is_granted_when_nothing_is_held() -> None:
    room = Budget(8000 * MB, 1)
    assert room.lease(room.capacity + 1), "the only lease is granted whatever its size, or nothing would ever move"
    granted = threading.Event()

    def ask() -> None:
        room.lease(10)
        granted.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert not granted.wait(0.2)
    room.release(room.capacity + 1)
    assert granted.wait(100)


def test_closing_the_budget_ends_every_wait() -> None:
    room = Budget(8000 * MB, 1)
    room.lease(room.capacity)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(room.lease(10)), daemon=True)
    thread.start()
    room.close()
    thread.join(100)
    assert answers == [False]


def test_too_little_memory_is_refused_with_the_least_that_works(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(3 * MB))
    refused = metered("prepare", source, "-o", tmp_path / "out", "--memory", "100MB", "--separator", r"\n")
    assert refused.code == 1
    assert "does not suffice" in refused.err
    least = refused.err.split("`--memory ")[1].split("`")[0]
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", least, "--separator", r"\n")
    assert run.code == 0, run.err
    assert run.peak < float(least.removesuffix("MB")) * MB


def test_the_default_is_a_gigabyte_for_two_workers_and_at_most_half_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "usable_memory", lambda: 64_000 * MB)
    assert budget.default_memory(1) == budget.default_memory(2) == 1000 * MB
    assert budget.default_memory(6) == 2024 * MB
    monkeypatch.setattr(budget, "usable_memory", lambda: 1200 * MB)
    assert budget.default_memory(6) == 600 * MB


@pytest.mark.parametrize(("memory", "ahead"), [(400, 8), (512, 22), (848, 64), (4000, 64)])
def test_of_remote_sources_so_much_may_be_on_its_way_at_once(
    memory: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With 200 ms for an answer, 22 MB are what two workers encode at 512 MB.
    monkeypatch.setattr(budget, "resident", lambda: 90 * MB)
    monkeypatch.setattr(budget, "most_resident", lambda: 90 * MB)
    window = Budget(memory * MB, 2, engine_bytes=10 * MB, remote=True).read_ahead
    assert window == ahead * MB
    fetcher = Fetcher(window=window)
    assert fetcher.window.piece * CONNECTIONS > 0.9 * fetcher.window.free


def test_a_slow_disk_holds_up_the_readers_and_memory_stays_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardmill.storage import files

    source = tmp_path / "a.txt"
    source.write_bytes(random_words(8 * MB))
    append = files.PartialFile.append

    def slow(self: Any, data: Any) -> None:
        time.sleep(memoryview(data).nbytes / (5 * MB))
        append(self, data)

    monkeypatch.setattr(files.PartialFile, "append", slow)
    held = []
    lease = Budget.lease

    def watched(self: Budget, amount: int) -> bool:
        granted = lease(self, amount)
        held.append((self._held, self.capacity))
        return granted

    monkeypatch.setattr(Budget, "lease", watched)
    monkeypatch.setattr(budget, "LARGEST", 1 << 18)
    shardmill.prepare(source, tmp_path / "out", separator="\n", val=0, memory="8GB")
    assert len(held) > 20
    assert all(now <= capacity for now, capacity in held)


@pytest.mark.parametrize("line", [b"\n", b"a\n", b"0\n"])
def test_documents_of_no_size_and_tiny_rejects_stay_within_the_memory_too(tmp_path: Path, line: bytes) -> None:
    source = tmp_path / ("a.jsonl" if line == b"0\n" else "a.txt")
    source.write_bytes(b'{"text": "first"}\n' + line * (300_000 if line == b"0\n" else 6_000_000))
    options = ["--separator", r"\n", "--max-bad", "any", "--val", "0.1"]
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", "400MB", *options)
    assert run.code == 0, run.err
    assert run.peak < 400 * MB


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("workers", [None, 1, 3, 16])
def test_any_memory_from_the_named_one_on_has_room_for_the_record(
    workers: int | None, width: int, remote: bool
) -> None:
    for record in (1 * MB, 11 * MB, 90 * MB, 3000 * MB):
        small = Budget(4000 * MB, workers, width, remote=remote)
        said = small.too_small("too large", record, "a.jsonl, line 3")
        assert said.place == "a.jsonl, line 3"
        enough = int(re.search(r"--memory (\d+)MB`", said.hint or "")[1]) * MB
        for memory in (enough, enough + 7 * MB, enough * 3 // 2, enough * 4):
            assert Budget(memory, workers, width, remote=remote).largest >= record
        assert ("this machine allows" in said.hint) == (enough > usable_memory())


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("workers", [None, 1, 3, 16])
@pytest.mark.parametrize("engine", [20 * MB, 50 * MB])
def test_any_memory_from_the_named_one_on_has_room_for_the_row(
    workers: int | None, width: int, remote: bool, engine: int
) -> None:
    of: Any = {"remote": remote, "engine_bytes": engine, "cuts": True}
    for row in (60 * MB, 90 * MB, 3000 * MB):
        said = Budget(4000 * MB, workers, width, **of).too_small("too large", row, "a", row=True)
        enough = int(re.search(r"--memory (\d+)MB`", said.hint or "")[1]) * MB
        for memory in (enough, enough + 7 * MB, enough * 3 // 2, enough * 4):
            made = Budget(memory, workers, width, **of)
            assert made.largest_row >= row
            # While the feeder holds the row twice and its page, there is room for the chunk that carries it.
            assert made.largest_step >= 3 * row


def test_an_impossible_budget_says_so_from_python_too() -> None:
    with pytest.raises(BudgetError, match="does not suffice"):
        Budget(10 * MB, 1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1000, 4000])
def test_peak_memory_does_not_grow_with_the_size_of_the_input(tmp_path: Path, size: int) -> None:
    source = tmp_path / "a.txt"
    with open(source, "wb") as file:
        file.writelines(random_words(20 * MB, seed=i) for i in range(size // 20))
    run = metered("prepare", source, "-o", tmp_path / "out", "--separator", r"\n", "--memory", "512MB", "-q")
    assert run.code == 0, run.err
    assert run.peak < 450 * MB


def test_unused_memory_is_returned_only_when_the_process_holds_more_than_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = [200 * MB]
    trimmed = []
    monkeypatch.setattr(budget, "resident", lambda: held[-1])
    monkeypatch.setattr(budget, "trim_memory", lambda: trimmed.append(held[-1]))
    room = Budget(8000 * MB, 1)
    for now in (room.ceiling, room.ceiling + 1):
        held.append(now)
        room.trim()
    assert trimmed == [room.ceiling + 1]
    assert room.peak == room.ceiling + 1


def test_a_step_of_the_feeder_waits_for_leases_and_the_chunk_that_comes_of_it_is_never_refused_its_lease() -> None:
    room = Budget(8000 * MB, 1)
    full = room.lease_for(room.chunk_bytes)
    room.lease(full)
    done = threading.Event()

    def feed() -> None:
        with room.hold(room.largest_step, "a page", "a.parquet"):
            assert room.lease(full), "what the feeder holds itself must not keep its own chunk waiting"
            done.set()

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    assert not done.wait(0.2)
    room.release(full)
    assert done.wait(100)
    thread.join(100)
    assert room._held == full and not room._held_by_feeder


@pytest.mark.parametrize("workers", [None, 1, 3, 16])
def test_any_memory_from_the_named_one_on_has_room_for_the_step(workers: int | None) -> None:
    small = Budget(8000 * MB, workers)
    for amount in (9000 * MB, 20_000 * MB):
        with pytest.raises(BudgetError, match="a page takes") as said, small.hold(amount, "a page", "a.parquet, row 3"):
            pass
        enough = int(re.search(r"--memory (\d+)MB`", said.value.hint or "")[1]) * MB
        for memory in (enough, enough + 7 * MB, enough * 3 // 2, enough * 4):
            assert Budget(memory, workers).largest_step >= amount


def test_a_step_within_a_step_does_not_wait_for_itself() -> None:
    room = Budget(8000 * MB, 1)
    entered = threading.Event()

    def feed() -> None:
        with room.hold(room.largest_step // 2, "a dictionary", "a"), room.hold(room.largest_step // 4, "a page", "a"):
            entered.set()

    threading.Thread(target=feed, daemon=True).start()
    assert entered.wait(100)
    with (
        room.hold(room.largest_step - MB, "a dictionary", "a"),
        pytest.raises(BudgetError, match="a page takes"),
        room.hold(room.largest_step // 4, "a page", "a"),
    ):
        pass


def test_an_engine_that_is_there_already_is_not_counted_twice() -> None:
    wanted: dict[str, Any] = {"engine_bytes": 20 * MB}
    with pytest.raises(BudgetError) as none:
        Budget(10 * MB, 1, **wanted)
    with pytest.raises(BudgetError) as one:
        Budget(10 * MB, 1, **wanted, engines=1)
    least, less = (int(re.search(r"--memory (\d+)MB", str(caught.value.hint))[1]) for caught in (none, one))
    assert 20 <= least - less <= 30  # 20 of 0.86, and what the process has grown by meanwhile


@pytest.mark.parametrize("held", [0, 1 << 30, 6 << 30, 60 << 30])
def test_what_a_larger_program_holds_leaves_as_much_room_where_no_limit_is_set(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    alone = Budget(None, 1)
    monkeypatch.setattr(budget, "resident", lambda: held + resident())
    beside = Budget(None, 1)
    assert beside.chunk_bytes == alone.chunk_bytes
