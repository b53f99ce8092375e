"""Documents of finished datasets, in some order, through the writer of every run.

An order is a sequence of splits of inputs (`ArrangedDocuments`), or what a subclass makes of it: a shuffle reads sorted
runs. All of them share what is here: how outputs are opened, plan, remarks of the manifest, where EOT is placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.arrange.inputs import Input, InputSplit
from shardmill.arrange.placing import place_eot
from shardmill.arrange.sorting import Block
from shardmill.errors import UsageError
from shardmill.run import Budget
from shardmill.shards import ShardWriter, open_output
from shardmill.source_list import Sources
from shardmill.storage import Source
from shardmill.write import (
    Batch,
    BatchTokens,
    Destination,
    FoundInSource,
    Producer,
    Rows,
    SplitCount,
    as_recorded,
    library_facts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.options import Options
    from shardmill.write import Facts, Ledger

BLOCK_TOKENS = 1 << 21
"""Tokens that are moved at a time, with enough memory."""
_BLOCK_COPIES = 12  # of the tokens of a block, at most, while it is read, gets its EOT, and is written and hashed
_FINGERPRINTED = ("format", "eot", "shard_tokens", "tail", "name")


def open_outputs_for(
    options: Options, first: Input, destination: Destination, what: str, row: int = 0
) -> list[ShardWriter]:
    """Open an output for each format. UsageError if the folder is that of the input; `what` is done to that.

    `row`: the tokens of a row, if the dataset will be packed.
    """
    if destination.folder.resolve() == first.path.resolve() or str(destination.shown) == str(first.path):
        raise UsageError(f"a dataset cannot be {what} its own folder", hint="choose another `--out`")
    return [
        open_output(
            one,
            destination.folder,
            name=options.name or first.name,
            dtype=first.dtype,
            shard_tokens=options.tokens_per_shard,
            eot=options.eot,
            tail=options.tail,
            tokenizer=first.tokenizer["name"],
            vocab_size=first.tokenizer["vocab_size"],
            splits=tuple(first.splits),
            row=row,
        )
        for one in options.format
    ]


def block_tokens(budget: Budget, dtype: np.dtype[Any]) -> int:
    """Return how many tokens are moved at a time."""
    return max(1, min(BLOCK_TOKENS, budget.free // (_BLOCK_COPIES * dtype.itemsize)))


class ArrangedDocuments(Producer):
    """The splits of some inputs, one after another. A position counts tokens, of the whole order.

    A subclass has another order if it overrides `batches_from`; its positions are its own.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        outputs: list[ShardWriter],
        options: Options,
        recorded: Facts | None,
        chosen: dict[str, Any],
    ) -> None:
        """UsageError when documents cannot be marked as an output needs it.

        `recorded`: an earlier plan. `chosen`: what else determines the bytes.
        """
        for output in outputs:
            for one in inputs:
                one.check(output.eot, output.format)
        self.inputs, self.outputs = list(inputs), outputs
        self._eots = tuple(dict.fromkeys(output.eot for output in outputs))
        first = self.inputs[0]
        named = Sources([Source(str(one.path), str(one.path), one.bytes, one.version) for one in inputs])
        self.sources = as_recorded(named, recorded)
        self.splits = tuple(first.splits)
        fingerprinted = {key: value for key, value in options.fingerprinted().items() if key in _FINGERPRINTED}
        self.facts = {
            "sources": list(self.sources.facts()),
            "tokenizer": first.tokenizer,
            "options": {**fingerprinted, **first.tokenizer_options, **chosen},
            **library_facts(options.format),
        }
        written = sum(output.memory_bytes for output in outputs)
        self.format_bytes = written + max(one.memory_bytes for one in inputs)
        """Memory for formats that are written or read in large pieces."""
        self.budget = Budget(options.memory_bytes, 1, beside=self.format_bytes)
        self._block = block_tokens(self.budget, first.dtype)
        self.table = "sources" if all(one.listed_sources is not None for one in inputs) else "numbers"
        if not all(split.has_documents for one in inputs for split in one.splits.values()):
            self.table = ""

    def remarks(self, ledger: Ledger) -> dict[str, Any]:
        first = self.inputs[0]
        converted: dict[str, Any] = {"from": first.format}
        if self.table != "sources":
            return {"converted": converted}
        # The table refers to the sources of the dataset that it comes from.
        converted |= {"name": self.sources[0].name, "bytes": first.bytes}
        return {"converted": converted, "sources": first.listed_sources}

    @property
    def order(self) -> Iterator[tuple[Input, InputSplit]]:
        """The order: the splits of each input."""
        return ((one, split) for one in self.inputs for split in one.splits.values())

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        tokens = sum(one.tokens for one in self.inputs)
        need = sum(destination.space(output, tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        destination.check_free(need)

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch | None]]:
        """DamageError when an id is not one of the tokenizer's."""
        position = position or {"at": 0, "ended": False}
        yield iter([None]) if position["ended"] else self._to_the_end(position["at"])

    def _to_the_end(self, position: int) -> Iterator[Batch]:
        yield from self.batches_from(position)
        ended = [FoundInSource(i, "document", ended=True) for i in range(len(self.inputs))]
        yield Batch(None, ended, {"at": 0, "ended": True})

    def batches_from(self, position: int) -> Iterator[Batch]:
        """Yield the batches from a position in the order."""
        before = 0
        for one, split in self.order:
            for start, (rows, tokens) in split.blocks(max(0, position - before), self._block):
                end = start + len(tokens)
                tokens = one.narrowed(split.name, start, tokens)
                count = _known_count(one, split, rows, tokens, start)
                yield self.batch(split, rows, tokens, before + end, (before + end) * one.width, count=count)
            before += len(split.tokens)

    def batch(
        self,
        split: InputSplit,
        rows: Rows,
        tokens: NDArray[Any],
        position: int | None,
        through: int,
        *,
        count: SplitCount | None = None,
        mend: bool = False,
    ) -> Batch:
        """Return the batch of some documents of a split, with their tokens as they are stored.

        `position`: where the order continues after it; None: inside a document. `count`: documents and bytes of text,
        where they are not those of the rows. `through`: bytes of the inputs that are done then, for progress.
        `mend`: documents are in another order, so one that was cut and has no EOT gets it.
        """
        streams = place_eot(split.name, rows, tokens, split.eot, split.eot_id, self._eots, mend=mend)
        eots = 0 if split.eot == "none" else int(np.count_nonzero(tokens == split.eot_id))
        documents = count.documents if count else int(np.count_nonzero(streams[self._eots[0]].rows.closes))
        found = FoundInSource(0, "document", documents, tokens=len(tokens) - eots, through=through)
        after = None if position is None else {"at": position, "ended": False}
        return Batch(BatchTokens(streams, count), [found], after)

    def batch_of_block(
        self, split: InputSplit, block: Block, position: int, tokens: int, *, mend: bool = True
    ) -> Batch:
        """Return the batch of a block that a `Sorter` yields; `position` as for `batch`, `tokens`: done by then."""
        facts = block.facts
        lengths = facts["length"].copy() if block.begins and block.ends else np.array([len(block.tokens)])
        opens, closes = np.full(len(lengths), block.begins), np.full(len(lengths), block.ends)
        val = np.full(len(lengths), split.name == "val")
        size = np.where(closes, facts["bytes"], 0)
        rows = Rows(lengths, size, val, opens, closes, facts["source"].copy(), facts["record"].copy())
        after, through = position if block.ends else None, tokens * self.inputs[0].width
        return self.batch(split, rows, block.tokens, after, through, mend=mend)


def _known_count(one: Input, split: InputSplit, rows: Rows, tokens: NDArray[Any], start: int) -> SplitCount | None:
    """Documents and bytes of some tokens, where they are not those of the rows."""
    if split.table is not None:
        return None
    stop = start + len(tokens)
    size = one.share(one.text_bytes.get(split.name, 0), split.name, start, stop)
    if split.name in one.counts:
        return SplitCount(split.name, one.share(one.counts[split.name], split.name, start, stop), size)
    documents = int(np.count_nonzero(rows.closes))
    if split.index is None and split.eot_id is not None:
        # An end-of-text token at the very start or end has no document before or after it.
        documents -= int(split.eot == "after" and start == 0 and tokens[0] == split.eot_id and bool(rows.opens[0]))
        ends = stop == len(split.tokens) and bool(rows.closes[-1])
        documents -= int(split.eot == "before" and ends and tokens[-1] == split.eot_id)
    return SplitCount(split.name, documents, size)
