"""Text that is shuffled on the way: encoded into a work folder first, and shuffled from there.

The work folder holds an ordinary dataset, which `prepare` makes and resumes as usual. The dataset is what `shuffle`
makes of it, with the manifest of a run over text: counts, sources and rejects are those of the first step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from shardmill.arrange.inputs import input_of
from shardmill.arrange.ordered import OrderedDocuments
from shardmill.arrange.shuffling import shuffled_order
from shardmill.dataset import Dataset, open_dataset
from shardmill.options import Val
from shardmill.run import Budget, EncodedText, open_outputs, trim_memory
from shardmill.shards import SPLITS
from shardmill.source_list import Sources
from shardmill.storage import Source
from shardmill.write import (
    MANIFEST,
    REJECTS,
    Batch,
    Destination,
    Done,
    FoundPart,
    MemoryUse,
    Producer,
    Progress,
    Run,
    fingerprint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from shardmill.run import Plan
    from shardmill.shards import ShardWriter
    from shardmill.write import Ledger, Result

Encode = Callable[[dict[str, Any], "Path", Progress], "Result"]
"""Makes the dataset of the first step: options that differ from those of the run, its folder, and progress."""
_WORK = "unshuffled"
_REJECTS_AT_ONCE = 1024


class ShuffledText(Producer):
    """A run over text whose batches come in random order."""

    def __init__(
        self,
        plan: Plan,
        outputs: list[ShardWriter],
        destination: Destination,
        progress: Progress,
        encode: Encode | None = None,
    ) -> None:
        """`encode`: who makes the dataset of the first step; None: this process."""
        self.facts = plan.facts()
        self._outputs, self._destination, self._progress = outputs, destination, progress
        self._work = destination.work_folder(_WORK)
        changed: dict[str, Any] = {"shuffle": False, "format": plan.options.format[:1], "tail": "keep"}
        self._options, self._plan = plan.options, replace(plan, options=replace(plan.options, **changed))
        self._encode = self._encode_here if encode is None else partial(encode, changed, self._work, progress)
        # What was read of the text is known from the first step; here, the work folder is all that is read.
        self.sources = Sources([Source(str(self._work), str(self._work), 0, "")])
        self.splits = ("train",) if Val.parse(plan.options.val).nothing else SPLITS
        self.budget = Budget(plan.options.memory_bytes, 1)
        self._ordered: OrderedDocuments | None = None
        self.second_progress = _SecondStep(progress)

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """Check for the tokens three times: in the work folder, in sorted runs, and in the dataset."""
        first = open_outputs(self._plan, self._work)
        EncodedText(self._plan, first).check_space(destination, [*first, *first, *outputs])

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch | None]]:
        if position is not None and position["ended"]:
            self.has_used_files = True
            yield iter([None])
            return
        # Where another machine goes on with a run in a store, there is no work folder, and this one encodes again.
        if position is None or not (self._work / MANIFEST).exists():
            self.engine = {"libraries": self._encode().engine}
            trim_memory()
        data = open_dataset(self._work)
        order = shuffled_order(data, self._options.seed)
        self._ordered = OrderedDocuments([input_of(data)], order, self._outputs, self._options, self._destination, None)
        if position is None:
            self._ordered.check_space(self._destination, self._outputs)
        self.second_progress.total = order.tokens
        with self._ordered.batches(position) as batches:
            # With `--val first:N` a document may be cut between the splits: then it is one in each.
            documents = sum(len(listed) for listed in order.splits.values())
            yield self._counted(batches, _found(data, documents))

    def _encode_here(self) -> Result:
        outputs = open_outputs(self._plan, self._work)
        text = EncodedText(self._plan, outputs)
        overwrite = self._options.overwrite
        return Run(text, Destination(self._work), outputs, self._progress, overwrite=overwrite).go()

    def _counted(self, batches: Iterator[Batch | None], found: FoundPart) -> Iterator[Batch | None]:
        """The batches; what was read of the text is counted with the last."""
        for batch in batches:
            self.has_used_files = batch is not None and batch.position is not None and batch.position["ended"]
            yield batch and batch._replace(found=[found] if self.has_used_files else [])

    def remarks(self, ledger: Ledger) -> dict[str, Any]:
        seed, made_of = self._options.seed, fingerprint(self._plan.facts())
        return {"arranged": {"order": "shuffle", "seed": seed, "from": made_of}}

    def delete_used_files(self) -> None:
        if self._ordered is not None:
            self._ordered.delete_used_files()
        if self._work.exists():
            shutil.rmtree(self._work)
        self.has_used_files = False


def _found(data: Dataset, documents: int) -> FoundPart:
    """What was read of the text, from the dataset of the first step."""
    manifest = data.manifest
    counted = {name: manifest[name] for name in ("empty", "rejected", "replaced")}
    return FoundPart(
        totals={"documents": documents, **counted, "fallbacks": 0},
        first=None,
        sources=manifest["sources"].blocks(),
        here={},
        odd={},
        rejects=_rejects(data),
        bytes=0,
        place="",
    )


def _rejects(data: Dataset) -> Iterator[list[bytes]]:
    if "rejects" not in data.manifest:
        return
    with (data.folder / REJECTS).open("rb") as lines:
        while some := list(islice(lines, _REJECTS_AT_ONCE)):
            yield some


class _SecondStep(Progress):
    """Shows the second step, once it has begun: the first shows its own progress."""

    def __init__(self, shown: Progress) -> None:
        self._shown, self.total = shown, 0
        self._begin: Callable[[], None] | None = None
        self._begun = False

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        self._begin = lambda: self._shown.begin(self.total, self._described(done), budget)

    def update(self, done: Done) -> None:
        if self._begin is not None:
            self._shown.status = self.status
            self._begin()
            self._begin, self._begun = None, True
        self._shown.update(self._described(done))

    def end(self) -> None:
        if self._begun:
            self._shown.end()

    def _described(self, done: Done) -> Done:
        return replace(done, bytes=done.tokens, parts="shuffling")
