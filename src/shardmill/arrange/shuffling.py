"""A global shuffle of the documents of a dataset, within a limit of memory.

The place of a document is the place of its number in a keyed permutation. So the order depends on the seed and the
number of documents alone: memory, formats and shard sizes cannot change it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.arrange.ordered import DocumentsOfSplit, Order, options_like, write_ordered
from shardmill.dataset import CACHE_SIZE, Dataset, Split, open_dataset
from shardmill.permutation import Permutation
from shardmill.write import Progress, Result, progress_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def shuffle(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    format: str | Sequence[str] | None = None,
    eot: str | None = None,
    shard_tokens: int | str | None = None,
    tail: str = "keep",
    name: str | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    progress: Progress | bool | None = None,
) -> Result:
    """Write the documents of each split of a dataset in a random order, which `seed` chooses.

    Formats, position of EOT and shard size are those of the dataset unless others are given. Raise a ShardmillError for
    any expected failure. The same call resumes an unfinished one, also with another amount of memory.
    """
    shown = progress_of(progress)
    data = open_dataset(source, cache=cache, cache_size=cache_size)
    options = options_like(
        data,
        {"format": format, "eot": eot, "seed": seed, "shard_tokens": shard_tokens, "tail": tail,
         "name": name or data.manifest["options"].get("name"), "memory": memory, "overwrite": overwrite},
    )  # fmt: skip
    return write_ordered([data], shuffled_order(data, options.seed), out, options, shown)


def shuffled_order(data: Dataset, seed: int) -> Order:
    """Return the order of a shuffled dataset."""
    return Order(
        "shuffle",
        {split: ShuffledDocuments(data[split], seed) for split in data},
        tokens=sum(len(data[split]) for split in data),
        chosen={},
        described={"from": data.manifest["fingerprint"]},
        sources=data.manifest["sources"],
    )


class ShuffledDocuments(DocumentsOfSplit):
    """The documents of a split; the key of each is its place in a permutation."""

    def __init__(self, split: Split, seed: int) -> None:
        super().__init__(split)
        self._order = Permutation(len(self), seed, split.name)

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        return self._order.places(np.arange(first, first + len(facts))).astype(np.uint64)
