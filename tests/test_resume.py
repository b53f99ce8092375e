"""Nothing is lost: whatever ends a run, the same command goes on and ends with the same bytes."""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import shardmill
from shardmill.errors import MismatchError, OutputError, SourceError
from shardmill.options import FORMATS
from shardmill.storage import files
from shardmill.write.checkpoints import Checkpoints
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.crashing import DIFFERENT, crash_everywhere
from tests.meter import SHARDMILL
from tests.reference import check, twin
from tests.watching import interrupt_after, paused_run, wait_until, watch_reads

MB = 1_000_000
ENDINGS = {
    "plain": ("", bytes),
    "gzip": (".gz", lambda data: gzip.compress(data, 1)),
    "zstd": (".zst", zstandard.ZstdCompressor(1).compress),
}


@pytest.mark.parametrize("change", ["more", "less"])
def test_a_run_that_another_release_has_begun_is_refused_and_left_as_it_is(
    tmp_path: Path, change: str, small_chunks: None
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(3000))
    interrupt_after(5, source, tmp_path / "out", val=0)
    journal = tmp_path / "out" / ".shardmill" / "journal.jsonl"
    last = json.loads(journal.read_text().splitlines()[-1])
    if change == "more":
        last["state"]["something new"] = 1
    else:
        del last["state"]["ledger"]["through"]
    journal.write_text(json.dumps(last) + "\n")
    before = contents(tmp_path / "out")
    with pytest.raises(MismatchError, match="another release of shardmill") as refused:
        shardmill.prepare(source, tmp_path / "out", val=0)
    assert "--overwrite" in str(refused.value.hint)
    with pytest.raises(MismatchError, match="val was"):
        shardmill.prepare(source, tmp_path / "out", val=0.2)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("form", DIFFERENT)
def test_a_power_failure_loses_nothing_that_was_recorded(tmp_path: Path, form: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(150))
    crash_everywhere(source, tmp_path / "out", every=23, power=1.0, format=form, shard_tokens=5_000, val=0.3)


