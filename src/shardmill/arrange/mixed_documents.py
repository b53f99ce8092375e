"""The documents of several datasets as one list, with the keys that put them in the order of a mixture."""

from __future__ import annotations

import tempfile
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shardmill.arrange.ordered import DocumentsOfSplit
from shardmill.arrange.sorting import FACTS, LEFT_OUT
from shardmill.core import read_parts
from shardmill.errors import DamageError
from shardmill.permutation import Permutation
from shardmill.storage import writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.arrange.mixtures import MixturePlan

_STEP = 1 << 16  # documents that are looked at together


class _Stretch:
    """All documents of one dataset, as a part of a longer list."""

    def __init__(self, source: int, epoch: int, documents: DocumentsOfSplit, offset: int) -> None:
        self.source, self.epoch, self.documents = source, epoch, documents
        self.offset = offset
        """Where the sources of the dataset begin in the list of all sources."""


class Joined(ABC):
    """The documents of several stretches one after another, as the sorter reads them."""

    def __init__(self, stretches: list[_Stretch]) -> None:
        self._stretches = stretches
        self.dtype = stretches[0].documents.dtype
        self._first = np.cumsum([0, *(len(one.documents) for one in stretches)]).tolist()
        self._token = np.cumsum([0, *(one.documents.tokens for one in stretches)]).tolist()

    def __len__(self) -> int:
        return int(self._first[-1])

    def _within(self, borders: list[int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield each stretch between two places, and where these begin and end in it."""
        at = bisect_right(borders, first) - 1
        while first < last:
            stop = min(last, borders[at + 1])
            if first < stop:
                yield at, first - borders[at], stop - borders[at]
            first, at = stop, at + 1

    def facts(self, first: int, last: int) -> NDArray[Any]:
        found = [np.empty(0, FACTS)]
        for at, begin, end in self._within(self._first, first, last):
            stretch = self._stretches[at]
            found.append(stretch.documents.facts(begin, end))
            found[-1]["source"] += stretch.offset
        return np.concatenate(found)

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        keys, done = np.empty(len(facts), np.uint64), 0
        for at, begin, end in self._within(self._first, first, first + len(facts)):
            some = slice(done, done + end - begin)
            keys[some] = self._keys(at, begin, facts[some])
            done = some.stop
        return keys

    @abstractmethod
    def _keys(self, at: int, begin: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        """The keys of documents of a stretch, from its document `begin` on."""

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        done = 0
        for at, begin, end in self._within(self._token, start, start + len(out)):
            self._stretches[at].documents.read_into(begin, out[done : done + end - begin])
            done += end - begin


class JoinedDocuments(Joined):
    """The documents of the same split of several datasets, each once, shuffled together."""

    def __init__(self, splits: list[tuple[int, DocumentsOfSplit, int]], seed: int, split: str) -> None:
        super().__init__([_Stretch(i, 0, documents, offset) for i, documents, offset in splits])
        self._order = Permutation(len(self), seed, split)

    def _keys(self, at: int, begin: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        first = self._first[at] + begin
        return self._order.places(np.arange(first, first + len(facts))).astype(np.uint64)


class MixedDocuments(Joined):
    """The documents of a mixture: those of each dataset, as often as it is read."""

    def __init__(
        self,
        plan: MixturePlan,
        documents: list[DocumentsOfSplit],
        offsets: list[int],
        seed: int,
        before: TokensBefore,
    ) -> None:
        self._plan, self._seed, self._before = plan, seed, before
        super().__init__(
            [
                _Stretch(i, epoch, documents[i], offsets[i])
                for i in range(len(documents))
                for epoch in range(max(1, ceil(plan.used(i) / plan.size(i))))
            ]
        )
        self._known = -1

    def _keys(self, at: int, begin: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        stretch = self._stretches[at]
        order = epoch_order(len(stretch.documents), self._seed, stretch.source, stretch.epoch)
        if at != self._known:
            self._before.count(stretch.documents, order)
            self._known = at
        places = order.places(np.arange(begin, begin + len(facts)))
        before = self._before[places] + stretch.epoch * stretch.documents.tokens
        keys = self._plan.mixture.keys(stretch.source, before, facts["length"])
        return np.where(keys < np.uint64(self._plan.end), keys, np.uint64(LEFT_OUT))


def epoch_order(documents: int, seed: int, source: int, epoch: int) -> Permutation:
    """Return the order of a dataset's documents, the `source`-th of a mixture, in one of its epochs."""
    return Permutation(documents, seed, "mix", source, epoch)


class TokensBefore:
    """How many tokens come before each place of an order: in memory, or in a temporary file where that is too little.

    A file is written for one range of places after another, each as large as the memory allows, and for each of them
    the documents table is read once.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        """`folder`: for the file, which has no name and ends with the process. `memory`: bytes that it may take."""
        self._folder, self._room = folder, max(1, memory // 8)
        self._counted = np.empty(0, np.int64)
        self._file: IO[bytes] | None = None
        self._close: Callable[[], Any] = lambda: None

    def memory(self, documents: int) -> int:
        """Return the bytes that it takes for an order of so many documents."""
        return 8 * min(documents, self._room)

    def count(self, documents: DocumentsOfSplit, order: Permutation) -> None:
        """Count the tokens before all places of an order, and forget those of another."""
        self._close()
        self._counted, self._file = np.empty(0, np.int64), None
        if len(documents) <= self._room:
            self._counted, _ = tokens_before(documents, order, 0, len(documents), 0)
            return
        total = 0
        with writing_to(self._folder):
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed when forgotten
            self._close = weakref.finalize(self, self._file.close)
            for first in range(0, len(documents), self._room):
                last = min(first + self._room, len(documents))
                some, total = tokens_before(documents, order, first, last, total)
                view = memoryview(some.view(np.uint8))  # type: ignore[arg-type,unused-ignore]
                while len(view):
                    view = view[self._file.write(view) :]

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._file is None:
            return self._counted[places]
        found, order = np.empty(len(places), np.int64), np.argsort(places)
        size = np.full(len(places), 8)
        if not read_parts(self._file.fileno(), places[order] * 8, size, order * 8, found.view(np.uint8)):
            raise DamageError("a temporary file became shorter", place=str(self._folder))
        return found


def tokens_before(
    documents: DocumentsOfSplit, order: Permutation, first: int, last: int, total: int
) -> tuple[NDArray[np.int64], int]:
    """Return for some places of an order how many tokens come before each, and before the place after them.

    `total`: tokens before the first of them.
    """
    found = np.empty(last - first, np.int64)
    for start in range(0, len(documents), _STEP):
        lengths = documents.facts(start, min(start + _STEP, len(documents)))["length"]
        places = order.places(np.arange(start, start + len(lengths)))
        here = (places >= first) & (places < last)
        found[places[here] - first] = lengths[here]
    for start in range(0, len(found), _STEP):
        some = found[start : start + _STEP]
        ends = np.cumsum(some) + total
        total = int(ends[-1])
        some[:] = ends - some
    return found, total
