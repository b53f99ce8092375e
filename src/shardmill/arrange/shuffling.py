"""A global shuffle of the documents of a dataset, within a limit of memory.

The place of a document is the place of its number in a keyed permutation. So the order depends on the seed and the
number of documents alone: memory, formats and shard sizes cannot change it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.arrange.arranging import ArrangedDocuments, open_outputs_for
from shardmill.arrange.inputs import Input, input_of
from shardmill.arrange.sorting import FACTS, LEAST_MEMORY, Sorter
from shardmill.dataset import Dataset, Split, open_dataset
from shardmill.errors import BudgetError, UsageError
from shardmill.options import Options
from shardmill.permutation import Permutation
from shardmill.run import (
    Batch,
    Budget,
    Destination,
    Progress,
    Result,
    Run,
    default_progress,
    fingerprint,
    open_destination,
    resident,
    settle_allocator,
)
from shardmill.shards import Output
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run import Facts, Writer

_BESIDE = 48 << 20  # memory for what sorting does not count: the block being written, its copies, and the files
_RUNS = ".sorted-"
"""Begins the names of folders with temporary runs, beside the new dataset."""


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
    progress: Progress | None = None,
) -> Result:
    """Write the documents of each split of a dataset in a random order, which `seed` chooses.

    Formats, position of EOT and shard size are those of the dataset unless others are given. Raise a ShardmillError for
    any expected failure. The same call resumes an unfinished one, also with another amount of memory.
    """
    arguments.instance("progress", progress, Progress)
    data = open_dataset(source)
    before = data.manifest["options"]
    options = Options.of(
        {"format": format or data.format, "eot": eot or (None if format else data.eot), "seed": seed,
         "shard_tokens": shard_tokens or before.get("shard_tokens", "100M"), "tail": tail,
         "name": name or before.get("name"), "memory": memory, "overwrite": overwrite}
    )  # fmt: skip
    destination = open_destination(arguments.path("out", out))
    stored = input_of(data)
    outputs = open_outputs_for(options, stored, destination, "shuffled in")
    settle_allocator()
    recorded = None if overwrite else destination.recorded_plan()
    shuffled = ShuffledDocuments(data, stored, outputs, options, destination, recorded)
    return Run(shuffled, destination, outputs, progress or default_progress(), overwrite=overwrite).go()


class ShuffledDocuments(ArrangedDocuments):
    """The splits of a dataset one after another, the documents of each in the order of their places.

    A position counts documents, of all splits together.
    """

    def __init__(
        self,
        data: Dataset,
        stored: Input,
        outputs: list[Output],
        options: Options,
        destination: Destination,
        recorded: Facts | None,
    ) -> None:
        """UsageError when nothing says where documents end, or when an output cannot mark them."""
        self._documents = {name: DocumentsOfSplit(data[name]) for name in data}
        self._seed = options.seed
        super().__init__([stored], outputs, options, recorded, {"seed": self._seed, "arranged": "shuffle"})
        self.remarks["arranged"] = {"order": "shuffle", "seed": self._seed, "from": stored.version}
        self.budget = Budget(options.memory_bytes, 1)
        least = resident() + _BESIDE + LEAST_MEMORY
        if self.budget.memory < least:
            raise BudgetError(
                f"{show_bytes(self.budget.memory)} of memory does not suffice to shuffle",
                hint=f"the least that works is `--memory {-(-least // 10**6) + 8}MB`",
            )
        self._memory = self.budget.memory - resident() - _BESIDE
        self._runs = destination.folder / f"{_RUNS}{fingerprint(self.facts)[:16]}"

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        facts = sum(len(documents) for documents in self._documents.values()) * (FACTS.itemsize + 16)
        need = sum(destination.space(output, self.inputs[0].tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        runs = self.inputs[0].bytes + facts
        destination.check_free(need + runs, hint=f"free some space: {show_bytes(runs)} of it are temporary")

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        for folder in self._runs.parent.glob(f"{_RUNS}*"):  # those of another seed or of another dataset
            if folder != self._runs:
                shutil.rmtree(folder)
        with super().batches(writer) as batches:
            yield batches
        writer.checkpoints.keep(now=True)  # a later call must not need the runs any more
        if self._runs.exists():
            shutil.rmtree(self._runs)

    def batches_from(self, position: int) -> Iterator[Batch]:
        before = tokens = 0
        for name, documents in self._documents.items():
            order = Permutation(len(documents), self._seed, name)
            if position < before + len(documents):
                sorter = Sorter(documents, partial(_keys, order), self._runs / name, self._memory)
                sorter.make_runs()
                at = max(0, position - before)
                for block in sorter.blocks(at):
                    at += len(block.facts) if block.ends else 0
                    tokens += len(block.tokens)
                    yield self.batch_of_block(self.inputs[0].splits[name], block, before + at, tokens)
            before += len(documents)


class DocumentsOfSplit:
    """The documents of a split, as the sorter reads them."""

    def __init__(self, split: Split) -> None:
        self._split, self._table = split, split.table
        self.dtype = split.tokens.dtype
        if self._table is None:
            _ = split.documents  # UsageError if nothing says where they end: then converting does not help
            raise UsageError(
                "the dataset has no documents table",
                place=str(split.dataset.folder),
                hint=f"`shardmill convert` writes one: convert it with `-f {split.dataset.format}` first",
            )

    def __len__(self) -> int:
        return len(self._table) if self._table is not None else 0

    def facts(self, first: int, last: int) -> NDArray[Any]:
        assert self._table is not None
        rows = self._table.rows(first, last)
        begin = self._table.bounds(first)[0] if first < last else 0
        found = np.empty(last - first, FACTS)
        found["length"] = np.diff(rows["end"], prepend=begin)
        for column in ("source", "record", "bytes"):
            found[column] = rows[column]
        return found

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        self._split.tokens.read_into(start, out)


def _keys(order: Permutation, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    return order.places(numbers).astype(np.uint64)
