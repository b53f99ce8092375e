"""Parts in processes of this machine: the bytes of one run, whatever happens to the processes or to their driver."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import shardmill
from shardmill.cluster.driver import prepare_in_parts
from shardmill.errors import MismatchError, SourceError, UsageError
from tests.cluster.trouble import gone, part_processes, slow_parts
from tests.corpus import contents, documents, write_jsonl
from tests.meter import SHARDMILL
from tests.watching import interruptible, wait_until

pytestmark = pytest.mark.thorough

OPTIONS: dict[str, Any] = {"val": 0.05, "format": "shards", "shard_tokens": 30_000}
FLAGS = ["--val", "0.05", "-f", "shards", "--shard-tokens", "30000"]
# A copy is soon taken for lost, and an interrupt has all the time it needs, however busy the machine is.
_IMPATIENT = """
from shardmill import interrupts
from shardmill.cluster import driver
driver._PATIENCE = 8.0
interrupts.GRACE_SECONDS = 100.0
from shardmill.__main__ import main
main()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "web.jsonl", documents(1500, seed=3))


@pytest.fixture
def expected(tmp_path: Path, source: Path) -> dict[str, bytes]:
    shardmill.prepare(source, tmp_path / "alone", **OPTIONS)
    return contents(tmp_path / "alone")


@pytest.fixture
def command(tmp_path: Path, source: Path) -> Iterator[Start]:
    """Starts the command, with parts that take seconds."""
    environment, started = slow_parts(tmp_path / "slow", 0.15), []

    def start(*more: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _IMPATIENT, "prepare", source, "-o", tmp_path / "out", *FLAGS]
        words += ["--executor", "local", "--parts", "4", "--parallel", "2", "--memory", "1GB", *more]
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


@pytest.mark.parametrize("parallel", [None, 2])
def test_parts_in_processes_give_the_bytes_of_one_run(
    tmp_path: Path, source: Path, expected: dict[str, bytes], parallel: int | None
) -> None:
    result = prepare_in_parts(source, tmp_path / "out", parts=5, parallel=parallel, memory="4GB", **OPTIONS)
    assert contents(tmp_path / "out") == expected
    assert result.manifest["documents"] + result.manifest["empty"] == 1500
    again = prepare_in_parts(source, tmp_path / "out", parts=5, parallel=parallel, **OPTIONS)
    assert again.already and contents(tmp_path / "out") == expected
    (tmp_path / "out" / ".parts" / "00000").mkdir(parents=True)  # as a kill in the last step leaves it
    again = prepare_in_parts(source, tmp_path / "out", parts=5, parallel=parallel, **OPTIONS)
    assert again.already and not (tmp_path / "out" / ".parts").exists()
    with pytest.raises(MismatchError):
        prepare_in_parts(source, tmp_path / "out", parts=5, parallel=parallel, **{**OPTIONS, "val": 0.1})


def test_killed_and_frozen_processes_change_nothing(tmp_path: Path, command: Start, expected: dict[str, bytes]) -> None:
    run = command()
    wait_until(lambda: len(part_processes(run.pid)) == 2)
    first, second = part_processes(run.pid).values()
    first.kill()
    second.suspend()
    wait_until(lambda: gone(second))  # the driver has given it up
    _, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert contents(tmp_path / "out") == expected


def test_when_the_driver_is_killed_its_parts_end_and_the_same_command_goes_on(
    tmp_path: Path, command: Start, expected: dict[str, bytes]
) -> None:
    run = command()
    wait_until(lambda: len(part_processes(run.pid)) == 2)
    parts = part_processes(run.pid).values()
    run.kill()
    run.communicate()
    wait_until(lambda: all(map(gone, parts)))
    run = command("--json")
    out, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    summary = json.loads(out)
    assert summary["resumed"] is False and summary["documents"] > 1400
    assert 0 < summary["peak_memory"] < 1_000_000_000
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_the_same_command_goes_on(
    tmp_path: Path, command: Start, expected: dict[str, bytes], number: int
) -> None:
    run = command()
    wait_until(lambda: len(part_processes(run.pid)) == 2)
    parts = part_processes(run.pid).values()
    run.send_signal(number)
    _, said = run.communicate(timeout=100)
    assert run.returncode == 130 and "of 4 parts are done; the same command resumes the run" in said, said
    assert "Traceback" not in said
    wait_until(lambda: all(map(gone, parts)))
    run = command()
    _, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert contents(tmp_path / "out") == expected


def test_a_damaged_source_stops_the_run_at_once_with_its_place_and_its_part(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(4):
        data = gzip.compress(write_jsonl(tmp_path / "plain", documents(200, seed=i)).read_bytes())
        (tmp_path / "in" / f"{i}.jsonl.gz").write_bytes(data[: len(data) // 2] if i == 2 else data)
    with pytest.raises(SourceError) as caught:
        prepare_in_parts(tmp_path / "in", tmp_path / "out", parts=4, memory="4GB")
    assert "2.jsonl.gz" in caught.value.place and "part 2" in caught.value.place
    assert "2 of 4 parts are done" in caught.value.kept
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_process_that_dies_in_a_library_is_told_with_its_last_words(tmp_path: Path, source: Path) -> None:
    crash = tmp_path / "crash"
    slow_parts(crash, 0)
    (crash / "sitecustomize.py").write_text(
        "import sys\nif '--part' in sys.orig_argv: raise SystemExit('the library is broken')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(crash), *filter(None, sys.path)])}
    words = [*SHARDMILL, "prepare", source, "-o", tmp_path / "out", "--executor", "local", "--parts", "2"]
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1 and "the library is broken" in done.stderr and "Traceback" not in done.stderr
    assert "kept:  0 of 2 parts are done" in done.stderr


@pytest.mark.parametrize("wrong", [["--parallel", "0"], ["--ray-address", "x:1"]])
def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, source: Path, wrong: list[str]
) -> None:
    words = [*SHARDMILL, "prepare", source, "-o", tmp_path / "out", "--executor", "local", *wrong]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and wrong[0] in done.stderr and not (tmp_path / "out").exists()


def test_the_settings_of_parts_need_an_executor(tmp_path: Path, source: Path) -> None:
    words = [*SHARDMILL, "prepare", source, "-o", tmp_path / "out", "--parallel", "2"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "`--parallel` needs an `--executor`" in done.stderr


def test_every_part_can_be_found_by_its_process() -> None:
    assert part_processes(psutil.Process().pid) == {}
    with pytest.raises(UsageError):
        prepare_in_parts("a.txt", "out", executor="nowhere")
