"""The last of the three steps: makes the dataset from its parts, with the loop and writer of any other run.

Parts may still be made while the merge is under way: it asks for them in order, and uses each as soon as it is there.
With `--keep-parts` the files of the parts are those of the dataset; only tables and the manifest are written.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardmill import arguments
from shardmill.arrange import InputSplit, block_tokens, place_eot
from shardmill.cluster.parts import PlannedParts, StoredPart
from shardmill.cluster.place import Place, final_files, part_name
from shardmill.cluster.planning import PartBounds, PartPlan, find_part_plan, read_part_plan
from shardmill.documents import Bounds
from shardmill.errors import DamageError, OutputError, UsageError
from shardmill.options import Val
from shardmill.run import (
    Budget,
    EncodedText,
    Limit,
    Plan,
    TextPosition,
    ending,
    open_outputs,
    settle_allocator,
    surely_fits,
)
from shardmill.shards import SPLITS, ShardWriter
from shardmill.storage import Written
from shardmill.units import show_bytes
from shardmill.write import (
    Batch,
    BatchTokens,
    Destination,
    FinishedFiles,
    FoundInSource,
    FoundPart,
    Manifest,
    OutputEntry,
    Producer,
    Progress,
    Result,
    Run,
    Stream,
    json_line,
    open_destination,
    progress_of,
)

_log = logging.getLogger(__name__)
_USED = 1 << 30  # bytes of used parts that are removed together


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    max_bad: str | None = None,
    keep_parts: bool = False,
    progress: Progress | bool | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call resumes an earlier one.

    Parts are removed as they are used up. `max_bad`: in place of the plan's. `keep_parts`: UsageError unless the plan
    was made so.
    """
    shown = progress_of(progress)
    out = arguments.path("out", out)
    whole = find_part_plan(out)
    if keep_parts and whole is not None and not whole.keep:
        raise UsageError(
            "the parts of this plan hold no shards that could be kept",
            place=out,
            hint="merge them without it, or use another folder, and `shardmill plan --keep-parts`",
        )
    settle_allocator()
    if whole is None:
        destination = open_destination(out)
        if destination.has_manifest():
            with deleting(out):
                Place(out).clear()  # leftovers of a kill in the last step
            with destination.locked(overwrite=False):
                if manifest := destination.manifest():
                    return Result(destination.shown, manifest, already=True)
        whole = read_part_plan(out)
    parts = PlannedParts(whole)
    parts.check()
    return merge_parts(parts, whole, shown, memory=memory, max_bad=max_bad)


def merge_parts(parts: PlannedParts, whole: PartPlan, progress: Progress, **settings: Any) -> Result:
    """Merge parts as they come. `settings`: options of `prepare` that do not change the bytes."""
    destination = open_destination(whole.out, whole.options.get("cache"))
    plan, _ = whole.load(None, {name: value for name, value in settings.items() if value is not None})
    outputs = open_outputs(plan, destination.folder)
    merged = (KeptParts if whole.keep else MergedParts)(whole, plan, outputs, parts)
    result = Run(merged, destination, outputs, progress).go()
    parts.close()
    remove_plan(whole)
    return result


def remove_plan(whole: PartPlan) -> None:
    """Remove the plan and the parts of a dataset that is complete."""
    with deleting(whole.out):
        whole.place.clear()


@contextmanager
def deleting(out: str) -> Iterator[None]:
    """Only warn if parts that are not needed any more cannot be deleted: some stores do not allow it."""
    try:
        yield
    except OutputError as why:
        _log.warning("warning: what is left of the parts in %s cannot be deleted: %s", out, why.message)


