"""Bounded, below all estimates: with these switched off, no data makes the command hold more than `--memory`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tests.corpus import random_words
from tests.meter import metered

MB = 1_000_000
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of a process is Linux's")

NO_ESTIMATES = """
import sys
from contextlib import nullcontext
from shardmill.run.budget import Budget

reckoned = Budget.__init__

def unlimited(self, *given, **more):
    reckoned(self, *given, **more)
    self.largest = 1 << 60

Budget.__init__ = unlimited
Budget.hold = lambda self, *given, **more: nullcontext()
Budget.lease = lambda self, amount: not self._closed
from shardmill.cli import main
main(sys.argv[1:])
"""


def _words(size: int, count: int) -> list[str]:
    text = random_words(size * count).decode("ascii", "ignore")
    return [text[i * size : (i + 1) * size] for i in range(count)]


def _views(path: Path) -> None:
    views = pa.table({"text": pa.array(["lorem ipsum " * 50_000] * 600).cast(pa.string_view())})
    with pa.ipc.new_file(path, views.schema) as writer:
        writer.write_table(views)


def _parquet(path: Path, texts: Any, **options: Any) -> None:
    pq.write_table(pa.table({"text": texts}), path, **options)


SHAPES = {
    "a value of 300 MB.parquet": lambda path: _parquet(path, ["x y " * 75 * MB]),
    "long values.parquet": lambda path: _parquet(path, _words(MB, 30) * 5 + _words(5 * MB, 30)),
    "a dictionary of 270 MB.parquet": lambda path: _parquet(
        path, _words(27_000, 10_000), dictionary_pagesize_limit=1 << 30
    ),
    "views.arrow": _views,
    "a line of 300 MB.jsonl": lambda path: path.write_bytes(b'{"text":"' + b"x y " * 75 * MB + b'"}\n'),
    "a row of 300 MB.csv": lambda path: path.write_bytes(b'text\n"' + b"x, y " * 60 * MB + b'"\n'),
}


@pytest.mark.parametrize("name", SHAPES)
def test_with_all_estimates_switched_off_the_limit_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = tmp_path / name
    SHAPES[name](source)
    monkeypatch.setattr("tests.meter.SHARDMILL", [sys.executable, "-c", NO_ESTIMATES])
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", "400MB", "--workers", "2")
    assert run.peak < 400 * MB
    assert run.code == 1
    assert "the data takes more than 400 MB of memory" in run.err and "Traceback" not in run.err


NO_ROOM = """
import resource, sys
from shardmill.run import pipeline, process_limit
process_limit._TICK = 1000
run = pipeline.Pipeline.run

def without_room(self, *given):
    resource.setrlimit(resource.RLIMIT_DATA, (1, resource.RLIM_INFINITY))
    yield from run(self, *given)

pipeline.Pipeline.run = without_room
from shardmill.cli import main
main(sys.argv[1:])
"""


def test_no_memory_for_the_stack_of_a_thread_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("some words")
    monkeypatch.setattr("tests.meter.SHARDMILL", [sys.executable, "-c", NO_ROOM])
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", "400MB")
    assert run.code == 1
    assert "the data takes more than 400 MB of memory" in run.err and "--memory" in run.err
    assert "Traceback" not in run.err


def test_a_program_that_calls_prepare_finds_its_limits_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("some words")
    program = f"""
import resource
from shardmill.storage import files
import shardmill
resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, resource.RLIM_INFINITY))
seen, append = set(), files.PartialFile.append
def watched(self, data):
    seen.add(resource.getrlimit(resource.RLIMIT_DATA)[0])
    append(self, data)
files.PartialFile.append = watched
shardmill.prepare({str(source)!r}, {str(tmp_path / "out")!r}, val=0)
assert seen == {{1 << 40}}, seen
assert resource.getrlimit(resource.RLIMIT_DATA) == (1 << 40, resource.RLIM_INFINITY)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
