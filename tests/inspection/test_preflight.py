"""`prepare` looks before it begins whether the output fits on the disk."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import shardmill
from shardmill.errors import OutputError
from shardmill.run import inspect
from tests.corpus import documents, write_jsonl
from tests.inspection.material import Disk


def test_prepare_refuses_a_disk_that_is_too_small_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(2000))
    needed = inspect(source).output_bytes["nanogpt"]
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda path: Disk(10**9, 0, needed - 1))
    with pytest.raises(OutputError, match="the output would take about") as refused:
        shardmill.prepare(source, tmp_path / "out", val="0")
    assert "`--limit` prepares only a part of the text" in (refused.value.hint or "")
    assert not list((tmp_path / "out").glob("*.bin*"))
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda path: Disk(10**9, 0, needed))
    assert shardmill.prepare(source, tmp_path / "out", val="0").manifest["documents"] > 0


def test_two_formats_need_the_space_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(2000))
    sizes = inspect(source).output_bytes
    monkeypatch.setattr(
        "shardmill.run.encoded_text.shutil.disk_usage", lambda path: Disk(10**9, 0, int(1.5 * sizes["nanogpt"]))
    )
    with pytest.raises(OutputError):
        shardmill.prepare(source, tmp_path / "out", format=("nanogpt", "npy"))


def test_a_stream_of_which_only_the_beginning_was_read_is_refused_only_if_it_clearly_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_places: None
) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", documents(8000)).read_bytes()
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress(lines, 1))
    needed = inspect(tmp_path / "a.jsonl").output_bytes["nanogpt"]
    free = Disk(10**9, 0, needed // 2)
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda path: free)
    with pytest.raises(OutputError, match="the output would take about"):
        shardmill.prepare(source, tmp_path / "out", val="0")
    free = Disk(10**9, 0, needed)
    assert shardmill.prepare(source, tmp_path / "out", val="0").manifest["documents"] > 0
