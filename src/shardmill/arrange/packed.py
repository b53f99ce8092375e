"""A dataset as rows of a fixed number of tokens that begin with a document.

Documents longer than a row are cut: into full rows and a rest. All these *pieces* are placed by best fit decreasing
(packing.py), and rows come in a random order. Pieces of one size are dealt to their places by a permutation, so what
shares a row is not what were neighbours. The key of a piece is its address in the result. What remains free at the end
of a row is filled with end-of-text tokens.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.arrange.ordered import DocumentsOfSplit, Order, options_like, write_ordered
from shardmill.arrange.packing import PackingPlan, count_pieces
from shardmill.arrange.sorting import FACTS
from shardmill.dataset import CACHE_SIZE, Dataset, Split, open_dataset
from shardmill.errors import UsageError
from shardmill.permutation import Permutation, Permutations
from shardmill.units import plural
from shardmill.write import Progress, Result, progress_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = 1 << 16  # documents that are looked at together


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    block_size: int,
    seed: int = 0,
    format: str | Sequence[str] | None = None,
    shard_tokens: int | str | None = None,
    tail: str = "keep",
    name: str | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    progress: Progress | bool | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Result:
    """Write a dataset as rows of exactly `block_size` tokens, in a random order, that begin with a document.

    Only documents longer than a row are cut, so a row may begin with the rest of one, and nothing is lost. Rows lie end
    to end, and shards hold whole rows. The documents table lists pieces: a document that is cut has several rows there.
    `notify` is told about each split before anything is written. Raise a ShardmillError for any expected failure. The
    same call resumes an unfinished one, also with another amount of memory.
    """
    shown = progress_of(progress)
    row, data = arguments.number("block_size", block_size, 2), open_dataset(source, cache=cache, cache_size=cache_size)
    options = options_like(
        data,
        {"format": format, "seed": seed, "shard_tokens": shard_tokens, "tail": tail,
         "name": name or data.manifest["options"].get("name"), "memory": memory, "overwrite": overwrite},
    )  # fmt: skip
    # A shard holds whole rows, so that every shard begins with a row.
    whole = max(1, options.tokens_per_shard // row) * row
    options = options_like(
        data,
        {"format": options.format, "eot": data.eot, "seed": options.seed, "shard_tokens": whole, "tail": options.tail,
         "name": options.name, "memory": memory, "overwrite": overwrite},
    )  # fmt: skip
    splits = packed_splits(data, row, options.seed, notify)
    order = Order(
        "pack",
        dict(splits),
        tokens=sum(pieces.plan.rows * row for pieces in splits.values()),
        chosen={"block_size": row},
        described={
            "block_size": row,
            "from": data.manifest["fingerprint"],
            "splits": {split: pieces.described() for split, pieces in splits.items()},
        },
        sources=data.manifest["sources"],
        memory=64 * (row + 1),
        padding=data.eot_id,
        row=row,
    )
    return write_ordered([data], order, out, options, shown)


def packed_splits(data: Dataset, row: int, seed: int, notify: Callable[[str], None]) -> dict[str, PackedPieces]:
    """Return the pieces of each split, and say how they will be packed. UsageError if the dataset cannot be packed."""
    mixture = data.manifest.get("arranged", {})
    if len(mixture.get("stages", ())) > 1:
        raise UsageError(
            "rows come in a random order, and the stages of this mixture would be lost",
            place=str(data.folder),
            hint="pack a mixture without stages",
        )
    if data.eot_id is None:
        raise UsageError("the tokenizer has no end-of-text token, with which rows are filled", place=str(data.folder))
    splits = {split: PackedPieces(data[split], row, seed) for split in data}
    for split, pieces in splits.items():
        notify(f"{split}: {pieces.summary()}")
    if mixture.get("order") == "mix":
        notify("rows come in a random order: the shares of the mixture hold on average, not at every place")
    return splits


class PackedPieces:
    """The pieces of the documents of a split, as the sorter reads them; each has its address in the result as key."""

    def __init__(self, split: Split, row: int, seed: int) -> None:
        self._documents, self._row = DocumentsOfSplit(split), row
        self.dtype = self._documents.dtype
        counts, self._before, self._cut = np.zeros(row + 1, np.int64), [0], 0
        for start in range(0, len(self._documents), _STEP):
            lengths = self._documents.facts(start, min(start + _STEP, len(self._documents)))["length"]
            counts += count_pieces(lengths, row)
            self._before.append(self._before[-1] + int((-(-lengths // row)).sum()))
            self._cut += int(np.count_nonzero(lengths > row))
        self.plan = PackingPlan(counts, row)
        self._within = Permutations(counts, seed, split.name, "pieces")
        self._rows = Permutation(self.plan.rows, seed, split.name, "rows")
        self._seen, self._counted = 0, np.zeros(row + 1, np.int64)
        """How many pieces of each size are before a piece."""

    def described(self) -> dict[str, int]:
        """What the manifest says of it."""
        return {"rows": self.plan.rows, "padding": self.plan.padding, "cut": self._cut}

    def summary(self) -> str:
        """A sentence about rows, padding and cut documents."""
        tokens, documents = self.plan.rows * self._row, max(1, len(self._documents))
        return (
            f"{plural(self.plan.rows, 'row')} of {self._row:,} tokens, {self.plan.padding / max(1, tokens):.3%} of it "
            f"padding; {plural(self._cut, 'document')} of {len(self._documents):,} cut ({self._cut / documents:.1%})"
        )

    def __len__(self) -> int:
        return self._before[-1]

    def facts(self, first: int, last: int) -> NDArray[Any]:
        """Return the rows of FACTS of some pieces. The piece that ends a document has the bytes of its text."""
        found = [np.empty(0, FACTS)]
        block = bisect_right(self._before, first) - 1
        while first < last:
            stop = min(last, self._before[block + 1])
            if first < stop:
                found.append(self._pieces(block, first - self._before[block], stop - self._before[block]))
            first, block = stop, block + 1
        return np.concatenate(found)

    def _pieces(self, block: int, first: int, last: int) -> NDArray[Any]:
        """Some pieces of a block of documents, by their numbers in the block."""
        start = block * _STEP
        facts = self._documents.facts(start, min(start + _STEP, len(self._documents)))
        counts = -(-facts["length"] // self._row)
        ends = np.cumsum(counts)
        low, high = int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(ends, last)) + 1
        facts, counts, ends = facts[low:high], counts[low:high], ends[low:high]
        pieces = np.repeat(facts, counts)
        begin = int(ends[0] - counts[0])
        number = np.arange(begin, int(ends[-1])) - np.repeat(ends - counts, counts)
        left = pieces["length"] - number * self._row
        pieces["length"] = np.minimum(left, self._row)
        pieces["bytes"][left > self._row] = 0
        return pieces[first - begin : last - begin]

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the addresses of some pieces, and set the padding after each."""
        self._count_before(first)
        sizes = facts["length"]
        order = np.argsort(sizes, kind="stable")
        begins = np.flatnonzero(np.diff(sizes[order], prepend=-1))
        numbers = np.empty(len(sizes), np.int64)
        numbers[order] = np.arange(len(sizes)) - np.repeat(begins, np.diff(np.append(begins, len(sizes))))
        slots = self.plan.slots(sizes, self._within(sizes, self._counted[sizes] + numbers))
        free = self.plan.free(slots.rows)
        facts["padding"] = np.where(slots.offsets + sizes == self._row - free, free, 0)
        return (self._rows.places(slots.rows) * self._row + slots.offsets).astype(np.uint64)

    def _count_before(self, first: int) -> None:
        """Count the pieces of each size before a piece; the sorter asks for one piece after the other."""
        if first < self._seen:
            self._seen, self._counted = 0, np.zeros(self._row + 1, np.int64)
        while self._seen < first:
            stop = min(first, self._seen + _STEP)
            self._counted += np.bincount(self.facts(self._seen, stop)["length"], minlength=self._row + 1)
            self._seen = stop

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill an array with the tokens from `start` on."""
        self._documents.read_into(start, out)
