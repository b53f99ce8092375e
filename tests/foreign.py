"""Token files as other tools write them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.datasets import random_documents, with_eot

DOCUMENTS = random_documents(1, count=80)


def foreign_nanogpt(folder: Path) -> None:
    for split, made in DOCUMENTS.items():
        np.concatenate([with_eot(d, "after") for d in made]).tofile(folder / f"{split}.bin")


def foreign_npy(folder: Path) -> None:
    for split, made in DOCUMENTS.items():
        stream = np.concatenate([with_eot(d, "before") for d in made])
        for i in range(0, len(stream), 900):
            np.save(folder / f"edufineweb_{split}_{i:06}.npy", stream[i : i + 900])


def foreign_llmc(folder: Path) -> None:
    for split, made in DOCUMENTS.items():
        stream = np.concatenate([with_eot(d, "before") for d in made])
        head = np.zeros(256, np.int32)
        head[:3] = 20240520, 1, len(stream)
        (folder / f"fineweb_{split}_000000.bin").write_bytes(head.tobytes() + stream.tobytes())


def foreign_megatron(folder: Path) -> None:
    for split, made in DOCUMENTS.items():
        marked = [with_eot(d, "after").astype(np.int32) for d in made]
        write_megatron(folder / f"my_{split}_text_document", marked, np.arange(len(marked) + 1))


def write_megatron(prefix: Path, sequences: list[np.ndarray], documents: Sequence[int] | np.ndarray) -> None:
    lengths = np.array([len(s) for s in sequences], np.int32)
    offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, len(sequences), len(documents))
    arrays = (lengths, offsets, np.asarray(documents, np.int64))
    prefix.with_name(prefix.name + ".idx").write_bytes(head + b"".join(a.tobytes() for a in arrays))
    np.concatenate(sequences).astype(np.int32).tofile(prefix.with_name(prefix.name + ".bin"))


def cut_inside(
    folder: Path,
    write: Callable[[Path, str, int, np.ndarray], None],
    at: int = 5000,
    eot: str = "before",
    documents: list[np.ndarray] | None = None,
) -> None:
    """One stream whose first shard is val, wherever a document may end: as build-nanogpt and llm.c make it."""
    made = documents or [document for split in DOCUMENTS.values() for document in split]
    stream = np.concatenate([with_eot(document, eot) for document in made])
    write(folder, "val", 0, stream[:at])
    for i, start in enumerate(range(at, len(stream), at)):
        write(folder, "train", i + 1, stream[start : start + at])


def write_npy(folder: Path, split: str, index: int, tokens: np.ndarray) -> None:
    np.save(folder / f"edufineweb_{split}_{index:06}.npy", tokens)


def write_llmc(folder: Path, split: str, index: int, tokens: np.ndarray) -> None:
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(tokens)
    (folder / f"fineweb_{split}_{index:06}.bin").write_bytes(head.tobytes() + tokens.tobytes())


def write_raw(folder: Path, split: str, index: int, tokens: np.ndarray) -> None:
    tokens.tofile(folder / f"{split}_{index:06}.bin")


FOREIGN = {
    "nanogpt": foreign_nanogpt,
    "npy": foreign_npy,
    "llmc": foreign_llmc,
    "megatron": foreign_megatron,
    "build-nanogpt, val cut inside a document": lambda folder: cut_inside(folder, write_npy),
    "llm.c, val cut inside a document": lambda folder: cut_inside(folder, write_llmc),
    "raw shards, val cut inside a document": lambda folder: cut_inside(folder, write_raw, eot="after"),
}
WRITERS = {"npy": (write_npy, "before"), "llmc": (write_llmc, "before"), "raw": (write_raw, "after")}