@dataclass
class MergePosition:
    """How far a merge has come: always to the end of a part, or into text."""

    part: int = 0
    begun: bool = False
    """Earlier parts have read some of its first source."""
    records: int = 0
    """Records of that source in earlier parts."""
    split: str = ""
    """Of the document that is open; empty: there is none."""
    documents: int = 0
    tokens: int = 0
    """Documents and tokens so far, for `--limit`."""
    text: dict[str, Any] | None = None
    """The position in the text of this part, where that is read."""

    def go_on(self, manifest: Manifest) -> None:
        """Go on to the next part. `manifest`: that of the part which ends."""
        about, ended = manifest["part"], len(manifest["sources"]) > 0
        opened = about["open"]
        self.part += 1
        self.records = opened.get("records", 0) + (0 if ended else self.records)
        self.begun = bool(opened) or (self.begun and not ended)
        self.documents += manifest["documents"]
        if about["begins"] is not None:
            self.split = about["ends"]


class MergedParts(Producer):
    """Produces the rows of all parts in order."""

    def __init__(self, whole: PartPlan, plan: Plan, outputs: list[ShardWriter], parts: PlannedParts) -> None:
        """`plan`: with all sources."""
        val, options = Val.parse(plan.options.val), plan.options
        self._whole, self._plan, self._outputs, self._parts = whole, plan, outputs, parts
        self.facts, self.sources = whole.facts(plan), plan.sources
        self.splits = ("train",) if val.nothing else SPLITS
        self.first, self.bad_allowed = val.first, options.bad_allowed
        self.budget = Budget(options.memory_bytes, 1, beside=sum(output.memory_bytes for output in outputs))
        self._block = block_tokens(self.budget, plan.tokenizer.dtype)
        self._eots = tuple(dict.fromkeys(output.eot for output in outputs))
        self._used: list[StoredPart] = []
        self._used_bytes = 0

    @property
    def engine(self) -> dict[str, str]:  # type: ignore[override]
        """That of the first part, for which this waits: by then the dataset is locked, and its space was checked."""
        engine: dict[str, str] = self._parts.manifest(0)["part"]["engine"]
        return engine

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """Check the disk. Parts are removed once used, but those that files are being written from are still there."""
        if not self._parts.complete:  # there is only the text to judge by, as in a run without parts
            if not surely_fits(self._plan, destination, outputs):
                EncodedText(self._plan, outputs).check_space(destination, outputs)
            return
        need, stored, largest = 0.0, 0, 0
        for part in self._whole.parts:
            manifest = self._parts.manifest(part.number)
            size = sum(file["bytes"] for file in final_files(manifest))
            stored, largest = stored + size, max(largest, size)
            tokens = _tokens_of(manifest)
            need += sum(destination.space(output, tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        more = max(0, need + min(2 * largest + _USED, stored) - stored)
        _log.warning("note: up to %s of disk are needed besides the parts, which are removed as they are used up",
                     show_bytes(more))  # fmt: skip
        destination.check_free(more, hint="free some space and run the same command again")

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch | None]]:
        with closing(self._batches(MergePosition(**position or {}))) as batches:
            yield batches

    def _batches(self, at: MergePosition) -> Generator[Batch | None, None, None]:
        """Yield all documents. A part in which `--limit` or `--val first:N` ends is read from its text."""
        for part in self._whole.parts[at.part :]:
            manifest = self._parts.manifest(part.number)
            limited = self._reaches_limit(at, manifest)
            if limited or self._may_cut_a_stream(at, manifest):
                yield from self._text(at, part, to_the_end=limited)
                if limited:
                    return
                continue
            stored = StoredPart(self._whole.place, part.number, manifest, at.records)
            # A part is recorded as a whole, when its checksums have been compared.
            try:
                yield from self._documents(at, stored, manifest)
                stored.check()
            except DamageError:
                raise stored.damaged() from None
            found = _found_in(part, manifest, stored, at.records, self.sources[part.first].name)
            at.go_on(manifest)
            self._used.append(stored)
            self._used_bytes += part.bytes
            self.has_used_files = self._used_bytes >= _USED
            yield Batch(None, [found], asdict(at))

    def _text(self, at: MergePosition, part: PartBounds, *, to_the_end: bool) -> Iterator[Batch]:
        """Yield the documents of a part, or of it and all later parts, from the text."""
        begin = TextPosition(part.first, at.begun, records=at.records, split=at.split)
        begin = replace(begin, documents=at.documents, tokens=at.tokens)
        last, end = (len(self.sources), 0) if to_the_end else (part.last, part.end)
        text = _TextOfPart(Bounds(part.first, part.byte, last, end), self._plan, self._outputs)
        with text.batches(at.text or asdict(begin)) as batches:
            for batch in batches:
                position = batch.position and {**asdict(at), "text": batch.position}
                yield batch._replace(position=position)
        done = text.position
        at.part, at.text, at.begun, at.records = part.number + 1, None, done.begun, done.records
        at.split, at.documents, at.tokens = done.split, done.documents, done.tokens
        yield Batch(None, [], asdict(at))

    def _documents(self, at: MergePosition, stored: StoredPart, manifest: Manifest) -> Iterator[Batch]:
        splits, about = list(stored.splits()), manifest["part"]
        yield from self._border(at, splits, about)
        for split in splits:
            for _, (rows, tokens) in split.blocks(0, self._block):
                streams = place_eot(split.name, rows, tokens, split.eot, split.eot_id, self._eots)
                at.tokens += _tokens_in(streams[self._eots[0]])
                yield Batch(BatchTokens(streams), [], None)
                self._parts.go_on()

    def _border(self, at: MergePosition, splits: list[InputSplit], about: dict[str, Any]) -> Iterator[Batch]:
        """End the open document if the part goes on with the same stream in another split, and begin one there.

        So no text continues where it did not.
        """
        dtype, eot_id = self._plan.tokenizer.dtype, self._plan.tokenizer.eot or 0
        begins = about["begins"]
        if begins and at.split and begins != at.split:
            (split,) = (split for split in splits if split.name == begins)
            place = (about["bounds"][0], 0)
            if len(split.tokens) and split.table is not None:
                (first,) = split.table.overlapping(0, 1, 1)[1]
                place = int(first["source"]), int(first["record"])
            streams = ending(self._eots, at.split, dtype, eot_id, begins, place)
            at.split, at.documents = begins, at.documents + 1
            at.tokens += _tokens_in(streams[self._eots[0]])
            yield Batch(BatchTokens(streams), [FoundInSource(place[0], documents=1)], None)
        if about["closed"]:
            streams = ending(self._eots, begins, dtype, eot_id)
            yield Batch(BatchTokens(streams), [], None)

    def delete_used_files(self) -> None:
        with deleting(self._whole.out):
            while self._used:
                self._used.pop().delete()
        self._used.clear()
        self._used_bytes, self.has_used_files = 0, False

    def _reaches_limit(self, at: MergePosition, manifest: Manifest) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        limit = Limit(documents and documents - at.documents, tokens and tokens - at.tokens)
        # One document may end at the seam before the part, and one be ended in it by the limit.
        return limit.reached_by(manifest["documents"] + 1, _tokens_of(manifest) + 2)

    def _may_cut_a_stream(self, at: MergePosition, manifest: Manifest) -> bool:
        """Whether `--val first:N` may end inside a stream of text here.

        Only its spans, which a part does not list, say how much of its text is in val.
        """
        if not self.first:
            return False
        marks = 0 if len(self._eots) == 1 else manifest["documents"] + at.documents
        after = at.tokens + _tokens_of(manifest) + 2 + marks
        if not at.tokens - marks < self.first <= after:
            return False
        about = manifest["part"]
        return bool(about["begins"] or about["ends"]) or any(one["unit"] == "byte" for one in manifest["sources"])


