"""Runs that 0.1.0 has begun, which are refused, and a dataset that it has made, which has the same tokens.

`begun_by_0_1_0.tar.xz` holds what 0.1.0 left in the output folder of a run over `write_sources`, for each of its
formats, ended after its sixth chunk of 4 KiB; and `whole`, a dataset that it has completed.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import MismatchError
from shardmill.run import Result
from tests.corpus import contents

BEGUN = Path(__file__).with_name("begun_by_0_1_0.tar.xz")
FORMATS = ("nanogpt", "shards", "npy", "llmc", "megatron", "datatrove", "mds")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the sources and what 0.1.0 left: names of sources are as they were given."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    with tarfile.open(BEGUN) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    return tmp_path


def write_sources(folder: Path) -> None:
    texts = [
        " ".join(f"word{(i * i + 31 * j) % 97} of {j}" for j in range(3 + i % 40)) + f" éü {i}." for i in range(100)
    ]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    lines[7:7] = ["not JSON\n"]
    lines[70:70] = ["[]\n"]
    for name, some in (("a.jsonl", lines[:40]), ("b.jsonl", lines[40:])):
        (folder / name).write_text("".join(some))
        os.utime(folder / name, ns=(1_700_000_000_000_000_000,) * 2)  # a source's version


def prepare(out: str, format: str = "nanogpt", **options: Any) -> Result:
    return shardmill.prepare(
        ["a.jsonl", "b.jsonl"], out, format=format, **{"val": "0.1", "shard_tokens": 1500, "max_bad": "any", **options}
    )


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_0_1_0_has_begun_is_refused_and_left_as_it_is(format: str, folder: Path) -> None:
    before = contents(folder / format)
    with pytest.raises(MismatchError, match="another release of shardmill") as refused:
        prepare(format, format)
    assert "--overwrite" in str(refused.value.hint)
    assert contents(folder / format) == before
    prepare(format, format, overwrite=True)
    prepare("new", format)
    assert contents(folder / format) == contents(folder / "new")


def test_a_run_that_0_1_0_has_begun_with_other_options_is_refused_by_their_names(folder: Path) -> None:
    before = contents(folder / "nanogpt")
    with pytest.raises(MismatchError, match=r"other sources or options: --val was `0\.1` and is now `0\.2`"):
        prepare("nanogpt", val="0.2")
    assert contents(folder / "nanogpt") == before


def test_a_dataset_that_0_1_0_has_made_is_complete(folder: Path) -> None:
    before = contents(folder / "whole")
    assert prepare("whole").already
    assert contents(folder / "whole") == before
    made = prepare("new").manifest["splits"]
    for split in made.values():
        del split["documents_table"]  # 0.1.0 made none
    assert made == json.loads(before["manifest.json"])["splits"]


def test_a_state_of_a_release_yet_to_come_is_refused(folder: Path) -> None:
    journal = folder / "nanogpt" / ".shardmill" / "journal.jsonl"
    last = json.loads(journal.read_text().splitlines()[-1])
    last["state"]["something new"] = 1
    journal.write_text(json.dumps(last) + "\n")
    with pytest.raises(MismatchError, match="another release of shardmill"):
        prepare("nanogpt")
