"""Megatron: find documents with the index file.    python examples/read_megatron.py PREFIX

With megatron-core, `IndexedDataset(PREFIX)[i]` returns the same.
"""

# ruff: noqa: T201
from __future__ import annotations

import struct
import sys

import numpy as np

DTYPES = {4: np.int32, 8: np.uint16}


def document(prefix: str, i: int) -> np.ndarray:
    with open(prefix + ".idx", "rb") as index:
        magic, version, code, sequences, _ = struct.unpack("<9sQBQQ", index.read(34))
        assert (magic, version) == (b"MMIDIDX\0\0", 1)
        index.seek(34 + 4 * i)
        (length,) = struct.unpack("<i", index.read(4))
        index.seek(34 + 4 * sequences + 8 * i)
        (offset,) = struct.unpack("<q", index.read(8))
    return np.fromfile(prefix + ".bin", DTYPES[code], length, offset=offset)


if __name__ == "__main__":
    print(document(sys.argv[1], 0)[:16])
