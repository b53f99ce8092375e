"""More workers than one process keeps busy: several processes do the work, and nobody can tell from the result."""

from __future__ import annotations

import gzip
import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill.cluster import plan_parts, processes
from shardmill.cluster.processes import Amounts, count_parts, count_processes
from shardmill.errors import MismatchError, SourceError
from shardmill.storage import COMPRESSION_ENDINGS
from tests.cluster.trouble import gone, part_processes, slow_parts
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.meter import SHARDMILL, resident
from tests.watching import interrupt_after, interruptible, wait_until

GB = 10**9
MEMORY = "8GB"  # more than the tests' own process holds already
OPTIONS: dict[str, Any] = {"val": 0.05, "format": "shards", "shard_tokens": 20_000}
FLAGS = ["--val", "0.05", "-f", "shards", "--shard-tokens", "20000", "--memory", "2500MB"]
# The command, for which a few kilobytes are much text; interrupts have all the time they need.
_EAGER = """
from shardmill import interrupts
from shardmill.cluster import plan_parts, processes
processes.LEAST_TEXT, processes.SMALLEST_PART = 1, 60_000
interrupts.GRACE_SECONDS = 100.0
from shardmill.__main__ import main
main()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize(
    ("stored", "workers", "memory", "expected"),
    [
        ({"": 100 * GB}, 2, 100 * GB, 1),
        ({"": 100 * GB}, 8, 100 * GB, 1),
        ({"": 100 * GB}, 9, 100 * GB, 2),
        ({"": 100 * GB}, 32, 100 * GB, 4),
        ({"gzip": 100 * GB}, 4, 100 * GB, 1),
        ({"gzip": 100 * GB}, 5, 100 * GB, 2),
        ({"gzip": 100 * GB}, 32, 100 * GB, 8),
        ({"zstd": 100 * GB}, 6, 100 * GB, 1),
        ({"zstd": 100 * GB}, 32, 100 * GB, 6),
        ({"bzip2": 100 * GB}, 4, 100 * GB, 4),
        ({"xz": 100 * GB}, 2, 100 * GB, 2),
        ({"gzip": GB, "": 100 * GB}, 32, 100 * GB, 5),  # most of the text is not compressed
        ({"gzip": 100 * GB, "": GB}, 32, 100 * GB, 8),
        ({"": GB // 5}, 32, 100 * GB, 1),  # little text
        ({"gzip": GB // 20}, 32, 100 * GB, 1),
        ({"": GB}, 32, 100 * GB, 3),  # each process has a quarter of a gigabyte at least
        ({"gzip": 100 * GB}, 32, 4 * GB, 8),  # 100 MB for each process and each worker
        ({"gzip": 100 * GB}, 32, 3_600_000_000, 4),
        ({"gzip": 100 * GB}, 32, 3 * GB, 1),
        ({}, 32, 100 * GB, 1),
    ],
)
def test_the_number_of_processes_follows_from_sources_workers_and_memory(
    stored: dict[str, int], workers: int, memory: int, expected: int
) -> None:
    assert count_processes(Amounts(stored, workers, memory)) == expected


def test_every_compression_has_a_number_of_busy_workers() -> None:
    assert {*processes.BUSY_WORKERS} == {"", *COMPRESSION_ENDINGS.values()}


def test_every_process_gets_several_parts_which_are_neither_tiny_nor_huge() -> None:
    assert count_parts(Amounts({"": 10 * GB}, 32, 100 * GB), 4) == 16
    assert count_parts(Amounts({"zstd": 10 * GB}, 32, 100 * GB), 8) == 32
    assert count_parts(Amounts({"": GB}, 32, 100 * GB), 3) == 8
    assert count_parts(Amounts({"": 4_000 * GB}, 32, 100 * GB), 4) == 2000


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A few kilobytes are much text; returns the numbers of processes that are chosen from now on."""
    monkeypatch.setattr(processes, "LEAST_TEXT", 1)
    monkeypatch.setattr(processes, "SMALLEST_PART", 20_000)
    seen: list[int] = []
    count = count_processes
    monkeypatch.setattr("shardmill.cluster.several.count_processes", lambda a: seen.append(count(a)) or seen[-1])
    return seen


