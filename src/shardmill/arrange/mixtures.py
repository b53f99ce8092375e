"""Several datasets in given shares of tokens, as one dataset.

A mixture is a sort: the key of a document is the token of the mixture at which its middle is due (mixing.py). Every
source is in an order of its own, and in a new one each time that it is repeated.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np

from shardmill import arguments
from shardmill.arrange.mixing import KEY_UNITS, MOST_TOKENS, Mixture, Stage
from shardmill.arrange.ordered import DocumentsOfSplit, Order, options_like, write_ordered
from shardmill.arrange.sorting import FACTS, LEFT_OUT
from shardmill.core import read_parts
from shardmill.dataset import CACHE_SIZE, Dataset, open_dataset
from shardmill.errors import DamageError, MismatchError, UsageError
from shardmill.permutation import Permutation
from shardmill.run import default_memory
from shardmill.shards import Blended, blend
from shardmill.storage import scheme_of, writing_to
from shardmill.units import parse_count
from shardmill.write import Progress, Result, SourceLines, json_line, open_destination, progress_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.arrange.mixed_tokens import MixedSplit

Weights = Mapping[Any, float | str | Fraction]
"""Datasets and their weights; only the ratio of the weights counts."""
_STEP = 1 << 16  # documents that are looked at together


@overload
def mix(weights: Weights, out: str | os.PathLike[str], **options: Any) -> Result: ...
@overload
def mix(weights: Weights, out: None = None, **options: Any) -> MixedSplit: ...
def mix(  # type: ignore[misc]  # the options are those below
    weights: Weights,
    out: str | os.PathLike[str] | None = None,
    *,
    stages: Mapping[int | str, Weights] | None = None,
    tokens: int | str | None = None,
    max_epochs: int = 1,
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
) -> Result | MixedSplit:
    """Write a mixture of datasets, each with its share of the tokens, to `out`, and return the `Result`.

    Without `out` nothing is written: return the mixture itself, whose `batches` are those of the written one.

    `stages`: other weights from a token of the mixture on. The mixture ends after `tokens`; by default where a dataset
    has been read `max_epochs` times. Formats, position of EOT and shard size are those of the first dataset unless
    others are given. Raise a ShardmillError for any expected failure. The same call resumes an unfinished one, also
    with another amount of memory.
    """
    shown = progress_of(progress)
    plan = plan_mixture(
        weights, stages=stages, tokens=tokens, max_epochs=max_epochs, cache=cache, cache_size=cache_size
    )
    if out is None:
        from shardmill.arrange.mixed_tokens import MixedSplit  # which needs this module

        return MixedSplit(plan, arguments.number("seed", seed))
    return write_mixture(
        plan,
        out,
        shown,
        {"format": format, "eot": eot, "seed": seed, "shard_tokens": shard_tokens, "tail": tail, "name": name,
         "memory": memory, "overwrite": overwrite},
    )  # fmt: skip


@dataclass(frozen=True)
class MixturePlan:
    """Datasets, their shares, and where the mixture ends."""

    names: list[str]
    """The datasets as they were named."""
    datasets: list[Dataset]
    mixture: Mixture
    stages: list[Stage]
    end: int
    """The key at which the mixture ends."""
    longest: list[int]
    """Tokens of the longest document of each dataset."""

    @property
    def tokens(self) -> int:
        """Tokens of the mixture, as the shares add up; documents are whole, so it may have some more or less."""
        return -(-self.end // KEY_UNITS)

    def size(self, source: int) -> int:
        """Tokens of a dataset that can be mixed."""
        return len(self.datasets[source]["train"])

    def used(self, source: int) -> Fraction:
        """Tokens of a dataset that the mixture takes."""
        return self.mixture.due(source, Fraction(self.end, KEY_UNITS))

    def blend(self, trainer: str) -> str:
        """Return the settings with which a trainer mixes the datasets. UsageError if it cannot do that."""
        if len(self.stages) > 1:
            raise UsageError(
                "trainers change weights at steps, not at tokens",
                hint="leave `--stage` out, and export each stage alone",
            )
        return blend(
            trainer,
            [
                Blended(
                    data.folder,
                    data.format,
                    float(self.mixture.shares(i)[0]),
                    float(self.used(i) / self.size(i)),
                    {
                        split: data.folder / data[split].described["files"][0]["name"]
                        for split in data
                        if data[split].described["files"]
                    },
                )
                for i, data in enumerate(self.datasets)
            ],
            self.tokens,
        )

    def data(self) -> dict[str, Any]:
        """The table as JSON-able data."""
        return {
            "tokens": self.tokens,
            "stages": [stage.start for stage in self.stages],
            "sources": [
                {
                    "name": name,
                    "tokens": self.size(i),
                    "shares": [round(float(share), 6) for share in self.mixture.shares(i)],
                    "used": round(self.used(i)),
                    "epochs": round(float(self.used(i) / self.size(i)), 4),
                    "bound": ceil(self.mixture.bound(i, self.longest)),
                }
                for i, name in enumerate(self.names)
            ],
        }

    def text(self) -> str:
        """The table as a person reads it."""
        data = self.data()
        rows = [("dataset", "tokens", "share", "used", "epochs", "off by at most")]
        for one in data["sources"]:
            shares = " → ".join(f"{100 * share:.4g} %" for share in one["shares"])
            rows.append(
                (one["name"], f"{one['tokens']:,}", shares, f"{one['used']:,}", f"{one['epochs']:.2f}",
                 f"{one['bound']:,}")
            )  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row, widths[1:], strict=True))]
            )
            for first, *row in rows
        ]
        later = "".join(f"; other shares from token {start:,} on" for start in data["stages"][1:])
        return "\n".join([*lines, f"{data['tokens']:,} tokens{later}"])


def plan_mixture(
    weights: Weights,
    *,
    stages: Mapping[int | str, Weights] | None = None,
    tokens: int | str | None = None,
    max_epochs: int = 1,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
) -> MixturePlan:
    """Open the datasets of a mixture and find where it ends. Only their documents tables are read.

    MismatchError if datasets do not fit together, UsageError if one would be read more often than `max_epochs` times.
    """
    max_epochs = arguments.number("max_epochs", max_epochs, 1)
    if not isinstance(weights, Mapping) or not weights:
        raise UsageError("a mixture needs datasets and their weights", hint="for example A:0.7 B:0.3")
    names = [arguments.path("dataset", name) for name in weights]
    if len({name if scheme_of(name) else Path(name).resolve() for name in names}) < len(names):
        raise UsageError("a dataset was named twice", hint="give each dataset one weight")
    every = [Stage(0, tuple(_weight(one) for one in weights.values()))]
    for start, changed in (stages or {}).items():
        every.append(Stage(parse_count(start), _weights_of_stage(names, changed)))
    every.sort(key=lambda stage: stage.start)
    mixture = Mixture(every)
    datasets = [open_dataset(name, cache=cache, cache_size=cache_size) for name in names]
    for name, data in zip(names[1:], datasets[1:], strict=True):
        _check_alike(names[0], datasets[0], name, data)
    sizes = [len(data["train"]) if "train" in data else 0 for data in datasets]
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise UsageError("the dataset has no tokens for training", place=name, hint="leave it out")
    most = _last_key(mixture, [max_epochs * size for size in sizes])
    end = most if tokens is None else parse_count(tokens) * KEY_UNITS
    if not 0 < end <= MOST_TOKENS * KEY_UNITS:
        raise UsageError("the mixture would have no tokens, or too many", hint="choose another `--tokens`")
    longest = [_longest(DocumentsOfSplit(data["train"])) for data in datasets]
    plan = MixturePlan(names, datasets, mixture, every, end, longest)
    if end > most:
        _refuse_epochs(plan, max_epochs, most // KEY_UNITS)
    return plan


def write_mixture(plan: MixturePlan, out: str | os.PathLike[str], progress: Progress, given: dict[str, Any]) -> Result:
    """Write a planned mixture; `given`: options, of which those that are None are as in the first dataset."""
    options = options_like(plan.datasets[0], given)
    datasets = plan.datasets
    offsets = np.cumsum([0, *(len(data.manifest["sources"]) for data in datasets)]).tolist()
    memory = (options.memory_bytes or default_memory(1)) // 4
    before = TokensBefore(open_destination(arguments.path("out", out)).folder, memory)
    splits: dict[str, Joined] = {}
    for split in dict.fromkeys(chain.from_iterable(datasets)):
        there = [(i, DocumentsOfSplit(data[split]), offsets[i]) for i, data in enumerate(datasets) if split in data]
        splits[split] = (
            MixedDocuments(plan, [documents for _, documents, _ in there], offsets, options.seed, before)
            if split == "train"
            else JoinedDocuments(there, options.seed, split)
        )
    shares = [[str(share) for share in plan.mixture.shares(i)] for i in range(len(datasets))]
    stages = [stage.start for stage in plan.stages]
    order = Order(
        "mix",
        dict(splits),
        tokens=plan.tokens + sum(len(data["val"]) for data in datasets if "val" in data),
        chosen={"mixture": {"stages": stages, "shares": shares, "end": plan.end}},
        described={
            "tokens": plan.tokens,
            "stages": stages,
            "from": [
                {"name": name, "fingerprint": data.manifest["fingerprint"], "shares": share}
                for name, data, share in zip(plan.names, datasets, shares, strict=True)
            ],
        },
        sources=SourceLines(json_line(source) for data in datasets for source in data.manifest["sources"]),
        memory=before.memory(max(len(DocumentsOfSplit(data["train"])) for data in datasets)),
    )
    return write_ordered(datasets, order, out, options, progress, name="mix")


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


def _longest(documents: DocumentsOfSplit) -> int:
    steps = range(0, len(documents), _STEP)
    return max(
        (int(documents.facts(start, min(start + _STEP, len(documents)))["length"].max()) for start in steps), default=0
    )


def _last_key(mixture: Mixture, most: list[int]) -> int:
    """Return the largest key before which no source has more than so many tokens due."""
    low, high = 0, MOST_TOKENS * KEY_UNITS
    while low < high:
        middle = (low + high + 1) // 2
        tokens = Fraction(middle, KEY_UNITS)
        if all(mixture.due(source, tokens) <= size for source, size in enumerate(most)):
            low = middle
        else:
            high = middle - 1
    return low


def _refuse_epochs(plan: MixturePlan, max_epochs: int, most: int) -> None:
    """Raise an error for the dataset that would be read most often."""
    epochs = [plan.used(i) / plan.size(i) for i in range(len(plan.names))]
    worst = max(range(len(epochs)), key=epochs.__getitem__)
    raise UsageError(
        f"`{plan.names[worst]}` would be read {float(epochs[worst]):.2f} times: the mixture takes "
        f"{round(plan.used(worst)):,} tokens of it, and it has {plan.size(worst):,}",
        hint=f"allow that with `--max-epochs {ceil(epochs[worst])}`, choose at most `--tokens {most}`, "
        "or give it less weight",
    )


def _check_alike(first: str, one: Dataset, name: str, other: Dataset) -> None:
    """Raise MismatchError if two datasets cannot be mixed, and say in what they differ."""
    differences = []
    mine, theirs = one.manifest["tokenizer"], other.manifest["tokenizer"]
    for key in ("sha256", "vocab_size", "eot", "pattern", "specials"):
        if mine.get(key) != theirs.get(key):
            shown = [f"`{made['name']}` ({key} {made.get(key)})" for made in (mine, theirs)]
            differences.append(f"tokenizer {shown[0]} and {shown[1]}")
            break
    if one.dtype != other.dtype:
        differences.append(f"tokens of {one.dtype} and {other.dtype}")
    if one.eot != other.eot:
        differences.append(f"end-of-text {one.eot} and {other.eot} each document")
    if differences:
        converts = not differences[0].startswith("tokenizer")
        raise MismatchError(
            f"`{first}` and `{name}` cannot be mixed: {'; '.join(differences)}",
            hint=f"`shardmill convert {name} -o DIR -f {one.format} --eot {one.eot}` makes it like the first"
            if converts
            else "prepare both with the same tokenizer",
        )


def _weight(written: Any) -> Fraction:
    try:
        return Fraction(written if isinstance(written, Fraction) else str(written))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"`{written}` is no weight", hint="give a number, such as 0.7 or 2") from None


def _weights_of_stage(names: list[str], changed: Weights) -> tuple[Fraction, ...]:
    """The weight of each dataset in a stage; one that is not named has none. UsageError for another name."""
    found = dict.fromkeys(names, Fraction(0))
    for written, weight in changed.items():
        wanted = os.fspath(written)
        matching = [name for name in names if wanted in (name, Path(name).name)]
        if len(matching) != 1:
            raise UsageError(f"`{wanted}` is none of the datasets of the mixture", hint=f"choose: {', '.join(names)}")
        found[matching[0]] = _weight(weight)
    return tuple(found.values())


def parse_weights(written: Sequence[str]) -> Weights:
    """Parse `A:0.7` and the like. UsageError for what is none, and for a name that occurs twice."""
    found: dict[str, str] = {}
    for one in written:
        name, colon, weight = one.rpartition(":")
        if not colon or not name or not weight:
            raise UsageError(f"`{one}` has no weight", hint="write a dataset and its weight as `DIR:0.7`")
        if name in found:
            raise UsageError(f"`{name}` was named twice", hint="give each dataset one weight")
        found[name] = weight
    return found


def parse_stages(written: Sequence[str]) -> dict[int | str, Weights]:
    """Parse `5B:A=0.5,B=0.5` and the like: the token at which a stage begins, and its weights."""
    found: dict[int | str, Weights] = {}
    for one in written:
        start, _, weights = one.partition(":")
        pairs = [pair.rpartition("=") for pair in weights.split(",")]
        if not all(name and equals and weight for name, equals, weight in pairs):
            raise UsageError(f"`--stage {one}` is not valid", hint="write it as `5B:A=0.5,B=0.5`")
        found[start] = {name: weight for name, _, weight in pairs}
    return found