class KeptParts(MergedParts):
    """Produces no rows: counts the files of the parts, and gives them their names."""

    def __init__(self, whole: PartPlan, plan: Plan, outputs: list[ShardWriter], parts: PlannedParts) -> None:
        super().__init__(whole, plan, outputs, parts)
        for output in outputs:
            output.shared = True

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """Check nothing: the files are there."""

    def _batches(self, at: MergePosition) -> Generator[Batch | None, None, None]:
        files: list[tuple[int, str, Written]] = []
        for part in self._whole.parts:
            manifest = self._parts.manifest(part.number)
            stored = StoredPart(self._whole.place, part.number, manifest, at.records)
            finished = _finished_files(manifest, stored)
            files += finished.files
            if part.number >= at.part:
                found = _found_in(part, manifest, stored, at.records, self.sources[part.first].name)
                at.go_on(manifest)
                yield Batch(finished, [found], asdict(at))
        for i, output in enumerate(self._outputs):
            mine, position = [file for file in files if file[0] == i], output.position()
            for split in {split for _, split, _ in mine}:
                position[split][0] = position[split][0] or 1  # the split has files already
            output.restore(position, [written for _, _, written in mine])
        self.has_used_files = True
        yield None

    def delete_used_files(self) -> None:
        """Give the files of the parts their names in the dataset."""
        self._whole.place.adopt(
            {part_name(part.number): final_files(self._parts.manifest(part.number)) for part in self._whole.parts}
        )
        for output in self._outputs:  # from here on it writes what belongs to whole splits
            output.shared = False
        self.has_used_files = False


