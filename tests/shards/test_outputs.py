"""What every output format must do. To register one is to have it tested here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.errors import OutputError
from shardmill.options import Options
from shardmill.shards import FORMATS, SPLITS, format_named, open_output
from tests.shards.driving import SHARD, Driven, contents, documents, steps, take, whole_run
from tests.shards.readers import (
    READERS,
    automodel_documents,
    datatrove_documents,
    litdata_documents,
    mds_documents,
    megatron_documents,
    olmo_documents,
    parquet_documents,
    read_stream,
    torchtitan_documents,
)

ALL = sorted(FORMATS)
SHARDED = ("shards", "npy", "llmc")
TAILS = [(format, tail) for format in ALL for tail in ("keep", "drop") if tail == "keep" or format in SHARDED]


def test_every_format_can_be_chosen_and_has_a_reader_here() -> None:
    choices = {field.name: field.metadata["choices"] for field in dataclasses.fields(Options)}
    assert choices["format"] == FORMATS and sorted(READERS) == ALL


@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize("largest", [50257, 200_000])
def test_a_reader_that_knows_only_the_format_gets_the_tokens_back(format: str, largest: int, tmp_path: Path) -> None:
    made = documents(1, largest=largest)
    dtype = "uint16" if largest <= 65536 else "uint32"
    run = whole_run(format, tmp_path / "out", made, dtype=np.dtype(dtype))
    expected_dtype = "int32" if format in ("megatron", "litdata", "parquet") and largest > 65536 else dtype
    expected_dtype = "uint32" if format == "torchtitan" else expected_dtype
    assert str(run.output.dtype) == expected_dtype
    for split in SPLITS:
        expected = np.concatenate([tokens for s, tokens in made if s == split])
        assert np.array_equal(read_stream(format, run.folder, run.names(split), expected_dtype), expected)


@pytest.mark.parametrize("format", ALL)
def test_what_is_said_of_each_file_is_what_stands_on_disk(format: str, tmp_path: Path) -> None:
    run = whole_run(format, tmp_path / "out", documents(2))
    said = {written.name: written for _, written in run.files}
    on_disk = contents(run.folder)
    assert sorted(said) == sorted(on_disk)
    for name, data in on_disk.items():
        assert (said[name].bytes, said[name].sha256) == (len(data), hashlib.sha256(data).hexdigest()), name
    assert sum(w.tokens for w in said.values()) == sum(len(tokens) for _, tokens in documents(2))


@pytest.mark.parametrize(("format", "tail"), TAILS)
@pytest.mark.parametrize("seed", range(3))
def test_after_any_number_of_crashes_the_bytes_are_those_of_an_uninterrupted_run(
    format: str, tail: str, seed: int, tmp_path: Path
) -> None:
    made, random = documents(seed), np.random.default_rng(seed)
    straight = whole_run(format, tmp_path / "straight", made, tail=tail)
    run, todo = Driven(format, tmp_path / "crashed", tail=tail), steps(made)
    recorded = at = crashes = 0
    while True:
        while at < len(todo):
            take(run.output, todo[at])
            at += 1
            if (chance := random.random()) < 0.3:
                run.checkpoint(record=chance < 0.2)
                recorded = at if chance < 0.2 else recorded
            elif chance > 0.9 and crashes < 12:
                run.crash_and_go_on()
                at, crashes = recorded, crashes + 1
        run.output.finish(SPLITS)
        if crashes < 13:
            # All is settled and named, but the journal has not heard of it.
            run.checkpoint(record=False)
            run.crash_and_go_on()
            at, crashes = recorded, 13
            continue
        run.checkpoint()
        break
    run.crash_and_go_on()
    run.finish()
    assert crashes == 13
    assert run.output.dropped == straight.output.dropped
    assert contents(run.folder) == contents(straight.folder)
    assert sorted(run.files, key=str) == sorted(straight.files, key=str)


@pytest.mark.parametrize("format", ALL)
def test_a_file_that_became_shorter_is_an_error_and_not_wrong_data(format: str, tmp_path: Path) -> None:
    run = Driven(format, tmp_path / "out", shard_tokens=10**6)
    for step in steps(documents(3)):
        take(run.output, step)
    run.checkpoint()
    run.output.close()
    longest = max(run.folder.rglob("*.partial"), key=lambda path: path.stat().st_size)
    longest.write_bytes(longest.read_bytes()[:-10])
    with pytest.raises(OutputError, match="where the journal says"):
        run.crash_and_go_on()
    run.output.close()


@pytest.mark.parametrize("format", ALL)
def test_files_of_others_are_left_alone_and_names_of_ours_are_seen(format: str, tmp_path: Path) -> None:
    run = whole_run(format, tmp_path / "out", documents(4))
    (run.folder / "notes.txt").write_text("mine")
    again = open_output(format, run.folder, name="web", dtype=np.dtype("uint16"), shard_tokens=SHARD)
    assert again.matching_files() == sorted(written.name for _, written in run.files)
    again.restore(again.position(), set())
    assert list(contents(run.folder)) == ["notes.txt"]


@pytest.mark.parametrize("format", ALL)
def test_a_split_without_tokens_has_its_file_all_the_same(format: str, tmp_path: Path) -> None:
    run = Driven(format, tmp_path / "out")
    run.output.append("train", np.arange(5, dtype=np.uint16), np.array([5]))
    run.finish()
    assert {split for split, _ in run.files} == set(SPLITS)
    assert sum(written.tokens for split, written in run.files if split == "val") == 0


def test_raw_shards_joined_are_nanogpts_file(tmp_path: Path) -> None:
    made = documents(5)
    shards = whole_run("shards", tmp_path / "shards", made)
    whole = whole_run("nanogpt", tmp_path / "whole", made)
    for split in SPLITS:
        joined = b"".join((shards.folder / name).read_bytes() for name in sorted(shards.names(split)))
        assert joined == (whole.folder / f"{split}.bin").read_bytes()
        assert all((shards.folder / name).stat().st_size == 2 * SHARD for name in sorted(shards.names(split))[:-1])


@pytest.mark.parametrize("format", ["npy", "llmc"])
def test_shards_are_numbered_as_the_trainers_that_read_them_do(format: str, tmp_path: Path) -> None:
    run = whole_run(format, tmp_path / "out", documents(6))
    ending = {"npy": "npy", "llmc": "bin"}[format]
    assert run.names("val")[0] == f"web_val_000000.{ending}"
    assert run.names("train")[:2] == [f"web_train_000001.{ending}", f"web_train_000002.{ending}"]


@pytest.mark.parametrize("format", SHARDED)
def test_a_short_last_shard_is_dropped_and_counted(format: str, tmp_path: Path) -> None:
    made = documents(8)
    run = whole_run(format, tmp_path / "out", made, tail="drop")
    for split in SPLITS:
        expected = np.concatenate([tokens for s, tokens in made if s == split])
        got = read_stream(format, run.folder, run.names(split), "uint16")
        assert np.array_equal(got, expected[: len(expected) // SHARD * SHARD])
        assert run.output.dropped[split] == len(expected) - len(got) > 0


def test_the_only_shard_of_a_split_stays_however_short(tmp_path: Path) -> None:
    run = Driven("llmc", tmp_path / "out", tail="drop")
    run.output.append("train", np.arange(7, dtype=np.uint16), np.array([7]))
    run.finish(("train",))
    assert [written.tokens for _, written in run.files] == [7]
    assert run.output.dropped == {}


@pytest.mark.parametrize(
    ("format", "read"),
    [
        ("megatron", lambda folder, name: megatron_documents(folder / name)),
        ("datatrove", lambda folder, name: datatrove_documents(folder / name, "uint16")),
        ("mds", lambda folder, name: mds_documents(folder / name, "uint16")),
        ("litdata", lambda folder, name: litdata_documents(folder / name, "uint16")),
        ("olmo", lambda folder, name: olmo_documents(folder / name, "uint16")),
        ("torchtitan", lambda folder, name: torchtitan_documents(folder / name)),
        ("automodel", lambda folder, name: automodel_documents(folder / name, "uint16")),
        ("parquet", lambda folder, name: parquet_documents(folder / name, "uint16")),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_formats_with_an_index_give_every_document_back_whole(
    format: str, read: Callable[..., Any], seed: int, tmp_path: Path
) -> None:
    made = documents(seed, count=400, longest=40)
    run = whole_run(format, tmp_path / "out", made)
    for split in SPLITS:
        got = [document for name in run.names(split) for document in read(run.folder, name)]
        expected = [tokens for s, tokens in made if s == split]
        assert [one.tolist() for one in got] == [one.tolist() for one in expected]


def test_a_document_that_is_still_open_at_the_end_is_in_the_index(tmp_path: Path) -> None:
    run = Driven("megatron", tmp_path / "out")
    run.output.append("train", np.arange(9, dtype=np.uint16), np.array([4]))
    run.finish(("train",))
    assert [len(d) for d in megatron_documents(run.folder / run.names("train")[0])] == [4, 5]


@pytest.mark.parametrize("format", ["datatrove", "mds", "litdata", "olmo", "automodel", "parquet"])
def test_a_file_ends_with_the_document_that_fills_it(format: str, tmp_path: Path) -> None:
    made = [("train", np.full(n, n, np.uint16)) for n in (200, 200, 200, 900, 20, 600)]
    run = whole_run(format, tmp_path / "out", made)
    sizes = [written.tokens for split, written in run.files if split == "train" and not written.role]
    assert sizes == [600, 900, 620]


def test_a_megatron_pair_without_a_val_split_is_called_as_megatrons_own_tool_calls_it(tmp_path: Path) -> None:
    run = Driven("megatron", tmp_path / "out", splits=("train",))
    run.output.append("train", np.arange(4, dtype=np.uint16), np.array([4]))
    run.finish(("train",))
    assert sorted(contents(run.folder)) == ["web_text_document.bin", "web_text_document.idx"]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(50257, "uint16"), (65499, "uint16"), (65500, "int32")])
def test_megatrons_width_follows_megatrons_own_rule(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    output = open_output(
        "megatron", tmp_path, name="x", dtype=np.dtype("uint16"), shard_tokens=9, vocab_size=vocab_size
    )
    assert output.dtype == dtype


def test_mds_has_an_index_that_lists_its_shards(tmp_path: Path) -> None:
    run = whole_run("mds", tmp_path / "out", documents(9))
    for split in SPLITS:
        index = json.loads((run.folder / split / "index.json").read_text())
        assert index["version"] == 2
        names = run.names(split)
        assert [f"{split}/{shard['raw_data']['basename']}" for shard in index["shards"]] == names
        for shard, name in zip(index["shards"], names, strict=True):
            assert shard["samples"] == len(mds_documents(run.folder / name, "uint16"))
            assert shard["raw_data"]["bytes"] == (run.folder / name).stat().st_size


@pytest.mark.parametrize("tokens", [0, 1, 99, 10**8, 1_073_741_311])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_head_of_an_npy_shard_is_numpys_own(tokens: int, dtype: str) -> None:
    from io import BytesIO

    expected = BytesIO()
    np.lib.format.write_array_header_1_0(
        expected, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (tokens,)}
    )
    npy = format_named("npy")
    assert npy.header(tokens, np.dtype(dtype)) == expected.getvalue()
    assert len(expected.getvalue()) == 128
