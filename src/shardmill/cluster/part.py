"""Makes one part of a plan. Any process can, given its number; made twice, it is the same, and one copy is kept."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import arguments
from shardmill.cluster.place import part_manifest, part_name
from shardmill.cluster.planning import PartBounds, PartPlan, read_part_plan
from shardmill.documents import Bounds
from shardmill.errors import BusyError, UsageError
from shardmill.run import EncodedChunks, EncodedText, Plan, TextBatches
from shardmill.shards import ShardWriter
from shardmill.tokens import Engine, Tokenizer
from shardmill.write import Batch, BatchTokens, Destination, Ledger, Manifest, Progress, Run, library_facts, progress_of


@dataclass(frozen=True)
class PartResult:
    """The result of `make_part`."""

    number: int
    made: bool
    """False: it was there already, or another process was faster."""
    bytes: int
    documents: int
    tokens: int
    seconds: float = 0.0
    peak_memory: int = 0


@dataclass
class LoadedTokenizer:
    """The tokenizer of a plan, and the engines of a part with their filled caches, kept for the next part."""

    tokenizer: Tokenizer | None = None
    engines: list[Engine] = field(default_factory=list)


def make_part(
    out: str | os.PathLike[str],
    number: int,
    *,
    memory: int | str | None = None,
    workers: int | None = None,
    cache: str | None = None,
    max_bad: str | None = None,
    progress: Progress | bool | None = None,
    sent: Callable[[int], None] | None = None,
    loaded: LoadedTokenizer | None = None,
) -> PartResult:
    """Make one part of the plan at `out`. The same call resumes an earlier one of this machine.

    `sent`: called with the size of each block of the finished part that goes to a store. `loaded`: what an earlier
    part of this process has left.
    """
    shown = progress_of(progress)
    whole = read_part_plan(out)
    if cache is not None:
        whole = replace(whole, options={**whole.options, "cache": cache})
    number = arguments.number("number", number, least=0)
    if number >= len(whole.parts):
        raise UsageError(f"there is no part {number:,}", hint=f"the parts are 0 to {len(whole.parts) - 1:,}")
    place, began = whole.place, time.monotonic()
    manifest, made, peak = part_manifest(place, number), False, 0
    if manifest is None:
        given = {"memory": memory, "workers": workers, "cache": cache, "max_bad": max_bad}
        settings = {name: value for name, value in given.items() if value is not None}
        folder, manifest, peak = _make(whole, whole.parts[number], settings, shown, loaded or LoadedTokenizer())
        made = place.publish(part_name(number), folder, manifest, final=bool(whole.keep), sent=sent)
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    seconds = time.monotonic() - began
    return PartResult(number, made, whole.parts[number].bytes, manifest["documents"], tokens, seconds, peak)


def _make(
    whole: PartPlan, part: PartBounds, settings: dict[str, Any], progress: Progress, loaded: LoadedTokenizer
) -> tuple[Path, Manifest, int]:
    """Return the folder in which the part was made, its manifest, and the memory that it took.

    Another process that is at work on it may be frozen, so it is left alone.
    """
    for attempt in itertools.count():
        folder = whole.place.work(part_name(part.number), attempt)
        plan, bounds = whole.load(part, settings, loaded.tokenizer)
        loaded.tokenizer = plan.tokenizer
        outputs = whole.open_part(part.number, plan, folder)
        try:
            text = PartText(whole, part, plan, bounds, outputs, loaded.engines)
            result = Run(text, Destination(folder), outputs, progress).go()
        except BusyError:
            continue
        shutil.rmtree(folder / ".shardmill", ignore_errors=True)
        return folder, result.manifest, result.peak_memory
    raise AssertionError


class PartText(EncodedText):
    """Encodes the text within a part's bounds. The merge settles what counts across parts."""

    def __init__(
        self,
        whole: PartPlan,
        part: PartBounds,
        plan: Plan,
        bounds: Bounds,
        outputs: list[ShardWriter],
        engines: list[Engine],
    ) -> None:
        super().__init__(plan, outputs, engines=engines)
        self._bounds = bounds
        self.first = 0
        if part.number:  # only the first part begins where a run begins: the merge judges the others
            self.bad_allowed = None
        self._about = {"number": part.number, "plan": whole.fingerprint, "bounds": list(part[1:5])}
        self.facts = {**self.facts, "options": {**self.facts["options"], "part": self._about}}
        self._border: dict[str, Any] = {"begins": None, "closed": False}

    def remarks(self, ledger: Ledger) -> dict[str, Any]:
        """What else the merge needs: the engine, how far the last source was read, and documents cut at the borders.

        `begins`: the split in which the first row continues a document of an earlier part; empty: it begins one; None:
        there are no rows. `closed`: that document ends there, without tokens. `ends`: the split of the document that
        continues in the next part.
        """
        counts, at = ledger.counts, self.position
        opened = {"records": at.records, **counts.here} if at.begun else {}
        return {"part": {**self._about, **self._border, "ends": at.split, "open": opened, "odd": counts.odd,
                         "engine": self.engine, "fallbacks": counts.totals["fallbacks"],
                         **library_facts(self.plan.options.format)}}  # fmt: skip

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch]]:
        """The batches of the text; their positions also hold what is known of the first row."""
        text = None if position is None else position["text"]
        self._border = self._border if position is None else position["border"]
        with super().batches(text) as batches:
            yield map(self._noted, batches)

    def _noted(self, batch: Batch) -> Batch:
        if self._border["begins"] is None and isinstance(batch.tokens, BatchTokens):
            rows = next(iter(batch.tokens.streams.values())).rows
            filled = np.flatnonzero((rows.length > 0) | rows.opens | rows.closes)
            if len(filled):
                first = filled[0]
                begins = "" if rows.opens[first] else "val" if rows.val[first] else "train"
                closed = bool(begins and rows.closes[first] and not rows.length[first])
                self._border = {"begins": begins, "closed": closed}
        if batch.position is None:
            return batch
        return batch._replace(position={"text": batch.position, "border": self._border})

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """Check nothing: the merge checks the space for all parts."""

    def _limited(self, encoded: Iterator[EncodedChunks], made: TextBatches) -> Iterator[Batch]:
        return self._unlimited(encoded, made)
