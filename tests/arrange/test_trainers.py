"""Trainers' own ways of reading, over shuffled, mixed and packed datasets: every token, in the order of the dataset.

Each reader is written after the trainer's code, and knows nothing of this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from tests.shards.test_golden import library

pytestmark = pytest.mark.thorough

B, T = 2, 32


def build_nanogpt(folder: Path) -> Iterator[np.ndarray]:
    """Its DataLoaderLite: shards by name, `np.load`, windows of B·T + 1, and the rest of a shard is left out."""
    for name in sorted(path.name for path in folder.iterdir() if "train" in path.name and path.suffix == ".npy"):
        tokens = np.load(folder / name).astype(np.int32)
        at = 0
        while at + B * T + 1 <= len(tokens):
            yield tokens[at : at + B * T]
            at += B * T


def llmc(folder: Path) -> Iterator[np.ndarray]:
    """llm.c's dataloader: a header with magic, version and count, and tokens of 16 bits."""
    for path in sorted(folder.glob("*train*.bin")):
        header = np.fromfile(path, "<i4", 256)
        assert (header[0], header[1]) == (20240520, 1)
        tokens = np.fromfile(path, "<u2", offset=1024)
        assert len(tokens) == header[2]
        for at in range(0, len(tokens) - B * T, B * T):
            yield tokens[at : at + B * T]


def modded_nanogpt(folder: Path) -> Iterator[np.ndarray]:
    """Its `_load_data_shard`: torch reads the header and the tokens of each file of a glob."""
    torch = library("torch")
    for path in sorted(folder.glob("*train*.bin")):
        header = torch.from_file(str(path), False, 256, dtype=torch.int32)
        assert (int(header[0]), int(header[1])) == (20240520, 1)
        with path.open("rb", buffering=0) as file:
            tokens = torch.empty(int(header[2]), dtype=torch.uint16)
            file.seek(256 * 4)
            assert file.readinto(tokens.numpy()) == 2 * int(header[2])
        at = 0
        while at + B * T + 1 < len(tokens):
            yield tokens[at : at + B * T].numpy()
            at += B * T


def nanogpt(folder: Path) -> Iterator[np.ndarray]:
    """Its get_batch: windows of a memory map, here one after the other."""
    data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
    for at in range(0, len(data) - T, T):
        yield data[at : at + T]


def megatron(folder: Path) -> Iterator[np.ndarray]:
    """Megatron-core's IndexedDataset: every sequence, whole."""
    indexed = library("megatron.core.datasets.indexed_dataset")
    (index,) = folder.glob("*train*.idx")
    found = indexed.IndexedDataset(str(index.with_suffix("")))
    assert len(found.document_indices) == len(found) + 1
    for number in range(len(found)):
        yield found[number]


TRAINERS: dict[str, tuple[str, Callable[[Path], Iterator[np.ndarray]]]] = {
    "build-nanogpt": ("npy", build_nanogpt),
    "llm.c": ("llmc", llmc),
    "modded-nanogpt": ("llmc", modded_nanogpt),
    "nanoGPT": ("nanogpt", nanogpt),
    "Megatron": ("megatron", megatron),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    for name in "ab":
        texts = (f"{name} {i}: " + f"{i} and " * (i * 7 % 50) for i in range(300))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        shardmill.prepare(folder / f"{name}.jsonl", folder / name, val="0.1")
    return folder


@pytest.mark.parametrize("order", ["shuffle", "mix", "pack", "prepare --shuffle"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_reads_every_token_in_the_order_of_the_dataset(
    prepared: Path, tmp_path: Path, trainer: str, order: str
) -> None:
    format, read = TRAINERS[trainer]
    out = tmp_path / "out"
    settings: dict[str, Any] = {"format": format, "shard_tokens": 2048, "seed": 3}
    if order == "shuffle":
        shardmill.shuffle(prepared / "a", out, **settings)
    elif order == "mix":
        shardmill.mix({prepared / "a": 0.7, prepared / "b": 0.3}, out, **settings)
    elif order == "pack":
        shardmill.pack(prepared / "a", out, block_size=T, **settings)
    else:
        shardmill.prepare(prepared / "a.jsonl", out, shuffle=True, val="0.1", **settings)
    split = shardmill.open(out)["train"]
    expected, found = split[:].astype(np.int64), [row.astype(np.int64) for row in read(out)]
    if trainer == "Megatron":
        assert np.concatenate(found).tolist() == expected.tolist()
        assert len(found) == len(split.documents)
        return
    # A trainer leaves out less than a batch at the end of each shard.
    sizes = [file["tokens"] for file in split.described["files"]]
    width = len(found[0])
    at, rows = 0, iter(found)
    for size in sizes:
        read_here = (size - 1) // width
        for number in range(read_here):
            assert next(rows).tolist() == expected[at + number * width : at + (number + 1) * width].tolist()
        at += size
    assert next(rows, None) is None
    if order == "pack":
        begins = {0, *(end for end in split.table.table["end"].tolist())} if split.table else set()
        assert all(row * T in begins for row in range(len(expected) // T)), "every row begins with a piece"
