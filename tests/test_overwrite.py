"""`--overwrite`: nothing of the old dataset is left, whenever it is killed; and files that were left are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.dataset import verify
from shardmill.errors import OutputError
from shardmill.options import FORMATS
from tests.corpus import contents, documents, write_jsonl
from tests.crashing import crash_overwrites, crash_overwrites_in_store
from tests.meter import metered
from tests.object_store import Bucket, bucket, s3_server

pytestmark = pytest.mark.thorough

__all__ = ["bucket", "s3_server"]

OLD: dict[str, Any] = {"name": "old", "val": 0.3, "shard_tokens": 3000}
NEW: dict[str, Any] = {"name": "new", "val": 0.0, "shard_tokens": 6000}
CHANGES = [
    ("npy", "npy", 0, 0.0),
    ("mds", "nanogpt", 0, 1.0),
    ("nanogpt", "megatron", 40, 1.0),
    ("datatrove", "llmc", 40, 0.0),
]
"""The format before and after; the step at which the first run was killed, 0 if it is complete; what is lost."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("old", "new", "unfinished", "power"), CHANGES)
def test_a_killed_overwrite_leaves_nothing_of_the_old_dataset(
    tmp_path: Path, old: str, new: str, unfinished: int, power: float
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*documents(60), "\ud800"])
    ends = crash_overwrites(
        source,
        tmp_path / "out",
        {**OLD, "format": old},
        {**NEW, "format": new},
        unfinished=unfinished,
        every=4,
        power=power,
    )
    assert ends["untouched"] and ends["third"] and ends["after"], ends


@pytest.mark.timeout(600)
def test_a_killed_overwrite_in_a_store_leaves_nothing_of_the_old_dataset(tmp_path: Path, bucket: Bucket) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(60))
    old, new = {**OLD, "format": "npy"}, {**NEW, "format": "shards"}
    assert crash_overwrites_in_store(source, bucket, tmp_path, old, new, every=3) > 5


@pytest.mark.parametrize("there", ["nothing", "a dataset without a table"])
def test_a_documents_table_that_no_dataset_lists_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", documents(20))
    if there != "nothing":  # nothing says where documents end in these tokens
        Path("raw").mkdir()
        np.arange(1000, dtype=np.uint16).tofile("raw/train.bin")
        shardmill.convert("raw", ".", format="npy", eot="none", source_eot="none")
    Path("documents").mkdir()
    Path("documents/train.npy").write_bytes(b"somebody's")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"in the way: documents/train\.npy") as error:
        shardmill.prepare("a.jsonl", ".", overwrite=True, format="npy")
    assert error.value.hint == "choose another folder"
    assert contents(tmp_path) == before


def test_an_overwrite_leaves_nothing_of_parts_that_were_to_be_kept(tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path / "a.jsonl", documents(60)), tmp_path / "out"
    plan_parts(source, out, parts=2, keep_parts=True, **OLD, format="npy")
    make_part(out, 1)
    assert any("old" in name for name in contents(out))
    plan_parts(source, out, parts=1, overwrite=True, **NEW, format="npy")
    make_part(out, 0)
    merge(out)
    shardmill.prepare(source, tmp_path / "one", **NEW, format="npy")
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.parametrize("new", ["npy", "shards", "mds"])
@pytest.mark.parametrize("old", FORMATS)
def test_an_overwrite_leaves_nothing_of_a_dataset_with_another_name_and_format(
    tmp_path: Path, old: str, new: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(100))
    out, alone = tmp_path / "out", tmp_path / "alone"
    shardmill.prepare(source, out, **OLD, format=old)
    (out / "notes.txt").write_text("mine")
    shardmill.prepare(source, out, **NEW, format=new, overwrite=True)
    shardmill.prepare(source, alone, **NEW, format=new)
    assert contents(out) == {**contents(alone), "notes.txt": b"mine"}
    assert not verify(out).damage


def test_an_overwrite_of_a_dataset_with_a_damaged_manifest_leaves_nothing_of_it(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(100))
    for i, harm in enumerate((b"", b"{}", None)):
        out = tmp_path / f"{i}"
        shardmill.prepare(source, out, **OLD, format="npy")
        manifest = out / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"documents"', b'"dokuments"') if harm is None else harm)
        shardmill.prepare(source, out, **NEW, format="npy", overwrite=True)
        assert not any("old" in name for name in contents(out))
        assert not verify(out).damage


@pytest.mark.parametrize("form", FORMATS)
def test_verify_names_files_that_a_trainer_could_take_for_shards(tmp_path: Path, form: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(100))
    out, other = tmp_path / "out", tmp_path / "other"
    shardmill.prepare(source, other, val=0.3, format=form, shard_tokens=1500, name="other")
    shardmill.prepare(source, out, val=0.0, format=form, shard_tokens=6000, name="own")
    (out / "notes.txt").write_text("mine")
    (out / "model.pt").write_bytes(b"weights")
    assert not verify(out).damage
    listed = {file["name"] for file in shardmill.open(other).manifest["splits"]["val"]["files"]}
    for name in sorted(listed - set(contents(out))):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes((other / name).read_bytes())
        if not name.endswith("index.json"):
            assert any(name in damage for damage in verify(out).damage), name
    run = metered("verify", out)
    assert run.code == 1
    assert "it looks like a shard of this dataset and is not in manifest.json" in run.out + run.err


def test_verify_names_objects_of_a_store_that_a_trainer_could_take_for_shards(tmp_path: Path, bucket: Bucket) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(60))
    shardmill.prepare(source, bucket.url(), format="npy", name="a")
    assert not verify(bucket.url()).damage
    bucket.put("b_train_000001.npy", b"x")
    assert any("b_train_000001.npy" in damage for damage in verify(bucket.url()).damage)
