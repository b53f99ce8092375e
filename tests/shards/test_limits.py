"""What the readers of a format cannot do is said, or refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.errors import OutputError, UsageError
from shardmill.shards import SPLITS, open_output
from tests.shards.driving import SHARD, Driven


@pytest.mark.parametrize(("dtype", "most"), [("uint16", 1_073_741_311), ("uint32", 536_870_655)])
def test_a_shard_that_llmc_cannot_seek_in_is_refused_before_any_work(dtype, most, tmp_path):
    order = {"name": "x", "dtype": np.dtype(dtype)}
    open_output("llmc", tmp_path, shard_tokens=most, **order)
    with pytest.raises(UsageError, match="2 GiB"):
        open_output("llmc", tmp_path, shard_tokens=most + 1, **order)
    with pytest.raises(UsageError, match="2 GiB"):
        open_output("llmc", tmp_path, shard_tokens=most // 2 + 2, tail="merge", **order)


def test_a_document_too_long_for_the_format_is_an_error_and_not_an_overflow(tmp_path):
    run = Driven("mds", tmp_path / "out")
    run.output.longest = 1000
    with pytest.raises(OutputError, match="does not fit"):
        run.output.append("train", np.zeros(1001, np.uint16), np.array([1001]))
    run.output.append("train", np.zeros(600, np.uint16), np.empty(0, np.int64))
    with pytest.raises(OutputError, match="does not fit"):
        run.output.append("train", np.zeros(600, np.uint16), np.empty(0, np.int64))
    run.output.close()


def described(split_files):
    return {
        split: {"tokens": sum(files), "files": [{"name": f"{split}{i}", "tokens": n} for i, n in enumerate(files)]}
        for split, files in split_files.items()
    }


def test_what_a_reader_will_trip_over_is_said_with_the_number(tmp_path):
    def warnings(format, files, **more):
        more = {"dtype": np.dtype("uint16"), **more}
        output = open_output(format, tmp_path, name="x", shard_tokens=SHARD, **more)
        return " | ".join(output.warnings(described(files)))

    plenty = 11_000_000
    assert warnings("llmc", {"train": [plenty, plenty], "val": [plenty]}) == ""
    assert "1,234 tokens" in warnings("llmc", {"train": [plenty, 1234], "val": [plenty]})
    assert "--tail merge" in warnings("npy", {"train": [plenty, 1234], "val": [plenty]})
    assert "--shard-tokens" in warnings("npy", {"train": [1234, 1234], "val": [plenty]})
    assert "two train shards" in warnings("llmc", {"train": [plenty], "val": [plenty]})
    assert "10,485,761 val tokens, and there are 600,000" in warnings(
        "llmc", {"train": [plenty, plenty], "val": [600_000]}
    )
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
