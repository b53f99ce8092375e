"""A mixture that is not written: its tokens at any place, in the order in which `mix` would write them.

For a place in the mixture, each dataset is asked for its documents with keys around it; merged by key, they have exact
addresses. So the state of a loader is a place, and nothing before it has to be read.
"""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.arrange.mixed_documents import epoch_order
from shardmill.arrange.mixing import KEY_UNITS
from shardmill.arrange.mixtures import MixturePlan
from shardmill.arrange.ordered import DocumentsOfSplit
from shardmill.dataset import make_batches
from shardmill.errors import UsageError
from shardmill.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset import Batches

_EVERY = 256
"""Documents between two places of which the tokens before them are kept."""
_AHEAD_DOCUMENTS = 1 << 14
"""Documents that are looked up at once, about."""
_STEP = 1 << 16  # rows of a documents table that are read together


class _Found(NamedTuple):
    """Documents of a dataset with neighbouring keys, in their order."""

    keys: NDArray[np.uint64]
    before: NDArray[np.int64]
    """Tokens of the dataset before each, over all epochs."""
    starts: NDArray[np.int64]
    """Where each begins in the dataset."""
    lengths: NDArray[np.int64]

    def between(self, low: int, high: int) -> _Found:
        """Return those with keys from `low` on and below `high`."""
        some = slice(*np.searchsorted(self.keys, np.array([low, high], np.uint64)).tolist())
        return _Found(self.keys[some], self.before[some], self.starts[some], self.lengths[some])

    def tokens_before(self, key: int) -> int:
        """Tokens of all documents with smaller keys."""
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        return int(self.before[at]) if at < len(self.keys) else int(self.before[-1] + self.lengths[-1])