class _TextOfPart(EncodedText):
    """Encodes the text within some bounds."""

    def __init__(self, bounds: Bounds, plan: Plan, outputs: list[ShardWriter]) -> None:
        super().__init__(plan, outputs)
        self._bounds = bounds


def _tokens_of(described: OutputEntry) -> int:
    return sum(split["tokens"] for split in described["splits"].values())


def _tokens_in(stream: Stream) -> int:
    return sum(map(len, stream.tokens.values()))


def _finished_files(manifest: Manifest, stored: StoredPart) -> FinishedFiles:
    """The files of a part that are those of the dataset, and what they hold."""
    described = list(enumerate((manifest, *manifest.get("also", ()))))
    return FinishedFiles(
        [
            (i, name, Written(**entry))
            for i, one in described
            for name, split in one["splits"].items()
            for entry in split["files"]
        ],
        [
            {
                name: {"tokens": split["tokens"], "documents": split["documents"], "bytes": split["bytes"]}
                for name, split in one["splits"].items()
            }
            for _, one in described
        ],
        stored.documents(),
    )


def _found_in(part: PartBounds, manifest: Manifest, stored: StoredPart, earlier: int, place: str) -> FoundPart:
    """What a part has found. `earlier`: records of its first source that are in other parts. `place`: for errors."""
    about = manifest["part"]
    # Earlier parts may hold some of the first source, and later parts some of the last.
    first = next(iter(manifest["sources"]), None)
    renumbered = (first or about["open"]).get("rejected", 0) if earlier else 0
    return FoundPart(
        totals={
            "documents": manifest["documents"],
            "empty": manifest["empty"],
            "rejected": manifest["rejected"],
            "replaced": manifest.get("replaced", 0),
            "fallbacks": about["fallbacks"],
        },
        first=first,
        sources=manifest["sources"].blocks() if first else (),
        here={name: count for name, count in about["open"].items() if name != "records"},
        odd=about.get("odd", {}),
        rejects=_rejects(stored, earlier, renumbered),
        bytes=part.bytes,
        place=place,
    )


def _rejects(stored: StoredPart, earlier: int, renumbered: int) -> Iterator[list[bytes]]:
    """The lines of the rejects of a part; the first `renumbered` are of a source that begins in another part."""
    for lines in stored.rejects():
        yield [_renumbered(line, earlier) for line in lines[:renumbered]] + lines[renumbered:]
        renumbered -= min(renumbered, len(lines))


def _renumbered(line: bytes, earlier: int) -> bytes:
    """Return the line of a reject with its number raised by `earlier`."""
    record = json.loads(line)
    return json_line({key: value + earlier if key in ("line", "row") else value for key, value in record.items()})
