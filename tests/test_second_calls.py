"""A second call on the same folder: goes on, leaves alone, or is refused with what differs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import MismatchError, OutputError
from shardmill.tokens import Tokenizer, load_tokenizer
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.meter import SHARDMILL
from tests.reference import check, twin
from tests.watching import interrupt_after, paused_run

pytestmark = pytest.mark.thorough


def test_a_finished_dataset_of_the_same_plan_is_left_alone(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    shardmill.prepare(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert shardmill.prepare(source, tmp_path / "out", workers=1).already
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, r"seed was `0` and is now `1`"),
        ({"val": 0.5}, r"val was `0` and is now `0.5`"),
        ({"specials": "error"}, r"specials was `text` and is now `error`"),
        ("touch", r"source `.*a\.jsonl` has changed"),
        ("grow", r"source `.*a\.jsonl` has changed \([\d,]+ bytes, now [\d,]+\)"),
        ("add", r"source `.*b\.jsonl` is new"),
    ],
)
def test_another_plan_is_refused_and_what_differs_is_named(
    tmp_path: Path, small_chunks: None, finished: bool, change: Any, said: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = write_jsonl(folder / "a.jsonl", documents(200))
    out = tmp_path / "out"
    if finished:
        shardmill.prepare(folder, out, val=0)
    else:
        interrupt_after(1, folder, tmp_path / "out", val=0)
    options: dict[str, Any] = {"val": 0}
    if change == "touch":
        os.utime(source, ns=(1, 1))
    elif change == "grow":
        with open(source, "a") as file:
            file.write('{"text": "more"}\n')
    elif change == "add":
        write_jsonl(folder / "b.jsonl", ["new"])
    else:
        options |= change
    with pytest.raises(MismatchError) as error:
        shardmill.prepare(folder, out, **options)
    assert re.search(said, str(error.value)), str(error.value)
    assert "overwrite=True" in str(error.value)
    shardmill.prepare(folder, out, **options, overwrite=True)
    if "val" not in options or options["val"] == 0:
        check(out, twin(folder))


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("kind", ["files", "folder"])
def test_the_same_sources_may_be_written_in_another_way(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch, finished: bool, kind: str
) -> None:
    folder = tmp_path / "here" / "in"
    folder.mkdir(parents=True)
    for name in "ab":
        write_jsonl(folder / f"{name}.jsonl", documents(200))
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    spellings = ["in", "./in", str(folder), "../here/in", str(tmp_path / "link" / "in"), f"{folder}/../in"]
    for i, (first, second) in enumerate(pairwise([*spellings, spellings[0]])):
        called = [[f"{name}/{one}.jsonl" for one in "ab"] if kind == "files" else name for name in (first, second)]
        out, whole = tmp_path / f"out-{i}", tmp_path / f"whole-{i}"
        monkeypatch.chdir(tmp_path / "here")
        shardmill.prepare(called[0], whole)
        if finished:
            shardmill.prepare(called[0], out)
        else:
            interrupt_after(1, called[0], out)
        if os.path.isabs(second):
            monkeypatch.chdir(tmp_path)
        done = shardmill.prepare(called[1], out)
        assert done.already if finished else done.resumed
        assert contents(out) == contents(whole), (first, second)


def test_files_of_one_name_in_two_folders_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "c.jsonl", documents(20))
        os.utime(tmp_path / name / "c.jsonl", ns=(1, 1))
    monkeypatch.chdir(tmp_path / "a")
    for i, first in enumerate(["c.jsonl", "../a", tmp_path / "a"]):
        shardmill.prepare(first, tmp_path / f"out {i}")
        for second in ("../b/c.jsonl", tmp_path / "b"):
            with pytest.raises(MismatchError, match="is new"):
                shardmill.prepare(second, tmp_path / f"out {i}")


def test_a_second_run_on_the_same_folder_is_refused_at_once(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(20_000_000))
    arguments = ["prepare", str(source), "-o", str(tmp_path / "out"), "--separator", r"\n", "-q"]
    command = [*SHARDMILL, *arguments]
    with paused_run(tmp_path / "mark", *arguments) as first:
        second = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 1
    assert f"another run is using this folder (process {first.pid})" in second.stderr
    # The lock of the dead process does not block the next.
    third = subprocess.run([*command, "--limit", "10"], capture_output=True, text=True, check=False)
    assert "another run" not in third.stderr


def test_files_of_another_making_are_not_overwritten(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_bytes(b"somebody's work")
    with pytest.raises(OutputError, match=r"in the way: train\.bin"):
        shardmill.prepare(source, tmp_path / "out")
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"somebody's work"


@pytest.mark.parametrize("step", ["clear", "close"])
@pytest.mark.parametrize("command", ["prepare", "convert"])
def test_a_kill_after_the_manifest_leaves_a_dataset_that_the_next_call_tidies(
    tmp_path: Path, command: str, step: str
) -> None:
    from shardmill.dataset import verify

    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    out = tmp_path / "out"
    if command == "convert":
        shardmill.prepare(source, tmp_path / "data")
    arguments = (source, out) if command == "prepare" else (tmp_path / "data", out)
    code = f"""
import os, signal, shardmill
from shardmill.write.journal import Journal
Journal.{step} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
shardmill.{command}({str(arguments[0])!r}, {str(out)!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (out / "manifest.json").exists() and (out / ".shardmill" / "lock").exists()
    assert len(shardmill.open(out)["train"])
    if command == "prepare":
        assert not verify(out).damage
    assert getattr(shardmill, command)(*arguments).already
    assert {path.name for path in (out / ".shardmill").iterdir()} == {"plan.json"}


@pytest.mark.parametrize(
    "wrong", [{"text_field": "body"}, {"input_format": "parquet"}, {"format": "mds", "text_field": "x"}]
)
def test_a_run_that_ended_before_its_first_document_is_not_in_the_way_of_another(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(shardmill.ShardmillError):
        shardmill.prepare(source, tmp_path / "out", **wrong)
    assert not shardmill.prepare(source, tmp_path / "out").resumed
    shardmill.prepare(source, tmp_path / "alone")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone") | {"notes.txt": b"mine"}


def test_a_run_goes_on_with_another_release_only_if_it_gives_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(3000))
    whole = contents(Path(shardmill.prepare(source, tmp_path / "whole").out))
    for name, differs in (("same", False), ("other", True)):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
            patch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
            interrupt_after(3, source, out)
        with monkeypatch.context() as patch:
            now = {"libraries": "tiktoken 99.0", "sha256": "0" * 64}
            if not differs:
                made = load_tokenizer("gpt2")
                now["sha256"] = made.provenance(made.engine())["sha256"]
            patch.setattr(Tokenizer, "provenance", lambda self, engine, now=now: now)
            if differs:
                with pytest.raises(MismatchError, match=r"tiktoken 99\.0 gives other tokens"):
                    shardmill.prepare(source, out)
            else:
                assert shardmill.prepare(source, out).resumed
        if differs:
            assert shardmill.prepare(source, out).resumed
        assert contents(out) == whole


def test_a_folder_that_is_deleted_during_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path / "a.jsonl", documents(3000)), tmp_path / "out"
    program = f"""
import shutil, sys
from shardmill.run import budget
budget.LARGEST = budget.SMALLEST = 1 << 16
from shardmill.write.writer import Writer
write = Writer.write
def written(self, batch):
    write(self, batch)
    shutil.rmtree({str(out)!r}, ignore_errors=True)
Writer.write = written
from shardmill.cli import main
main(sys.argv[1:])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "prepare", str(source), "-o", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(f"^error: .*\n  place: {out}", done.stderr, re.MULTILINE), done.stderr
