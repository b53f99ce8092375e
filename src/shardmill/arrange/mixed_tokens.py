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

from shardmill.arrange.mixing import KEY_UNITS
from shardmill.arrange.mixtures import MixturePlan, epoch_order, tokens_before
from shardmill.arrange.ordered import DocumentsOfSplit
from shardmill.dataset import make_batches
from shardmill.errors import UsageError
from shardmill.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset import Batches

_EVERY = 1024
"""Documents between two places of which the tokens before them are kept."""
_AHEAD_TOKENS = 1 << 20
"""Tokens whose documents are looked up at once."""


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

    def __init__(self, plan: MixturePlan, source: int, seed: int) -> None:
        self.tokens = plan.datasets[source]["train"].tokens
        self._mixture, self._source, self._seed = plan.mixture, source, seed
        self._documents = DocumentsOfSplit(plan.datasets[source]["train"])
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
            numbers = order(np.arange(begin * _EVERY, min(end * _EVERY, len(self._documents))))
            starts, ends = self._documents.bounds_of(numbers)
            lengths = ends - starts
            counted = epoch * size + before[begin] + np.cumsum(lengths) - lengths
            found.append(_Found(self._mixture.keys(self._source, counted, lengths), counted, starts, lengths))
        return _Found(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _epoch(self, epoch: int) -> tuple[Permutation, NDArray[np.int64]]:
        """The order of an epoch, and the tokens before every _EVERY-th document of it; of two epochs at a time."""
        if epoch not in self._epochs:
            order = epoch_order(len(self._documents), self._seed, self._source, epoch)
            self._epochs = {number: kept for number, kept in self._epochs.items() if number == epoch - 1}
            self._epochs[epoch] = order, tokens_before(self._documents, order)[::_EVERY].copy()
        return self._epochs[epoch]


class _Window(NamedTuple):
    """The documents of a stretch of the mixture."""

    begin: int
    """The token of the mixture at which the first begins."""
    ends: NDArray[np.int64]
    """The tokens of the mixture at which they end."""
    sources: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where they begin in their datasets."""


class MixedTokens:
    """The tokens of a mixture, by their place."""

    def __init__(self, plan: MixturePlan, seed: int) -> None:
        self.dtype = plan.datasets[0].dtype
        self._datasets = [_Dataset(plan, source, seed) for source in range(len(plan.datasets))]
        self._end = plan.end
        # A document's address and its key differ by at most half of the longest document of each dataset.
        self._margin = sum(plan.longest) // 2 + 2
        self._window: _Window | None = None
        self._length = sum(one.between(plan.end, plan.end).tokens_before(plan.end) for one in self._datasets)

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_window": None}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some tokens."""
        out = np.empty(stop - start, self.dtype)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill an array with the tokens from `start` on."""
        done = 0
        while done < len(out):
            window = self._around(start + done)
            at = int(np.searchsorted(window.ends, start + done, side="right"))
            while done < len(out) and at < len(window.ends):
                begin = int(window.ends[at - 1]) if at else window.begin
                inside = start + done - begin
                count = min(int(window.ends[at]) - begin - inside, len(out) - done)
                place = int(window.starts[at]) + inside
                self._datasets[int(window.sources[at])].tokens.read_into(place, out[done : done + count])
                done, at = done + count, at + 1

    def _around(self, token: int) -> _Window:
        """The documents from a token of the mixture on; those of the last call, if it is among them."""
        known = self._window
        if known is not None and known.begin <= token < known.ends[-1]:
            return known
        low = max(0, token - self._margin) * KEY_UNITS
        high = min(self._end, (token + self._margin + _AHEAD_TOKENS) * KEY_UNITS)
        found = [one.between(low, high) for one in self._datasets]
        begin = sum(one.tokens_before(low) for one in found)
        found = [one.between(low, high) for one in found]
        keys = np.concatenate([one.keys for one in found])
        order = np.argsort(keys, kind="stable")
        sources = np.repeat(np.arange(len(found)), [len(one.keys) for one in found])[order]
        lengths, starts = (np.concatenate([one[column] for one in found])[order] for column in (3, 2))
        self._window = _Window(begin, begin + np.cumsum(lengths), sources, starts)
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
