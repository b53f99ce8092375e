"""Several datasets in given shares of tokens, as one dataset.

A mixture is a sort: the key of a document is the token of the mixture at which its middle is due (mixing.py). Every
source is in an order of its own, and in a new one each time that it is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from shardmill import arguments
from shardmill.arrange.mixed_documents import Joined, JoinedDocuments, MixedDocuments, TokensBefore
from shardmill.arrange.mixing import KEY_UNITS, MOST_TOKENS, Mixture, Stage
from shardmill.arrange.ordered import DocumentsOfSplit, Order, options_like, write_ordered
from shardmill.dataset import CACHE_SIZE, Dataset, open_dataset
from shardmill.errors import MismatchError, UsageError
from shardmill.run import default_memory
from shardmill.shards import Blended, blend
from shardmill.storage import scheme_of
from shardmill.units import parse_count
from shardmill.write import Progress, Result, SourceLines, json_line, open_destination, progress_of

if TYPE_CHECKING:
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
