"""build-nanogpt's `.npy` shards: NumPy files of version 1.0 with a head of 128 bytes, EOT before each document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill.shards.limits import picked_by_name, short_tails
from shardmill.shards.streams import Layout

if TYPE_CHECKING:
    import numpy as np


def _head(tokens: int, dtype: np.dtype[Any]) -> bytes:
    shape = f"{{'descr': '<u{dtype.itemsize}', 'fortran_order': False, 'shape': ({tokens},), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + shape.ljust(117).encode() + b"\n"


NPY = Layout(
    "npy",
    eot="before",
    file_name="{name}_{split}_{index}.npy",
    sharded=True,
    train_from=1,
    head=_head,
    warnings=lambda splits, dtype, eot: short_tails(splits, "build-nanogpt's loader") + picked_by_name(splits),
)
