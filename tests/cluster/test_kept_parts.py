"""`--keep-parts`: the shards of the parts are the dataset's, and hold the tokens that one run would have written."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.cluster.driver import prepare_in_parts
from shardmill.dataset import Dataset, verify
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.shards import format_named
from shardmill.write import Result
from tests.corpus import contents, documents, write_jsonl
from tests.meter import SHARDMILL

pytestmark = pytest.mark.thorough

SHARDED = [name for name in FORMATS if format_named(name).sharded]
OPTIONS: dict[str, Any] = {"val": 0.1, "shard_tokens": 9_000, "name": "web"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": text}) for text in documents(400, seed=5)]
    lines[7:7] = ["{", '{"text": null}']
    lines[300:300] = ['{"other": 1}']
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    return path


def make(source: Path, out: Path, parts: int, order: Iterable[int] | None = None, **options: Any) -> Result:
    plan = plan_parts(source, out, parts=parts, keep_parts=True, **{**OPTIONS, "max_bad": "any", **options})
    for number in order or range(len(plan.parts)):
        make_part(out, number, memory="4GB")
    return merge(out)


def tokens(data: Dataset) -> dict[str, list[int]]:
    return {split: data[split][:].tolist() for split in data}


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("format", SHARDED)
def test_the_shards_of_parts_hold_the_documents_of_one_run(
    tmp_path: Path, source: Path, format: str, parts: int
) -> None:
    one = shardmill.prepare(source, tmp_path / "one", format=format, max_bad="any", **OPTIONS)
    made = make(source, tmp_path / "out", parts, order=range(parts)[::-1], format=format)
    alone, kept = shardmill.open(tmp_path / "one"), shardmill.open(tmp_path / "out")
    assert tokens(kept) == tokens(alone)
    same = ("documents", "empty", "rejected", "sources", "replaced", "tokenizer")
    alike: Any = made.manifest, one.manifest
    assert all(alike[0][key] == alike[1][key] for key in same)
    for split in alone:
        for key in ("tokens", "documents", "bytes"):
            assert kept[split].described[key] == alone[split].described[key]
        names = [file["name"] for file in kept[split].described["files"] if not file.get("role")]
        assert names == sorted(names) and len(names) >= (parts if split == "train" else 1)
        tables = [(tmp_path / name / "documents" / f"{split}.npy").read_bytes() for name in ("one", "out")]
        assert tables[0] == tables[1]
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == (tmp_path / "one" / "rejects.jsonl").read_bytes()
    assert not (tmp_path / "out" / ".parts").exists()
    report = verify(tmp_path / "out", source=True)
    assert not report.damage, report.text()
    shardmill.convert(tmp_path / "out", tmp_path / "again", format=format, shard_tokens=9_000, name="web")
    files = {name: data for name, data in contents(tmp_path / "one").items() if name.startswith(("train", "web"))}
    assert files and {name: contents(tmp_path / "again")[name] for name in files} == files


def test_several_formats_at_once_and_two_orders_give_the_same_bytes(tmp_path: Path, source: Path) -> None:
    make(source, tmp_path / "a", 3, format=["npy", "mds"])
    make(source, tmp_path / "b", 3, order=[2, 0, 1, 1], format=["npy", "mds"])
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert tokens(shardmill.open(tmp_path / "a", format="mds")) is not None
    assert not verify(tmp_path / "a").damage
    batch, _ = next(iter(shardmill.open(tmp_path / "a")["train"].batches(batch_size=2, block_size=64)))
    assert np.asarray(batch).shape == (2, 64)


def test_a_text_without_a_separator_stays_in_one_part(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("word " * 60_000)
    plan = plan_parts(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", parts=4, keep_parts=True, format="mds"
    )
    assert [(part.byte, part.end) for part in plan.parts] == [(0, 0), (0, 0)] and len(plan.undivided) == 2
    for number in range(2):
        make_part(tmp_path / "out", number, memory="4GB")
    merge(tmp_path / "out", keep_parts=True)
    assert shardmill.open(tmp_path / "out").manifest["documents"] == 2


def test_a_split_without_tokens_has_an_empty_file_as_in_one_run(tmp_path: Path, source: Path) -> None:
    make(source, tmp_path / "out", 3, format="shards", val=1e-9)
    [file] = shardmill.open(tmp_path / "out")["val"].described["files"]
    assert file["tokens"] == 0 and (tmp_path / "out" / file["name"]).exists()


@pytest.mark.parametrize(
    "options",
    [{"format": "nanogpt"}, {"format": ["mds", "megatron"]}, {"limit": 10}, {"val": "first:1k"}, {"tail": "drop"}],
)
def test_what_needs_equal_shards_is_refused_before_anything_is_written(
    tmp_path: Path, source: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="keep_parts") as caught:
        plan_parts(source, tmp_path / "out", parts=2, keep_parts=True, **{"format": "shards", **options})
    assert caught.value.hint and not (tmp_path / "out").exists()


def test_parts_that_were_planned_to_be_merged_cannot_be_kept(tmp_path: Path, source: Path) -> None:
    plan_parts(source, tmp_path / "out", parts=2, format="shards")
    with pytest.raises(UsageError, match="no shards that could be kept") as caught:
        merge(tmp_path / "out", keep_parts=True)
    assert "plan --keep-parts" in caught.value.hint
    with pytest.raises(MismatchError):
        plan_parts(source, tmp_path / "out", parts=2, format="shards", keep_parts=True)


def test_other_parts_are_another_dataset(tmp_path: Path, source: Path) -> None:
    options: dict[str, Any] = {"format": "shards", "parts": 3, "max_bad": "any", "memory": "4GB"}
    prepare_in_parts(source, tmp_path / "out", keep_parts=True, **options)
    before = contents(tmp_path / "out")
    assert prepare_in_parts(source, tmp_path / "out", keep_parts=True, **options).already
    with pytest.raises(MismatchError, match="keep_parts was `3` and is now `4`"):
        prepare_in_parts(source, tmp_path / "out", keep_parts=True, **{**options, "parts": 4})
    with pytest.raises(MismatchError, match="keep_parts was `3` and is now not given"):
        shardmill.prepare(source, tmp_path / "out", format="shards", max_bad="any")
    assert contents(tmp_path / "out") == before


def test_a_shard_that_is_gone_is_named(tmp_path: Path, source: Path) -> None:
    plan_parts(source, tmp_path / "out", parts=2, keep_parts=True, max_bad="any", **{**OPTIONS, "format": "npy"})
    for number in range(2):
        make_part(tmp_path / "out", number, memory="4GB")
    lost = min((tmp_path / "out").glob("*_train_100001*"))
    lost.unlink()
    with pytest.raises(OutputError, match=lost.name):
        merge(tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    shutil.rmtree(tmp_path / "out" / ".parts" / "00001")
    make_part(tmp_path / "out", 1, memory="4GB")
    merge(tmp_path / "out")
    assert not verify(tmp_path / "out").damage


def test_files_that_would_be_mixed_up_with_the_new_ones_are_in_the_way(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train_100000000003.bin").write_bytes(b"12")
    with pytest.raises(OutputError, match="in the way: train_100000000003"):
        plan_parts(source, tmp_path / "out", parts=2, keep_parts=True, format="shards")


def test_the_commands_know_it(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200, seed=2))

    def run(*words: object) -> str:
        done = subprocess.run([*SHARDMILL, *map(str, words)], capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("plan", source, "-o", tmp_path / "a", "--parts", 2, "--keep-parts", "-f", "npy", "--shard-tokens", 9000)
    for number in range(2):
        run("prepare", "--plan", tmp_path / "a", "--part", number)
    run("merge", tmp_path / "a", "--keep-parts")
    words = ["--executor", "local", "--parts", 2, "--keep-parts", "-f", "npy", "--shard-tokens", 9000]
    run("prepare", source, "-o", tmp_path / "b", *words)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    run("show", tmp_path / "a")
    run("report", tmp_path / "a", "-o", tmp_path / "report.html")
