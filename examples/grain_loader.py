"""Blocks of a dataset in a grain pipeline, as JAX arrays.    python examples/grain_loader.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys

import grain
import jax.numpy as jnp
import numpy as np

import shardmill


class Blocks:
    """A random-access source for grain: block i of the training tokens, and the token after it."""

    def __init__(self, folder: str, block: int) -> None:
        self.tokens, self.block = shardmill.open(folder)["train"], block

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[i * self.block : (i + 1) * self.block + 1].astype(np.int32)


def batches(folder: str, block: int = 64, batch: int = 4, seed: int = 1) -> grain.IterDataset:
    """Reshuffled in each epoch. To resume, use `get_state` and `set_state` of the iterator."""
    blocks = grain.MapDataset.source(Blocks(folder, block)).shuffle(seed=seed).repeat()
    rows = blocks.to_iter_dataset().batch(batch, drop_remainder=True)
    return rows.map(lambda row: (jnp.asarray(row[:, :-1]), jnp.asarray(row[:, 1:])))


if __name__ == "__main__":
    x, y = next(iter(batches(sys.argv[1])))
    print(x.shape, x.dtype, y.shape)