def _jsonl(folder: Path) -> None:
    write_jsonl(folder / "a.jsonl", [*documents(400, seed=1), None, "x", 7])
    write_jsonl(folder / "b.jsonl", documents(30, seed=2))


def _compressed(folder: Path) -> None:
    """One large stream and many small ones, of both kinds; a large one is last."""
    for number, count in enumerate([500, 3, 2, 5, 1, 4, 600]):
        data = write_jsonl(folder / "plain", documents(count, seed=number)).read_bytes()
        packed = gzip.compress(data) if number % 2 else zstandard.compress(data)
        (folder / f"{number}.jsonl.{'gz' if number % 2 else 'zst'}").write_bytes(packed)
    (folder / "plain").unlink()


def _parquet(folder: Path) -> None:
    for number in range(3):
        table = pa.table({"text": documents(300, seed=number)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40)


def _texts(folder: Path) -> None:
    """A stream of text, which is cut between parts, and small files."""
    (folder / "a.txt").write_bytes(random_words(17 << 20))
    for number, text in enumerate(documents(20, seed=3)):
        (folder / f"b{number}.txt").write_text(text)


SOURCES = {"jsonl": _jsonl, "compressed": _compressed, "parquet": _parquet, "texts": _texts}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(("format", "workers"), [("shards", 9), ("megatron", 20)])
def test_several_processes_give_the_bytes_of_one(
    tmp_path: Path, eager: list[int], kind: str, format: str, workers: int
) -> None:
    (tmp_path / "in").mkdir()
    SOURCES[kind](tmp_path / "in")
    options = {**OPTIONS, "format": format, "memory": MEMORY, "max_bad": "any"}
    shardmill.prepare(tmp_path / "in", tmp_path / "one", workers=2, **options)
    assert {*eager} <= {1}
    result = shardmill.prepare(tmp_path / "in", tmp_path / "many", workers=workers, **options)
    assert eager[-1] > 1
    assert contents(tmp_path / "many") == contents(tmp_path / "one")  # so nothing of parts is left
    assert result.peak_memory > 0 and result.seconds > 0
    again = shardmill.prepare(tmp_path / "in", tmp_path / "many", workers=workers, **options)
    assert again.already


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Start]:
    """Starts the command, whose processes take seconds for their parts."""
    write_jsonl(tmp_path / "web.jsonl", documents(1500, seed=3))
    environment, started = slow_parts(tmp_path / "slow", 0.15), []

    def start(*more: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _EAGER, "prepare", tmp_path / "web.jsonl", "-o", tmp_path / "out", *FLAGS, *more]
        run = subprocess.Popen(
            [str(word) for word in words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=interruptible,
        )  # fmt: skip
        started.append(run)
        return run

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
            run.communicate()


@pytest.fixture
def expected(tmp_path: Path, command: Start) -> dict[str, bytes]:
    shardmill.prepare(tmp_path / "web.jsonl", tmp_path / "one", workers=1, memory=MEMORY, **OPTIONS)
    return contents(tmp_path / "one")


@pytest.mark.parametrize("workers", [1, 12])
def test_killed_it_is_resumed_with_any_number_of_workers(
    tmp_path: Path, command: Start, expected: dict[str, bytes], workers: int
) -> None:
    run = command("--workers", 17)
    wait_until(lambda: len(part_processes(run.pid)) == 3)
    wait_until(lambda: [*(tmp_path / "out" / ".parts").glob("0*/manifest.json")])
    parts = part_processes(run.pid).values()
    run.kill()
    run.communicate()
    wait_until(lambda: all(map(gone, parts)))
    run = command("--workers", workers, "--json")
    out, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert json.loads(out)["resumed"] is True and "part" not in said
    assert contents(tmp_path / "out") == expected


def test_a_killed_process_is_replaced(tmp_path: Path, command: Start, expected: dict[str, bytes]) -> None:
    run = command("--workers", 16)
    wait_until(lambda: len(part_processes(run.pid)) == 2)
    for process in part_processes(run.pid).values():
        process.kill()
    _, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert contents(tmp_path / "out") == expected


def test_an_interrupt_ends_all_processes_and_the_same_command_goes_on(
    tmp_path: Path, command: Start, expected: dict[str, bytes]
) -> None:
    run = command("--workers", 16)
    wait_until(lambda: len(part_processes(run.pid)) == 2)
    children = part_processes(run.pid).values()
    second = command("--workers", 16)
    _, said = second.communicate(timeout=100)
    assert second.returncode == 1 and f"another run is using this folder (process {run.pid})" in said
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=100)
    assert run.returncode == 130 and "the same command resumes the run" in said and "part" not in said, said
    wait_until(lambda: all(map(gone, children)))
    run = command("--workers", 16)
    _, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert contents(tmp_path / "out") == expected