class _Dataset:
    """One dataset of a mixture, in the order of each of its epochs."""

    def __init__(self, plan: MixturePlan, source: int, seed: int, every: int) -> None:
        self.tokens = plan.datasets[source]["train"].tokens
        self._mixture, self._source, self._seed, self._every = plan.mixture, source, seed, every
        self._documents = DocumentsOfSplit(plan.datasets[source]["train"])
        self.mean_length = -(-self._documents.tokens // max(1, len(self._documents)))
        self._epochs: dict[int, tuple[Permutation, NDArray[np.int64]]] = {}

    def between(self, low: int, high: int) -> _Found:
        """Return documents: all with keys from `low` on and below `high`, and some around them."""
        size = self._documents.tokens
        first, last = (floor(self._mixture.due(self._source, Fraction(key, KEY_UNITS))) for key in (low, high))
        found = []
        for epoch in range(first // size, last // size + 1):
            order, before = self._epoch(epoch)
            begin = int(np.searchsorted(before, max(0, first - epoch * size), side="right")) - 1
            end = int(np.searchsorted(before, min(size, last - epoch * size), side="right")) + 1
            numbers = order(np.arange(begin * self._every, min(end * self._every, len(self._documents))))
            starts, ends = self._documents.bounds_of(numbers)
            lengths = ends - starts
            counted = epoch * size + before[begin] + np.cumsum(lengths) - lengths
            found.append(_Found(self._mixture.keys(self._source, counted, lengths), counted, starts, lengths))
        return _Found(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _epoch(self, epoch: int) -> tuple[Permutation, NDArray[np.int64]]:
        """The order of an epoch, and the tokens before every `every`-th document of it; of two epochs at a time."""
        if epoch not in self._epochs:
            order = epoch_order(len(self._documents), self._seed, self._source, epoch)
            self._epochs = {number: kept for number, kept in self._epochs.items() if number == epoch - 1}
            self._epochs[epoch] = order, self._tokens_before(order)
        return self._epochs[epoch]

    def _tokens_before(self, order: Permutation) -> NDArray[np.int64]:
        """Tokens before every `every`-th document of an order: no memory for each document."""
        sums = np.zeros(-(-len(self._documents) // self._every), np.int64)
        for start in range(0, len(self._documents), _STEP):
            lengths = self._documents.facts(start, min(start + _STEP, len(self._documents)))["length"]
            groups = order.places(np.arange(start, start + len(lengths))) // self._every
            np.add.at(sums, groups, lengths)
        return np.cumsum(sums) - sums


class _Window(NamedTuple):
    """The documents of a stretch of the mixture."""

    begin: int
    """The token of the mixture at which the first begins."""
    ends: NDArray[np.int64]
    """The tokens of the mixture at which they end."""
    lengths: NDArray[np.int64]
    sources: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where they begin in their datasets."""

    @property
    def end(self) -> int:
        """The token of the mixture at which the last ends."""
        return int(self.ends[-1]) if len(self.ends) else self.begin


class MixedTokens:
    """The tokens of a mixture, by their place."""

    ahead_tokens = 1 << 18
    """Tokens of rows that a loader should ask for at once."""

    def __init__(
        self, plan: MixturePlan, seed: int, every: int = _EVERY, ahead_documents: int = _AHEAD_DOCUMENTS
    ) -> None:
        """`every`: documents between two places that are kept. `ahead_documents`: how many are looked up at once."""
        self.dtype = plan.datasets[0].dtype
        self._datasets = [_Dataset(plan, source, seed, every) for source in range(len(plan.datasets))]
        self._end = plan.end
        # A document's address and its key differ by at most half of the longest document of each dataset.
        self._margin = sum(plan.longest) // 2 + 2
        self._ahead = ahead_documents * min(one.mean_length for one in self._datasets)
        self._window: _Window | None = None
        self._length = sum(one.between(plan.end, plan.end).tokens_before(plan.end) for one in self._datasets)

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_window": None}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some tokens."""
        return self.read_rows(np.array([start]), max(0, stop - start)).reshape(-1)

    def expect_rows(self, starts: NDArray[np.int64], size: int) -> None:
        """Do nothing: which documents rows hold is known when they are read."""

    def read_rows(self, starts: NDArray[np.int64], size: int) -> NDArray[Any]:
        """Return a copy of rows of `size` tokens that begin at these places."""
        rows = np.empty((len(starts), size), self.dtype)
        out, places, at = rows.reshape(-1), np.arange(len(starts)) * size, 0
        while at < len(starts) and size:
            window = self._around(int(starts[at]), size)
            inside = (starts[at:] >= window.begin) & (starts[at:] + size <= window.end)
            count = len(inside) if inside.all() else int(np.argmin(inside))
            if count:
                some = slice(at, at + count)
                self._gather(window, starts[some], np.full(count, size), places[some], out)
                at += count
                continue
            done = 0  # a row that goes on after the documents that were looked up
            while done < size:
                begin = int(starts[at]) + done
                window = self._around(begin, size - done)
                length = min(window.end - begin, size - done)
                place = int(places[at]) + done
                self._gather(window, np.array([begin]), np.array([length]), np.array([place]), out)
                done += length
            at += 1
        return rows

    def _gather(
        self,
        window: _Window,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        """Read stretches of a window, each to its place."""
        first = np.searchsorted(window.ends, starts, side="right")
        counts = np.searchsorted(window.ends, starts + lengths) + 1 - first
        stretch = np.repeat(np.arange(len(starts)), counts)
        documents = np.arange(len(stretch)) - (np.cumsum(counts) - counts - first)[stretch]
        begins = window.ends[documents] - window.lengths[documents]
        low = np.maximum(begins, starts[stretch])
        sizes = np.minimum(window.ends[documents], (starts + lengths)[stretch]) - low
        inside, to = window.starts[documents] + low - begins, places[stretch] + low - starts[stretch]
        sources = window.sources[documents]
        for number, one in enumerate(self._datasets):
            here = np.flatnonzero(sources == number)
            if len(here):
                one.tokens.gather(inside[here], sizes[here], to[here], out)

    def _around(self, token: int, wanted: int) -> _Window:
        """The documents from a token of the mixture on; those of the last call, if it is among them.

        Who reads on gets many documents at once, and who jumps no more than are `wanted`.
        """
        known = self._window
        if known is not None and known.begin <= token < known.end:
            return known
        ahead = self._ahead if known is not None and known.end <= token <= known.end + self._ahead else wanted
        low = max(0, token - self._margin) * KEY_UNITS
        high = min(self._end, (token + self._margin + ahead) * KEY_UNITS)
        found = [one.between(low, high) for one in self._datasets]
        begin = sum(one.tokens_before(low) for one in found)
        found = [one.between(low, high) for one in found]
        keys = np.concatenate([one.keys for one in found])
        order = np.argsort(keys, kind="stable")
        sources = np.repeat(np.arange(len(found)), [len(one.keys) for one in found])[order]
        lengths, starts = (np.concatenate([one[column] for one in found])[order] for column in (3, 2))
        self._window = _Window(begin, begin + np.cumsum(lengths), lengths, sources, starts)
        return self._window


class MixedSplit:
    """The training split of a mixture that is not written: what `batches` needs of a split."""

    name = "train"

    def __init__(self, plan: MixturePlan, seed: int) -> None:
        self.plan, self.tokens = plan, MixedTokens(plan, seed)
        first = plan.datasets[0]
        self.eot, self.eot_id = first.eot, first.eot_id
        described = [
            [data.manifest["fingerprint"] for data in plan.datasets],
            [[str(share) for share in plan.mixture.shares(i)] for i in range(len(plan.datasets))],
            [stage.start for stage in plan.stages],
            plan.end,
            seed,
        ]
        self.manifest = {"fingerprint": hashlib.sha256(json.dumps(described).encode()).hexdigest()}

    @property
    def dataset(self) -> MixedSplit:
        """What `batches` asks a dataset for: its fingerprint and end-of-text token."""
        return self

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"<shardmill mixture of {len(self.plan.names)} datasets, {len(self):,} tokens>"

    def __getitem__(self, key: slice) -> NDArray[Any]:
        """Return some tokens; UsageError if it is not a slice of neighbours."""
        start, stop, step = key.indices(len(self)) if isinstance(key, slice) else (0, 0, 0)
        if step != 1:
            raise UsageError("tokens of a mixture are read by a slice of neighbours")
        return self.tokens.read(start, max(start, stop))

    def batches(self, batch_size: int, block_size: int, *, order: str = "sequential", **more: Any) -> Batches:
        """Return shifted pairs (x, y) of rows, like those of a split; a mixture is shuffled already."""
        return make_batches(self, batch_size, block_size, order=order, **more)  # type: ignore[arg-type]
