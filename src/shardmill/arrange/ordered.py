"""Documents of datasets in the order of some keys: what `shuffle`, `mix` and `pack` share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.arrange.arranging import ArrangedDocuments, open_outputs_for
from shardmill.arrange.inputs import Input, input_of
from shardmill.arrange.sorting import FACTS, LEAST_MEMORY, Block, Documents, Sorter
from shardmill.dataset import Dataset, Split
from shardmill.errors import BudgetError, UsageError
from shardmill.options import Options
from shardmill.run import Budget, resident, settle_allocator
from shardmill.shards import ShardWriter
from shardmill.units import show_bytes
from shardmill.write import Batch, Destination, Progress, Result, Run, fingerprint, open_destination

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.write import Facts, Ledger

_BESIDE = 48 << 20  # memory for what sorting does not count: the block being written, its copies, and the files
_RUNS = "sorted-"
"""Begins the names of folders with temporary runs."""
_HASH = 16  # digits of the fingerprint that end such a name


@dataclass(frozen=True)
class Order:
    """What a command makes of some datasets: which documents each split gets, and their keys."""

    name: str
    """The command: `shuffle`, `mix` or `pack`."""
    splits: dict[str, Documents]
    tokens: int
    """In all splits together, about."""
    chosen: dict[str, Any]
    """What determines the order, beside the seed; part of the fingerprint."""
    described: dict[str, Any]
    """More of the manifest's entry `arranged`."""
    sources: Any
    """The manifest's sources, to which the documents refer."""
    memory: int = 0
    """Bytes that computing keys takes."""
    padding: int | None = None
    """The token of which padding is made. None: there is no padding, and a document that lacks EOT gets it."""
    row: int = 0
    """The tokens of a row, if documents are packed into rows."""


def options_like(data: Dataset, given: dict[str, Any]) -> Options:
    """Return the options of a command; formats, EOT and shard size are those of the dataset unless they are given."""
    given = {name: value for name, value in given.items() if value is not None}
    eot = None if "format" in given else data.eot
    shard_tokens = data.manifest["options"].get("shard_tokens", "100M")
    return Options.of({"format": data.format, "eot": eot, "shard_tokens": shard_tokens, **given})


def write_ordered(
    datasets: Sequence[Dataset],
    order: Order,
    out: str | os.PathLike[str],
    options: Options,
    progress: Progress,
    name: str | None = None,
) -> Result:
    """Write a dataset of documents in an order, or what is missing of it.

    `name`: the prefix of its files, by default that of the first dataset.
    """
    inputs = [input_of(data) for data in datasets]
    destination = open_destination(arguments.path("out", out))
    like = replace(inputs[0], splits=_all_splits(inputs), name=name or inputs[0].name)
    for other in inputs:
        outputs = open_outputs_for(options, replace(like, path=other.path), destination, "arranged in", order.row)
    settle_allocator()
    recorded = None if options.overwrite else destination.recorded_plan()
    ordered = OrderedDocuments(inputs, order, outputs, options, destination, recorded)
    return Run(ordered, destination, outputs, progress, overwrite=options.overwrite).go()


def _all_splits(inputs: Sequence[Input]) -> dict[str, Any]:
    """The splits of all inputs; each as the first that has it."""
    return {name: split for one in reversed(inputs) for name, split in one.splits.items()}


def sorting_memory(budget: Budget, keys: int, what: str) -> int:
    """Return the memory that sorting may take; BudgetError if it is too little. `keys`: bytes to compute keys."""
    beside = resident() + _BESIDE + keys
    if budget.memory < beside + LEAST_MEMORY:
        raise BudgetError(
            f"{show_bytes(budget.memory)} of memory does not suffice to {what}",
            hint=f"the least that works is `--memory {-(-(beside + LEAST_MEMORY) // 10**6) + 8}MB`",
        )
    return budget.memory - beside


