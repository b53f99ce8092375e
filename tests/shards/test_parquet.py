"""Parquet with `input_ids`: read by `datasets`, written by others, packed, damaged, and made by two releases."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.dataset import verify
from shardmill.errors import DamageError, MismatchError, OutputError, UsageError
from shardmill.shards import SPLITS, find_foreign
from tests.corpus import documents as texts
from tests.corpus import write_jsonl
from tests.meter import metered
from tests.shards.driving import SHARD, Driven, contents, documents, whole_run
from tests.shards.readers import parquet_documents
from tests.shards.test_golden import library, of
from tests.watching import interrupt_after


@pytest.mark.parametrize("largest", [50257, 200_000])
def test_datasets_loads_the_folder_as_train_and_validation(
    largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = library("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = documents(3, largest=largest)
    run = whole_run("parquet", tmp_path / "out", made, dtype=np.dtype("uint16" if largest <= 65536 else "uint32"))
    assert len(run.names("train")) > 3
    loaded = datasets.load_dataset(str(run.folder), cache_dir=str(tmp_path / "cache"))
    files = {split: [str(run.folder / name) for name in run.names(split)] for split in SPLITS}
    named = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "validation"}
    for split, theirs in (("train", "train"), ("val", "validation")):
        for rows in (loaded[theirs], named[split]):
            assert rows["input_ids"][:] == [tokens.tolist() for tokens in of(made, split)]


def test_datasets_loads_a_whole_dataset_with_its_table_and_manifest(tmp_path: Path) -> None:
    datasets = library("datasets")
    source = write_jsonl(tmp_path / "a.jsonl", texts(60))
    shardmill.prepare(source, tmp_path / "out", format="parquet", val=0.3, shard_tokens=2000)
    data = shardmill.open(tmp_path / "out")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for split, theirs in (("train", "train"), ("val", "validation")):
        assert loaded[theirs].column_names == ["input_ids"]
        rows = loaded[theirs]["input_ids"][:]
        assert len(rows) == len(data[split].documents)
        assert np.concatenate(rows).tolist() == data[split][:].tolist()


def test_a_row_of_a_packed_dataset_is_a_row(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(300))
    shardmill.prepare(source, tmp_path / "whole", format="parquet", val=0.2)
    for out, format in (("packed", "parquet"), ("raw", "nanogpt")):
        shardmill.pack(tmp_path / "whole", tmp_path / out, block_size=128, shard_tokens=2000, format=format)
    data, raw = shardmill.open(tmp_path / "packed"), shardmill.open(tmp_path / "raw")
    for split in SPLITS:
        rows = [row for file in data[split].tokens.files for row in parquet_documents(Path(str(file.path)), "uint16")]
        assert {len(row) for row in rows} == {128}
        assert np.concatenate(rows).tolist() == raw[split][:].tolist()
    assert len(data["train"].tokens.files) > 3
    assert not verify(tmp_path / "packed").damage


def test_rows_are_whole_however_they_arrive_and_after_a_crash(tmp_path: Path) -> None:
    run = Driven("parquet", tmp_path / "out", row=100)
    tokens, at = np.arange(12 * SHARD, dtype=np.uint16), 0
    for size in (30, 70, 1, 250, 49, 1300, 300):
        run.output.append("train", tokens[at : at + size], np.array([size // 2, size]))
        run.output.end_document()
        at += size
        run.checkpoint()
        run.crash_and_go_on()
    run.output.append("train", tokens[at:])
    run.finish(("train",))
    rows = [row for name in run.names("train") for row in parquet_documents(run.folder / name, "uint16")]
    assert [row.tolist() for row in rows] == tokens.reshape(-1, 100).tolist()
    assert [written.documents for _, written in run.files] == [SHARD // 100] * 12


def test_documents_longer_than_a_row_group_are_read_at_any_place(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    made = [random.integers(0, 50257, n).astype(np.uint16) for n in (9, 400_000, 3, 262_144, 262_145, 100_000, 170_000)]
    run = Driven("parquet", tmp_path / "out", shard_tokens=10**6)
    for tokens in made:
        run.output.append("train", tokens, np.array([len(tokens)]))
    run.finish(("train",))
    together = np.concatenate(made)
    found = find_foreign(run.folder, np.dtype("<u2"))
    read = found.splits["train"]
    assert len(read) == len(together) and np.array_equal(read.read(0, len(read)), together)
    for start in random.integers(0, len(together) - 5000, 40).tolist():
        assert np.array_equal(read.read(start, start + 5000), together[start : start + 5000])
    starts = random.integers(0, len(together) - 700, 50)
    assert np.array_equal(read.read_rows(starts, 700), together[starts[:, None] + np.arange(700)])
    assert [found.indices["train"].bounds(i)[1] for i in range(7)] == np.cumsum([len(one) for one in made]).tolist()


def test_a_document_that_would_take_too_much_memory_is_refused(tmp_path: Path) -> None:
    run = Driven("parquet", tmp_path / "out", shard_tokens=10**8)
    run.output.append("train", np.zeros(1 << 21, np.uint16), np.array([1 << 21]))
    with pytest.raises(OutputError, match="does not fit"):
        run.output.append("train", np.zeros((1 << 21) + 1, np.uint16))
    run.output.close()


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.uint16())])
def test_what_others_have_written_is_converted(kind: pa.DataType, tmp_path: Path) -> None:
    made = [[*range(i, i + 5 + i % 7), 50256] for i in range(100)]
    masks = [[1] * len(row) for row in made]
    (tmp_path / "in").mkdir()
    table = pa.table({"attention_mask": masks, "input_ids": pa.array(made, kind)})
    pq.write_table(table, tmp_path / "in" / "train-00000-of-00001.parquet", row_group_size=30)
    shardmill.convert(tmp_path / "in", tmp_path / "out", format="nanogpt", tokenizer="gpt2")
    data = shardmill.open(tmp_path / "out")
    assert data["train"][:].tolist() == [token for row in made for token in row]
    assert len(data["train"].documents) == 100 and data.dtype == np.uint16


def test_parquet_without_tokens_or_with_empty_rows_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="no token files"):
        shardmill.convert(tmp_path / "a.parquet", tmp_path / "out", format="nanogpt")
    pq.write_table(pa.table({"input_ids": [[1, 2], [], [3]]}), tmp_path / "b.parquet")
    with pytest.raises(DamageError, match="rows without tokens"):
        shardmill.convert(tmp_path / "b.parquet", tmp_path / "out", format="nanogpt")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-20])
    with pytest.raises(DamageError, match="not one of Parquet"):
        shardmill.convert(tmp_path / "c.parquet", tmp_path / "out", format="nanogpt")


def with_release(release: str, patch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    patch.setattr(importlib.metadata, "version", lambda name: release if name == "pyarrow" else real(name))


def test_a_run_is_not_resumed_with_another_release_of_pyarrow(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(3000))
    call: dict[str, Any] = {"val": 0, "shard_tokens": 20_000}
    interrupt_after(5, source, tmp_path / "out", format="parquet", **call)
    interrupt_after(5, source, tmp_path / "other", format="mds", **call)
    before = contents(tmp_path / "out")
    with monkeypatch.context() as patch:
        with_release("1.2.3", patch)
        with pytest.raises(MismatchError, match=r"pyarrow was .* and is now 1\.2\.3"):
            shardmill.prepare(source, tmp_path / "out", format="parquet", **call)
        shardmill.prepare(source, tmp_path / "other", format="mds", **call)  # which it does not concern
    assert contents(tmp_path / "out") == before
    shardmill.prepare(source, tmp_path / "out", format="parquet", **call)
    assert not verify(tmp_path / "out").damage


def test_kept_parts_of_two_releases_of_pyarrow_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(400))
    plan_parts(source, tmp_path / "out", parts=2, keep_parts=True, format="parquet")
    make_part(tmp_path / "out", 0)
    with monkeypatch.context() as patch:
        with_release("1.2.3", patch)
        make_part(tmp_path / "out", 1)
    with pytest.raises(MismatchError, match=r"releases that write other files: pyarrow .* and pyarrow 1\.2\.3"):
        merge(tmp_path / "out")


def test_the_longest_documents_are_written_shuffled_and_converted_within_the_memory(tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice(
        np.array([" the", " of", " and", " water", " seven", " house"]), (2, 2_000_000)
    )
    for name, row in zip("ab", words, strict=True):
        (tmp_path / f"{name}.txt").write_text("".join(row.tolist()))
    for limit, *call in (
        (300, "prepare", tmp_path / "a.txt", tmp_path / "b.txt", "-o", tmp_path / "out", "-f", "parquet", "--val", "0"),
        (400, "shuffle", tmp_path / "out", "-o", tmp_path / "shuffled"),
        (320, "convert", tmp_path / "shuffled", "-o", tmp_path / "raw", "-f", "nanogpt"),
    ):
        run = metered(*call, "--memory", f"{limit}MB", "-q")
        assert run.code == 0, run.err
        assert run.peak < limit * 10**6, call[0]
    data = shardmill.open(tmp_path / "raw")["train"]
    assert sorted(len(document) for document in data.documents) == [2_000_000] * 2
