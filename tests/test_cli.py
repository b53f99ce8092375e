"""The command as a person meets it: help, progress, summaries, errors, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.options import Options
from shardmill.write.summary import as_text
from tests.corpus import documents, random_words, write_jsonl
from tests.meter import SHARDMILL, metered


def test_help_shows_every_option_once_with_its_default() -> None:
    said = metered("prepare", "--help").out
    for option in dataclasses.fields(Options):
        assert said.count(option.metadata["flags"][-1] + " ") >= 1, option.name
    assert "[default: gpt2]" in said
    assert "[default: 0.0005]" in said


def test_the_summary_says_what_was_made_on_standard_error(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*documents(200), ""])
    run = metered("prepare", source, "-o", tmp_path / "out", "--val", "0.2")
    assert run.code == 0
    assert run.out == ""
    for word in ("documents", "empty", "tokens", "bytes per token", "train.bin", "val.bin", "of memory"):
        assert word in run.err, word


def test_json_goes_to_standard_output_and_nothing_else_does(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    run = metered("prepare", source, "-o", tmp_path / "out", "--json")
    data = json.loads(run.out)
    assert data["documents"] == sum(1 for text in documents(200) if text)
    assert data["tokens"] == sum(split["tokens"] for split in data["splits"].values())
    assert run.err == ""
    again = json.loads(metered("prepare", source, "-o", tmp_path / "out", "--json").out)
    assert again["already"] is True


def test_quiet_says_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    run = metered("prepare", source, "-o", tmp_path / "out", "-q")
    assert (run.code, run.out, run.err) == (0, "", "")


def test_without_a_terminal_a_plain_line_comes_every_few_seconds(tmp_path: Path) -> None:
    # A result is taken only when another line has been printed, so that there are several, however fast the machine is.
    code = """
import sys, threading
from shardmill.cli import main
from shardmill.write import progress
progress._EVERY, told = 0.01, threading.Semaphore(0)
line, update = progress.Meter.line, progress.Lines.update
def counted(self):
    told.release()
    return line(self)
def waiting(self, done):
    told.acquire(timeout=100)
    update(self, done)
progress.Meter.line, progress.Lines.update = counted, waiting
main(sys.argv[1:])
"""
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(20_000_000))
    run = subprocess.run(
        [sys.executable, "-c", code, "prepare", str(source), "-o", str(tmp_path / "out"), "--separator", r"\n"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line for line in run.stderr.splitlines() if " left" in line]
    assert len(lines) >= 2
    assert re.search(r"\d+%  .* of 20 MB · [\d,]+ documents · .* tokens · .*/s · .*tokens/s · memory .* of ", lines[-1])


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(10_000_000))
    parent, child = pty.openpty()
    command = [*SHARDMILL, "prepare", str(source), "-o", str(tmp_path / "out"), "--separator", r"\n"]
    with subprocess.Popen(command, stderr=child, stdout=child, env={**os.environ, "COLUMNS": "100"}) as run:
        os.close(child)
        shown = b""
        while select.select([parent], [], [], 60)[0]:
            try:
                got = os.read(parent, 65536)
            except OSError:  # the other side has closed
                break
            if not got:
                break
            shown += got
    os.close(parent)
    assert run.returncode == 0
    assert "━" in shown.decode()
    assert "of memory" in shown.decode()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["prepare", "nowhere.txt", "-o", "{out}"], 2, "nowhere.txt"),
        (["prepare", "{good}"], 2, "-o"),
        (["prepare", "{good}", "-o", "{out}", "--format", "nanogtp"], 2, "nanogpt"),
        (["prepare", "{good}", "-o", "{out}", "--wrong"], 2, "--wrong"),
        (["prepare", "{good}", "-o", "{out}", "--text-field", "body"], 1, "`id`, `text`"),
        (["prepare", "{good}", "-o", "{out}", "--memory", "50MB"], 1, "the least that works"),
        (["prepare", "{good}", "-o", "/proc/nothing/here"], 1, "cannot write"),
        (["prepare", "{cut}", "-o", "{out}"], 1, "cut.jsonl.gz"),
        (["prepare", "{broken}", "-o", "{out}", "--max-bad", "0"], 1, "line 3"),
        (["verify", "{out}"], 2, "there is no folder"),
        (["verify", "{folder}"], 2, "not a dataset"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    import gzip

    good = write_jsonl(tmp_path / "good.jsonl", documents(30))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(good.read_bytes())[:-20])
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": }\n{"text": "c"}\n')
    names = {
        "out": tmp_path / "out", "good": good, "cut": tmp_path / "cut.jsonl.gz", "broken": tmp_path / "broken.jsonl",
        "folder": tmp_path,
    }  # fmt: skip
    run = metered(*[argument.format(**names) for argument in arguments])
    assert run.code == code, run.err
    assert run.err.startswith("error: ")
    assert said in run.err
    assert "Traceback" not in run.err
    assert len([line for line in run.err.splitlines() if line.startswith("  ")]) <= 3


def test_a_permission_that_is_missing_is_said(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        probe = subprocess.run([*user, sys.executable, "-c", "import shardmill"], capture_output=True, check=False)
        if probe.returncode:
            pytest.skip("root may read everything, and this installation cannot be used by another user")
    else:
        user = []
    tmp_path.chmod(0o755)
    source = write_jsonl(tmp_path / "a.jsonl", documents(5))
    source.chmod(0)
    run = subprocess.run(
        [*user, *SHARDMILL, "prepare", str(source), "-o", str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (1, 2)
    assert run.stderr.startswith("error: ")
    assert "ermission" in run.stderr


def test_tokenizers_are_listed() -> None:
    said = metered("tokenizers").out
    for name in ("gpt2", "cl100k_base", "o200k_base"):
        assert name in said


def test_the_summary_of_an_ordinary_run_fits_a_terminal(tmp_path: Path) -> None:
    result = shardmill.prepare(write_jsonl(tmp_path / "a.jsonl", documents(300)), tmp_path / "out", format="shards")
    for split in result.manifest["splits"].values():
        split["tokens"], split["documents"] = split["tokens"] * 1000, split["documents"] * 1000
    rows = [line for line in as_text(result).splitlines() if line.split()[0] in ("train", "val")]
    assert len(rows) == 2 and len({line.index(" tokens ") for line in rows}) == 1
    assert max(map(len, rows)) <= 80