class OrderedDocuments(ArrangedDocuments):
    """The splits of an order one after another, the documents of each in the order of their keys.

    A position counts documents, of all splits together.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        order: Order,
        outputs: list[ShardWriter],
        options: Options,
        destination: Destination,
        recorded: Facts | None,
    ) -> None:
        """UsageError when an output cannot mark documents, BudgetError when the memory is too little."""
        chosen = {"seed": options.seed, "arranged": order.name, **order.chosen}
        super().__init__(inputs, outputs, options, recorded, chosen)
        self._order, self._splits = order, _all_splits(inputs)
        self.splits = tuple(order.splits)
        self._arranged = {"order": order.name, "seed": options.seed, **order.described}
        self.budget = Budget(options.memory_bytes, 1, beside=self.format_bytes)
        self._memory = sorting_memory(self.budget, order.memory + self.format_bytes, order.name)
        self._runs = destination.work_folder(f"{_RUNS}{fingerprint(self.facts)[:_HASH]}")

    def remarks(self, ledger: Ledger) -> dict[str, Any]:
        remarks = {**super().remarks(ledger), "arranged": self._arranged, "sources": self._order.sources}
        if len(self.inputs) > 1:
            listed = [{"name": source.name, "bytes": source.size} for source in self.sources]
            remarks["converted"] = {"from": self.inputs[0].format, "inputs": listed}
        return remarks

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        listed, tokens = sum(len(documents) for documents in self._order.splits.values()), self._order.tokens
        need = sum(destination.space(output, tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        runs = tokens * self.inputs[0].width + listed * (FACTS.itemsize + 16)
        destination.check_free(need + runs, hint=f"free some space: {show_bytes(runs)} of it are temporary")

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch | None]]:
        for folder in self._runs.parent.glob(f"{self._runs.name[:-_HASH]}*"):
            if folder != self._runs:  # that of another order or of another dataset
                shutil.rmtree(folder)
        with super().batches(position) as batches:
            yield self._noting_the_end(batches)

    def _noting_the_end(self, batches: Iterator[Batch | None]) -> Iterator[Batch | None]:
        for batch in batches:
            self.has_used_files = batch is None or (batch.position is not None and batch.position["ended"])
            yield batch

    def delete_used_files(self) -> None:
        if self._runs.exists():
            shutil.rmtree(self._runs)
        self.has_used_files = False

    def batches_from(self, position: int) -> Iterator[Batch]:
        before = 0
        listed = max(1, sum(len(documents) for documents in self._order.splits.values()))
        tokens = sum(one.tokens for one in self.inputs)
        for name, documents in self._order.splits.items():
            sorter = Sorter(documents, self._runs / name, self._memory)
            sorter.make_runs()
            at = max(0, position - before)
            for block in sorter.blocks(at) if at < sorter.count else ():
                at += len(block.facts) if block.ends else 0
                done = before + at
                through, mend = tokens * done // listed, self._order.padding is None
                yield self.batch_of_block(self._splits[name], self._padded(block), done, through, mend=mend)
            before += sorter.count
            del sorter

    def _padded(self, block: Block) -> Block:
        """The documents of a block with the padding that follows them."""
        padding = block.facts["padding"]
        if self._order.padding is None or not block.ends or not padding.any():
            return block
        facts = block.facts.copy()
        ends = np.cumsum(facts["length"]) if block.begins else np.array([len(block.tokens)])
        facts["length"] += padding
        tokens = np.insert(block.tokens, np.repeat(ends, padding), self._order.padding)
        return block._replace(tokens=tokens, facts=facts)


class DocumentsOfSplit:
    """The documents of a split by their number."""

    def __init__(self, split: Split) -> None:
        """UsageError when nothing lists them."""
        self._split = split
        self.dtype, self.tokens = split.tokens.dtype, len(split)
        if split.table is None:
            _ = split.documents  # UsageError if nothing says where they end: then converting does not help
            raise UsageError(
                "the dataset has no documents table",
                place=str(split.dataset.folder),
                hint=f"`shardmill convert` writes one: convert it with `-f {split.dataset.format}` first",
            )
        self._table = split.table

    def __len__(self) -> int:
        return len(self._table)

    def facts(self, first: int, last: int) -> NDArray[Any]:
        """Return the rows of FACTS of some documents."""
        # With the row before them, for where the first begins: read, since mapped pages count as memory.
        before = int(0 < first < last)
        rows = self._table.rows(first - before, last)
        found = np.zeros(last - first, FACTS)
        found["length"] = np.diff(rows["end"]) if before else np.diff(rows["end"], prepend=0)
        for column in ("source", "record", "bytes"):
            found[column] = rows[column][before:]
        return found

    def bounds_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where documents begin and end in the split."""
        return self._table.bounds_of(numbers)

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill an array with the tokens from `start` on."""
        self._split.tokens.read_into(start, out)