def test_a_run_that_was_begun_in_one_process_goes_on_in_one(
    tmp_path: Path, eager: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
    source = write_jsonl(tmp_path / "web.jsonl", documents(1500, seed=3))
    options = {**OPTIONS, "memory": MEMORY}
    shardmill.prepare(source, tmp_path / "one", workers=1, **options)
    interrupt_after(2, source, tmp_path / "out", workers=1, **options)
    result = shardmill.prepare(source, tmp_path / "out", workers=20, **options)
    assert result.resumed and eager == []
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_a_folder_with_an_unfinished_run_is_refused_or_overwritten(tmp_path: Path, eager: list[int]) -> None:
    (tmp_path / "in").mkdir()
    _compressed(tmp_path / "in")
    good = (tmp_path / "in" / "5.jsonl.gz").read_bytes()
    (tmp_path / "in" / "5.jsonl.gz").write_bytes(good[: len(good) // 2])
    options = {**OPTIONS, "memory": MEMORY}
    with pytest.raises(SourceError) as caught:
        shardmill.prepare(tmp_path / "in", tmp_path / "out", workers=9, **options)
    assert "5.jsonl.gz" in caught.value.place and "part" not in str(caught.value)
    assert "is done; the same command resumes the run" in caught.value.kept
    for workers in (1, 9):
        with pytest.raises(MismatchError, match="an unfinished run of other sources or options: val was"):
            shardmill.prepare(tmp_path / "in", tmp_path / "out", workers=workers, **{**options, "val": 0.1})
    (tmp_path / "in" / "5.jsonl.gz").write_bytes(good)
    shardmill.prepare(tmp_path / "in", tmp_path / "one", workers=1, **options)
    for workers in (1, 9):
        shardmill.prepare(tmp_path / "in", tmp_path / "out", workers=workers, overwrite=True, **options)
        assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.parametrize("bad", [0, 700], ids=["first", "later"])
@pytest.mark.parametrize("allowed", ["0.1%", "120"])
def test_too_many_bad_documents_end_the_run_as_in_one_process(
    tmp_path: Path, eager: list[int], bad: int, allowed: str
) -> None:
    texts: list[object] = list(documents(1500, seed=3))
    texts[bad : bad + 200] = [None] * 200
    source = write_jsonl(tmp_path / "web.jsonl", texts)
    for workers in (1, 20):
        out = tmp_path / str(workers)
        with pytest.raises(SourceError, match="documents are bad, more than `max_bad` allows") as caught:
            shardmill.prepare(source, out, workers=workers, memory=MEMORY, **{**OPTIONS, "max_bad": allowed})
        assert "part" not in caught.value.place + caught.value.message and "web.jsonl" in caught.value.place
        assert "`--max-bad any` sets all such documents aside" in caught.value.hint
        shardmill.prepare(source, out, workers=workers, memory=MEMORY, **{**OPTIONS, "max_bad": "any"})
    assert contents(tmp_path / "20") == contents(tmp_path / "1")


def test_what_only_one_process_can_do_is_done_by_one(tmp_path: Path, eager: list[int]) -> None:
    source = write_jsonl(tmp_path / "web.jsonl", documents(300, seed=3))
    (tmp_path / "web.txt").write_text("\n".join(documents(300, seed=3)))
    options = {**OPTIONS, "memory": MEMORY, "workers": 20}
    shardmill.prepare(source, tmp_path / "limited", limit=100, **options)
    shardmill.prepare(iter(documents(300, seed=3)), tmp_path / "python", **options)
    shardmill.prepare(tmp_path / "web.txt", tmp_path / "first", **{**options, "val": "first:1000"})
    assert eager == []
    shardmill.prepare(source, tmp_path / "rows", **{**options, "val": "first:1000"})
    assert eager[-1] > 1


def test_a_record_that_fits_into_the_memory_of_one_process_only_is_encoded_by_one(tmp_path: Path) -> None:
    texts = [*documents(200, seed=1), "long words " * 3_000_000, *documents(200, seed=2)]
    source = write_jsonl(tmp_path / "web.jsonl", texts)
    words = [sys.executable, "-c", _EAGER.replace("60_000", "10_000_000"), "prepare", source, *FLAGS, "-q"]
    for name, more in (("one", ["--memory", "900MB"]), ("many", ["--memory", "1100MB", "--workers", "9"])):
        command = [str(word) for word in [*words, "-o", tmp_path / name, *more]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_the_least_memory_that_is_named_suffices_for_all_processes(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "web.jsonl", documents(300, seed=3))
    plan_parts(source, tmp_path / "out", parts=3, **OPTIONS)
    command = [*SHARDMILL, "prepare", str(source), "-o", str(tmp_path / "out"), *FLAGS, "--memory"]
    refused = subprocess.run([*command, "200MB"], capture_output=True, text=True, timeout=150)
    assert refused.returncode == 1 and "of memory does not suffice" in refused.stderr
    least = re.search(r"the least that works is `--memory (\d+MB)`", refused.stderr)
    assert least is not None
    done = subprocess.run([*command, least[1]], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / ".parts").exists()


def _padded(path: Path, texts: list[str], size: int) -> None:
    """A zstd file of that size with little text: most of it is a frame that decompressors skip, and takes no disk."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    with open(path, "wb") as file:
        file.write(zstandard.compress(lines) + struct.pack("<II", 0x184D2A50, size))
        file.truncate(file.tell() + size)


@pytest.mark.thorough
def test_the_memory_of_all_processes_together_stays_below_the_limit(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(12):
        _padded(tmp_path / "in" / f"{number:02}.jsonl.zst", documents(4000, seed=number), 60_000_000)
    common = [*SHARDMILL, "prepare", str(tmp_path / "in"), "-f", "shards", "--json"]
    one = subprocess.run(
        [*common, "-o", str(tmp_path / "one"), "--workers", "2"], capture_output=True, text=True, timeout=150
    )
    assert one.returncode == 0, one.stderr
    many = subprocess.Popen(
        [*common, "-o", str(tmp_path / "many"), "--workers", "24", "--memory", "3GB"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tree, peak, most = psutil.Process(many.pid), 0, 0
    while many.poll() is None:
        peak, most = max(peak, resident(tree)), max(most, len(part_processes(many.pid)))
    out, said = many.communicate()
    assert many.returncode == 0, said
    assert most == 4 and 0 < peak < 3_000_000_000
    assert 0 < json.loads(out)["peak_memory"] < 3_000_000_000
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
