"""llm.c: a header of 256 integers, then as many tokens as it states.    python examples/read_llmc.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def shard(path: Path) -> np.ndarray:
    head = np.fromfile(path, np.int32, 256)
    assert head[0] == 20240520 and head[1] == 1, "not an llm.c shard"
    assert path.stat().st_size == 1024 + 2 * int(head[2]), "the file size does not match the header"
    return np.fromfile(path, np.uint16, offset=1024)


def tokens(folder: str, split: str = "train") -> list[np.ndarray]:
    return [shard(path) for path in sorted(Path(folder).glob(f"*_{split}_*.bin"))]


if __name__ == "__main__":
    for part in tokens(sys.argv[1]):
        print(len(part), part[:8])