@pytest.mark.parametrize("form", ["nanogpt", "megatron", "mds", "litdata", "olmo"])
def test_a_journal_whose_last_line_is_torn_goes_on_from_the_line_before(tmp_path: Path, form: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    crash_everywhere(source, tmp_path / "out", every=17, power=0.5, format=form, shard_tokens=20_000, val=0)


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("form", FORMATS)
def test_killed_at_every_single_step_every_format_ends_with_the_same_bytes(
    tmp_path: Path, form: str, power: float
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    crash_everywhere(source, tmp_path / "out", every=1, power=power, format=form, shard_tokens=15_000, val=0.3)


@pytest.mark.parametrize("packed", ["plain", "gzip", "zstd"])
def test_killed_from_outside_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path, packed: str) -> None:
    data = random_words(15 * MB, seed=3)
    source = tmp_path / f"a.txt{ENDINGS[packed][0]}"
    source.write_bytes(ENDINGS[packed][1](data))
    command = ["prepare", str(source), "-q", "--separator", r"\n", "--val", "0.1", "-f", "shards"]
    command += ["--shard-tokens", "500k"]
    subprocess.run([*SHARDMILL, *command, "-o", str(tmp_path / "whole")], check=True)
    out, kills, draw = tmp_path / "out", 1, random.Random(packed)
    with paused_run(tmp_path / "mark", *command, "-o", out) as run:  # so that one is surely killed on the way
        run.kill()
    settings = [["--workers", "1", "--memory", "300MB"], ["--workers", "2", "--memory", "1GB"], ["--memory", "500MB"]]
    while not (out / "manifest.json").exists():
        before = _journal_size(out)
        with subprocess.Popen([*SHARDMILL, *command, "-o", str(out), *settings[kills % 3]]) as run:
            # Killed some time after it has recorded something, so that it gets on a little each time; in the end not.
            wait_until(lambda: run.poll() is not None or _journal_size(out) not in (0, before))  # noqa: B023 - called within this turn
            try:
                run.wait(timeout=draw.random() / 2 if kills < 9 else None)
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("again", [[], ["--overwrite"]])
def test_a_kill_just_before_the_lock_is_removed_leaves_no_lock_after_the_next_run(
    tmp_path: Path, again: list[str]
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    code = """
import os, pathlib, sys
unlink = pathlib.Path.unlink
def killed(path, *given, **named):
    if path.name == "lock":
        os.kill(os.getpid(), 9)
    unlink(path, *given, **named)
pathlib.Path.unlink = killed
from shardmill.cli import main
main()
"""
    arguments = ["prepare", str(source), "-o", str(tmp_path / "out"), "-q"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    made = contents(tmp_path / "out")
    assert "manifest.json" in made and (tmp_path / "out" / ".shardmill" / "lock").exists()
    done = subprocess.run([*SHARDMILL, *arguments, *again], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / ".shardmill" / "lock").exists()
    assert contents(tmp_path / "out") == made


def test_a_resumed_run_does_not_start_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(4000))
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    interrupt_after(15, source, tmp_path / "out", val=0)
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    recorded = json.loads(journal[-1])["state"]["position"]["offset"]
    assert recorded > 10 << 16
    read = watch_reads(monkeypatch)
    shardmill.prepare(source, tmp_path / "out", val=0)
    assert min(read) == recorded
    check(tmp_path / "out", twin(source))


def test_overwrite_removes_what_an_unfinished_run_in_another_format_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(4000))
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    interrupt_after(15, source, tmp_path / "out", val=0, format="shards", shard_tokens=20_000)
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    whole = [entry["name"] for line in journal for _, _, entry in json.loads(line)["files"]]
    assert whole and all((tmp_path / "out" / name).exists() for name in whole)
    (tmp_path / "out" / "mine.bin").touch()
    shardmill.prepare(source, tmp_path / "out", val=0, overwrite=True)
    assert not any((tmp_path / "out" / name).exists() for name in whole)
    assert (tmp_path / "out" / "mine.bin").exists()
    (tmp_path / "out" / "mine.bin").unlink()
    check(tmp_path / "out", twin(source))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_says_how_to_go_on_and_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(20 * MB))
    command = ["prepare", source, "-o", tmp_path / "out", "--separator", r"\n"]
    with paused_run(tmp_path / "mark", *command) as run:
        run.send_signal(number)
        _, said = run.communicate(timeout=100)
    assert run.returncode == 130
    assert "the same command resumes from the last checkpoint" in said
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    assert json.loads(journal[-1])["state"]["ledger"]["totals"]["documents"] > 0
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_full_disk_stops_with_a_message_and_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(3000))
    append, space = files.PartialFile.append, [300_000]

    def fill(self: Any, data: Any) -> None:
        view = memoryview(data).cast("B")
        if len(view) > space[0]:
            append(self, bytes(view[: space[0]]))
            space[0] = 0
            with files.writing_to(self.path):
                raise OSError(errno.ENOSPC, "No space left on device")
        space[0] -= len(view)
        append(self, data)

    monkeypatch.setattr(files.PartialFile, "append", fill)
    with pytest.raises(OutputError, match="no space left") as error:
        shardmill.prepare(source, tmp_path / "out", val=0)
    assert "free some space" in str(error.value)
    assert "the same command resumes" in str(error.value)
    monkeypatch.setattr(files.PartialFile, "append", append)
    assert shardmill.prepare(source, tmp_path / "out", val=0).resumed
    check(tmp_path / "out", twin(source))


