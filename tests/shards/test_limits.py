"""What the readers of a format cannot do is said, or refused before any work."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.errors import OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.shards import SPLITS, early_warnings, open_output
from tests.shards.driving import SHARD, Driven


@pytest.mark.parametrize(("dtype", "most"), [("uint16", 1_073_741_311), ("uint32", 536_870_655)])
def test_a_shard_that_llmc_cannot_seek_in_is_refused_before_any_work(dtype: str, most: int, tmp_path: Path) -> None:
    order: dict[str, Any] = {"name": "x", "dtype": np.dtype(dtype)}
    open_output("llmc", tmp_path, shard_tokens=most, **order)
    with pytest.raises(UsageError, match="2 GiB"):
        open_output("llmc", tmp_path, shard_tokens=most + 1, **order)


def test_a_document_too_long_for_the_format_is_an_error_and_not_an_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Driven("mds", tmp_path / "out")
    monkeypatch.setattr(run.output, "layout", run.output.layout._replace(longest=1000))
    with pytest.raises(OutputError, match="does not fit"):
        run.output.append("train", np.zeros(1001, np.uint16), np.array([1001]))
    run.output.append("train", np.zeros(600, np.uint16), np.empty(0, np.int64))
    with pytest.raises(OutputError, match="does not fit"):
        run.output.append("train", np.zeros(600, np.uint16), np.empty(0, np.int64))
    run.output.close()


@pytest.mark.parametrize(("format", "tail"), [*((format, "keep") for format in FORMATS), ("shards", "drop")])
def test_one_batch_may_fill_more_shards_than_a_process_may_open_files(format: str, tail: str, tmp_path: Path) -> None:
    run, ends = Driven(format, tmp_path / "out", tail=tail), np.arange(1, 21) * SHARD
    run.output.append("val", np.zeros(7, np.uint16), np.array([7]))
    slow = run.output.prepare_sync()  # the syncing thread is still at work when the batch comes
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 60, allowed[1]))
    try:
        for split in SPLITS:
            run.output.append(split, np.zeros(ends[-1], np.uint16), ends)
        run.files += slow()
        run.finish(SPLITS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    tokens = sum(written.tokens for _, written in run.files)
    assert tokens + sum(run.output.dropped.values()) == len(SPLITS) * ends[-1] + 7


def described(split_files: dict[str, list[int]]) -> dict[str, Any]:
    return {
        split: {"tokens": sum(files), "files": [{"name": f"{split}{i}", "tokens": n} for i, n in enumerate(files)]}
        for split, files in split_files.items()
    }


def test_what_a_reader_will_trip_over_is_said_with_the_number(tmp_path: Path) -> None:
    def warnings(format: str, files: dict[str, list[int]], **more: Any) -> str:
        more = {"dtype": np.dtype("uint16"), **more}
        output = open_output(format, tmp_path, name="x", shard_tokens=SHARD, **more)
        return " | ".join(output.warnings(described(files)))

    plenty = 11_000_000
    assert warnings("llmc", {"train": [plenty, plenty], "val": [plenty]}) == ""
    assert "1,234 tokens" in warnings("llmc", {"train": [plenty, 1234], "val": [plenty]})
    assert "--tail drop" in warnings("npy", {"train": [plenty, 1234], "val": [plenty]})
    assert "--shard-tokens" in warnings("npy", {"train": [1234, 1234], "val": [plenty]})
    assert "two train shards" in warnings("llmc", {"train": [plenty], "val": [plenty]})
    lacking = "needs 10,485,762 tokens in the first val file, and there are "
    assert lacking + "600,000" in warnings("llmc", {"train": [plenty, plenty], "val": [600_000, plenty]})
    assert lacking + "10,485,761" in warnings("llmc", {"train": [plenty, plenty], "val": [10_485_761]})
    assert lacking not in warnings("llmc", {"train": [plenty, plenty], "val": [10_485_762]})
    assert lacking + "0" in warnings("llmc", {"train": [plenty, plenty]})
    assert "before each document" in warnings("llmc", {"train": [plenty, plenty], "val": [plenty]}, eot="after")
    assert "uint16" in warnings("nanogpt", {"train": [plenty], "val": [plenty]}, dtype=np.dtype("uint32"))
    assert "take train0 for" not in warnings("npy", {"train": [plenty], "val": [plenty]})
    named = {
        split: {"tokens": plenty, "files": [{"name": f"train_x_{split}_0.npy", "tokens": plenty}]} for split in SPLITS
    }
    output = open_output("npy", tmp_path, name="x", dtype=np.dtype("uint16"), shard_tokens=SHARD)
    assert output.warnings(named) == [
        "build-nanogpt will take train_x_val_0.npy for train, since that word is in its name: see `--name`"
    ]
    assert "block size" in warnings("nanogpt", {"train": [plenty], "val": [900]})
    assert warnings("nanogpt", {"train": [plenty], "val": [plenty]}) == ""


def test_what_follows_from_the_choice_of_formats_is_said_before_a_run_and_after_it(tmp_path: Path) -> None:
    assert early_warnings(["nanogpt", "llmc"]) == []
    assert [sentence.split()[0] for sentence in early_warnings(["npy"])] == ["OLMo-core"]
    assert [sentence.split()[0] for sentence in early_warnings(["npy", "llmc"])] == ["build-nanogpt", "OLMo-core"]
    (tmp_path / "a.txt").write_text("Some words.")
    before = shardmill.inspect(tmp_path / "a.txt", format=["npy", "llmc"]).troubles
    made = shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", format=["npy", "llmc"])
    for sentence in early_warnings(["npy", "llmc"]):
        assert sentence in made.warnings
        assert sentence in [trouble.message for trouble in before]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["run111111", "run222222", "a.b", "x_train", "web+1", "w{name}", "000000"])
def test_an_output_claims_files_of_its_own_name_only(format: str, name: str, tmp_path: Path) -> None:
    order: dict[str, Any] = {"dtype": np.dtype("uint16"), "shard_tokens": SHARD}
    made = Driven(format, tmp_path / "out", name=name)
    for split in SPLITS:
        made.output.append(split, np.arange(3 * SHARD, dtype=np.uint16) % 9, np.array([3 * SHARD]))
    made.finish()
    files = [written.name for _, written in made.files]
    assert made.output.matching_files(files) == sorted(files)
    without_name = format in ("nanogpt", "shards", "mds", "litdata", "olmo", "torchtitan", "parquet")
    for other in ("run222221", "run111112", "axb", "x", "web", "x_val", "00000", "000001", name + "0", name + "_train"):
        claimed = open_output(format, tmp_path / "out", name=other, **order).matching_files(files)
        assert claimed == (sorted(files) if without_name else [])


def test_overwriting_leaves_the_files_of_another_dataset_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words.")
    out = tmp_path / "out"
    shardmill.prepare(tmp_path / "a.txt", out, format="npy", name="run111111", val=0)
    (out / "run222222_train_000001.npy").write_bytes(b"another's")
    shardmill.prepare(tmp_path / "a.txt", out, format="npy", name="run111111", val=0, overwrite=True)
    assert (out / "run222222_train_000001.npy").read_bytes() == b"another's"
