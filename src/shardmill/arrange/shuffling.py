"""A global shuffle of the documents of a dataset, within a limit of memory.

The place of a document is the place of its number in a keyed permutation. So the order depends on the seed and the
number of documents alone: memory, formats and shard sizes cannot change it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardmill import arguments
from shardmill.arrange.sorting import FACTS, LEAST_MEMORY, Block, Sorter
from shardmill.dataset import Dataset, Split, open_dataset
from shardmill.documents import Chunk, Position
from shardmill.errors import BudgetError, UsageError
from shardmill.options import Options
from shardmill.permutation import Permutation
from shardmill.run import (
    Batch,
    Budget,
    Counted,
    Destination,
    Entry,
    OpenDocument,
    Producer,
    Progress,
    Result,
    Rows,
    Run,
    Stream,
    as_recorded,
    default_progress,
    eot_places,
    fingerprint,
    open_destination,
    resident,
    settle_allocator,
)
from shardmill.shards import Output, open_output
from shardmill.source_list import Sources
from shardmill.storage import Source
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Reader
    from shardmill.run import Facts, Writer

_FINGERPRINTED = ("format", "eot", "shard_tokens", "tail", "name", "seed")
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
    if destination.folder.resolve() == data.folder.resolve():
        raise UsageError("a dataset cannot be shuffled in its own folder", hint="choose another `--out`")
    settle_allocator()
    tokenizer = data.manifest["tokenizer"]
    narrow = data.dtype.itemsize == 2 or tokenizer["vocab_size"] <= 1 << 16
    outputs = [
        open_output(
            one,
            destination.folder,
            name=options.name or data.folder.resolve().name,
            dtype=np.dtype(np.uint16 if narrow else np.uint32),
            shard_tokens=options.tokens_per_shard,
            eot=options.eot,
            tail=options.tail,
            tokenizer=tokenizer["name"],
            vocab_size=tokenizer["vocab_size"],
            splits=tuple(data),
        )
        for one in options.format
    ]
    recorded = None if overwrite else destination.recorded_plan()
    shuffled = ShuffledDocuments(data, outputs, options, destination, recorded)
    return Run(shuffled, destination, outputs, progress or default_progress(), overwrite=overwrite).go()


class ShuffledDocuments(Producer):
    """The splits of a dataset one after another, the documents of each in the order of their places.

    A position counts documents, of all splits together.
    """

    unit = "document"

    def __init__(
        self, data: Dataset, outputs: list[Output], options: Options, destination: Destination, recorded: Facts | None
    ) -> None:
        """UsageError when nothing says where documents end, or when an output cannot mark them."""
        self._data, self._seed = data, options.seed
        self._outputs = outputs
        eots = dict.fromkeys(output.eot for output in outputs)
        if data.eot_id is None and set(eots) != {"none"}:
            raise UsageError("the tokenizer has no end-of-text token", hint="add `--eot none`")
        self._eots = tuple(eots)
        # The writer calls only `check` and `place` of a reader, and this class has both.
        self._reader = cast("Reader", self)
        self._documents = {name: DocumentsOfSplit(data[name]) for name in data}
        self._tokens = sum(len(data[name]) for name in data)
        self._bytes = self._tokens * data.dtype.itemsize
        path = str(data.folder)
        self.sources = as_recorded(Sources([Source(path, path, self._bytes, data.manifest["fingerprint"])]), recorded)
        self.splits = tuple(data)
        chosen, made = options.fingerprinted(), data.manifest["options"]
        self.facts = {
            "sources": list(self.sources.facts()),
            "tokenizer": data.manifest["tokenizer"],
            "options": {
                **{key: value for key, value in chosen.items() if key in _FINGERPRINTED},
                **{key: made[key] for key in ("tokenizer", "pattern", "specials", "delimiter") if key in made},
                "arranged": "shuffle",
            },
        }
        self.budget = Budget(options.memory_bytes, 1)
        least = resident() + _BESIDE + LEAST_MEMORY
        if self.budget.memory < least:
            raise BudgetError(
                f"{show_bytes(self.budget.memory)} of memory does not suffice to shuffle",
                hint=f"the least that works is `--memory {-(-least // 10**6) + 8}MB`",
            )
        self._memory = self.budget.memory - resident() - _BESIDE
        self._runs = destination.folder / f"{_RUNS}{fingerprint(self.facts)[:16]}"
        self.remarks = {
            "converted": {"from": data.format, "name": self.sources[0].name, "bytes": self._bytes},
            "arranged": {"order": "shuffle", "seed": self._seed, "from": data.manifest["fingerprint"]},
            "sources": data.manifest["sources"],
        }

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        facts = sum(len(documents) for documents in self._documents.values()) * (FACTS.itemsize + 16)
        need = sum(destination.space(output, self._tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        destination.check_free(
            need + self._bytes + facts, hint=f"free some space: {show_bytes(self._bytes + facts)} of it are temporary"
        )

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        for folder in self._runs.parent.glob(f"{_RUNS}*"):  # those of another seed or of another dataset
            if folder != self._runs:
                shutil.rmtree(folder)
        yield self._batches(writer.state.position.offset) if writer.state.source == 0 else iter(())
        writer.checkpoints.keep(now=True)  # a later call must not need the runs any more
        if self._runs.exists():
            shutil.rmtree(self._runs)

    def _batches(self, done: int) -> Iterator[Batch]:
        before = tokens = 0
        for name, documents in self._documents.items():
            order = Permutation(len(documents), self._seed, name)
            if done < before + len(documents):
                keys = partial(_keys, order)
                sorter = Sorter(documents, keys, self._runs / name, self._memory)
                sorter.make_runs()
                at = max(0, done - before)
                for block in sorter.blocks(at):
                    at += len(block.facts) if block.ends else 0
                    tokens += len(block.tokens)
                    yield self._batch(name, block, before + at, tokens)
            before += len(documents)
        yield Batch([Entry(self._reader, 0, None)], [], {})

    def _batch(self, name: str, block: Block, position: int, tokens: int) -> Batch:
        facts = block.facts
        whole = block.begins and block.ends
        lengths = facts["length"].copy() if whole else np.array([len(block.tokens)])
        count = len(lengths)
        opens, closes = np.full(count, block.begins), np.full(count, block.ends)
        size = np.where(closes, facts["bytes"], 0)
        val = np.full(count, name == "val")
        rows = Rows(lengths, size, val, opens, closes, facts["source"].copy(), facts["record"].copy())
        text, bare = self._without_eot(rows, block.tokens)
        streams = {eot: self._stream(name, text, bare, eot) for eot in self._eots}
        width = self._data.dtype.itemsize
        chunk = Chunk(0, 0, Position(position), through=tokens * width)
        ended = int(np.count_nonzero(closes))
        counted = Counted(ended, empty=0, lines=0, replaced=0, rejects=[], tokens=len(bare))
        return Batch(
            [Entry(self._reader, 0, chunk)],
            [counted],
            streams,
            begins=block.begins,
            ends=block.ends,
            final=block.ends,
            open=OpenDocument() if block.ends else OpenDocument(name, 0),
        )

    def _without_eot(self, rows: Rows, tokens: NDArray[Any]) -> tuple[Rows, NDArray[Any]]:
        """The rows and tokens without end-of-text tokens; a document that was cut may have none."""
        eot, eot_id = self._data.eot, self._data.eot_id
        marked = eot_places(rows, eot)
        ends = np.cumsum(rows.length)
        places = (ends - 1 if eot == "after" else ends - rows.length)[marked]
        found = tokens[places] == eot_id
        gone = np.zeros(len(rows), np.int64)
        gone[marked] = found
        return replace(rows, length=rows.length - gone), np.delete(tokens, places[found])

    def _stream(self, name: str, rows: Rows, tokens: NDArray[Any], eot: str) -> Stream:
        """The documents with EOT where an output wants it."""
        marked = eot_places(rows, eot)
        if marked.any() and self._data.eot_id is not None:
            ends = np.cumsum(rows.length)
            tokens = np.insert(tokens, (ends if eot == "after" else ends - rows.length)[marked], self._data.eot_id)
        return Stream(replace(rows, length=rows.length + marked), {name: tokens} if len(tokens) else {})

    def check(self) -> None:
        """The stored files were checked when they were opened."""

    def place(self, record: int, byte: int) -> str:
        """A document's place, for people."""
        return f"{self._data.folder}, document {record:,}"


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
