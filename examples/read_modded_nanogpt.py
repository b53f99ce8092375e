"""modded-nanogpt: llm.c shards; a document begins at each 50256.    python examples/read_modded_nanogpt.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

BOS = 50256


def documents(folder: str, split: str = "train") -> list[np.ndarray]:
    found = []
    for path in sorted(Path(folder).glob(f"*_{split}_*.bin")):
        tokens = np.fromfile(path, np.uint16, offset=1024)
        starts = np.flatnonzero(tokens == BOS)
        # The tokens before the first start belong to a document that began in the previous shard.
        found += np.split(tokens, starts)[1:]
    return found


if __name__ == "__main__":
    for document in documents(sys.argv[1])[:3]:
        print(len(document), document[:8])
