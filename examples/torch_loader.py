"""Batches in PyTorch's DataLoader, and how to resume a training run.    python examples/torch_loader.py DIR"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import Tensor
from torch.utils.data import DataLoader

import shardmill


def steps(folder: str, done: int = 0, workers: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches after the first `done` steps: 4 rows of 64 tokens each, in an order that `seed` determines."""
    batches = shardmill.open(folder)["train"].batches(batch_size=4, block_size=64, seed=1)
    batches.load_state_dict(batches.state_after(done))
    yield from DataLoader(batches, batch_size=None, num_workers=workers)


if __name__ == "__main__":
    for step, (x, _) in enumerate(steps(sys.argv[1])):
        print(step, tuple(x.shape), x.dtype)
