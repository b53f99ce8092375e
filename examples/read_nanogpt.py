"""nanoGPT: draw windows at random offsets of `train.bin`.    python examples/read_nanogpt.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def batch(folder: str, split: str = "train", size: int = 4, block: int = 64) -> tuple[np.ndarray, np.ndarray]:
    data = np.memmap(Path(folder) / f"{split}.bin", dtype=np.uint16, mode="r")
    starts = np.random.default_rng(0).integers(0, len(data) - block, size)
    x = np.stack([data[i : i + block] for i in starts]).astype(np.int64)
    y = np.stack([data[i + 1 : i + 1 + block] for i in starts]).astype(np.int64)
    return x, y


if __name__ == "__main__":
    print(batch(sys.argv[1])[0])
