"""build-nanogpt: read shards one after another, batch by batch.    python examples/read_build_nanogpt.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def batches(
    folder: str, split: str = "train", size: int = 4, block: int = 64
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    shards = sorted(path for path in Path(folder).glob("*.npy") if split in path.name)
    for shard in shards:
        tokens = np.load(shard).astype(np.int32)
        for at in range(0, len(tokens) - size * block, size * block):
            part = tokens[at : at + size * block + 1]
            yield part[:-1].reshape(size, block), part[1:].reshape(size, block)


if __name__ == "__main__":
    print(next(batches(sys.argv[1]))[0])