def test_a_real_file_system_that_fills_up_is_survived(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this machine does not let us mount a small file system: {mounted.stderr.strip()}")
    try:
        source = tmp_path / "a.txt"
        source.write_bytes(random_words(3 * MB, seed=1))
        ballast = small / "ballast"
        ballast.write_bytes(b"0" * 2 * MB)
        options: dict[str, Any] = {"separator": "\n", "val": 0}
        with pytest.raises(OutputError, match=r"no space left|would take about"):
            shardmill.prepare(source, small / "out", **options)
        ballast.unlink()
        shardmill.prepare(source, small / "out", **options)
        check(small / "out", twin(source, separator="\n"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_input_that_breaks_in_the_middle_goes_on_when_it_is_mended(tmp_path: Path, small_chunks: None) -> None:
    whole = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in documents(3000))
    source = tmp_path / "a.jsonl"
    source.write_bytes(whole)
    interrupt_after(5, source, tmp_path / "out", val=0)
    times = os.stat(source)
    source.chmod(0)
    try:
        if os.access(source, os.R_OK):  # root may read everything; take the file away instead
            source.rename(tmp_path / "away")
        with pytest.raises(shardmill.ShardmillError, match=r"a\.jsonl"):
            shardmill.prepare(source, tmp_path / "out", val=0)
    finally:
        if (tmp_path / "away").exists():
            (tmp_path / "away").rename(source)
        source.chmod(0o644)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert shardmill.prepare(source, tmp_path / "out", val=0).resumed
    check(tmp_path / "out", twin(source))


def test_the_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(6000))
    keep = Checkpoints.keep
    # After every result, however slow the disk is: otherwise there may be too few to tell.
    monkeypatch.setattr(Checkpoints, "keep", lambda self, **_: keep(self, now=True))
    monkeypatch.setattr("shardmill.write.journal._COMPACT_ABOVE", 1_500)
    sizes = []
    record = shardmill.write.journal.Journal.record

    def recorded(self: Any, *arguments: Any) -> None:
        record(self, *arguments)
        sizes.append((self.folder / "journal.jsonl").stat().st_size)

    monkeypatch.setattr("shardmill.write.journal.Journal.record", recorded)
    shardmill.prepare(source, tmp_path / "out", val=0)
    assert len(sizes) > 4
    assert any(later < size for size, later in itertools.pairwise(sizes)), "it was never made smaller"
    assert max(sizes) < 2_000


def test_too_many_bad_documents_stop_the_run_and_it_goes_on_when_they_are_allowed(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(500))
    with open(source, "a") as file:
        file.write("not json\n" * 150 + '{"text": "the last"}\n')
    with pytest.raises(SourceError, match="documents are bad") as error:
        shardmill.prepare(source, tmp_path / "out", val=0)
    assert 'max_bad="any"' in str(error.value)
    result = shardmill.prepare(source, tmp_path / "out", val=0, max_bad="any")
    assert result.resumed
    assert result.manifest["rejected"] == 150
    check(tmp_path / "out", twin(source))


def _journal_size(out: Path) -> int:
    path = out / ".shardmill" / "journal.jsonl"
    return path.stat().st_size if path.exists() else 0


def test_a_stop_in_the_middle_of_a_result_records_nothing_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(300):
        bad = "not json\n" if i > 100 else ""
        (folder / f"{i:03}.jsonl").write_text("".join(f'{{"text": "file {i} line {k}"}}\n' for k in range(20)) + bad)
    shardmill.prepare(folder, tmp_path / "whole", val=0, max_bad="any")
    with pytest.raises(SourceError, match="documents are bad"):
        shardmill.prepare(folder, tmp_path / "out", val=0, max_bad=20)
    shardmill.prepare(folder, tmp_path / "out", val=0, max_bad="any")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_interrupt_between_any_two_steps_of_the_writer_records_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    from shardmill.shards import ShardWriter

    source = write_jsonl(tmp_path / "a.jsonl", documents(800))
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    options: dict[str, Any] = {"format": ["nanogpt", "shards"], "val": 0.2, "shard_tokens": 9_000}
    shardmill.prepare(source, tmp_path / "whole", **options)
    for method in ("append", "prepare_sync", "position", "finish"):
        for call in (1, 2, 7):
            whole, calls = getattr(ShardWriter, method), itertools.count(1)

            def interrupted(
                self: Any,
                *arguments: Any,
                whole: Callable[..., Any] = whole,
                calls: Iterator[int] = calls,
                call: int = call,
            ) -> Any:
                result = whole(self, *arguments)
                if next(calls) == call:
                    raise KeyboardInterrupt
                return result

            out = tmp_path / f"{method}{call}"
            with monkeypatch.context() as patch:
                patch.setattr(ShardWriter, method, interrupted)
                with contextlib.suppress(KeyboardInterrupt):
                    shardmill.prepare(source, out, **options)
            shardmill.prepare(source, out, **options)
            assert contents(out) == contents(tmp_path / "whole"), (method, call)
