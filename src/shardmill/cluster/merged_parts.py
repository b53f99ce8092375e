"""The rows of all parts in order, for the same loop and writer as in any other run.

Parts may still be made while the merge is under way: it asks for them in order, and uses each as soon as it is there.
With `--keep-parts` the files of the parts are those of the dataset, and only the manifest is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from shardmill.cluster.part_files import StoredPart
from shardmill.cluster.parts import PlannedParts
from shardmill.cluster.place import final_files, part_name
from shardmill.cluster.planning import PartBounds, PartPlan, facts_of
from shardmill.documents import Bounds
from shardmill.errors import OutputError
from shardmill.options import Val
from shardmill.run import (
    Batch,
    BatchTokens,
    Budget,
    Destination,
    EncodedText,
    FinishedFiles,
    FoundInSource,
    FoundPart,
    Limit,
    Plan,
    Producer,
    Stream,
    TextPosition,
    json_line,
    open_after,
    seam,
    surely_fits,
)
from shardmill.shards import SPLITS, Output
from shardmill.storage import Written
from shardmill.units import show_bytes

_log = logging.getLogger(__name__)
_USED = 1 << 30  # bytes of used parts that are removed together


@contextmanager
def deleting(out: str) -> Iterator[None]:
    """Only warn if parts that are not needed any more cannot be deleted: some stores do not allow it."""
    try:
        yield
    except OutputError as why:
        _log.warning("warning: what is left of the parts in %s cannot be deleted: %s", out, why.message)


@dataclass
class MergePosition:
    """How far a merge has come."""

    part: int = 0
    inside: dict[str, int] = field(default_factory=dict)
    """Rows and tokens of that part that are written."""
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
    """The position in the text from this part on, where it is read up to `--limit`."""

    def go_on(self, manifest: dict[str, Any]) -> None:
        """Go on to the next part. `manifest`: that of the part which ends."""
        opened, ended = manifest["part"]["open"], len(manifest["sources"]) > 0
        self.part, self.inside = self.part + 1, {}
        self.records = opened.get("records", 0) + (0 if ended else self.records)
        self.begun = bool(opened) or (self.begun and not ended)
        self.documents += manifest["documents"]


class MergedParts(Producer):
    """Produces the rows of all parts in order."""

    def __init__(self, whole: PartPlan, plan: Plan, outputs: list[Output], parts: PlannedParts) -> None:
        """`plan`: with all sources."""
        val, options = Val.parse(plan.options.val), plan.options
        self._whole, self._plan, self._outputs, self._parts = whole, plan, outputs, parts
        self.facts, self.sources = facts_of(plan, whole.keep), plan.sources
        self.splits = ("train",) if val.nothing else SPLITS
        self.has_table = not whole.keep
        self.first, self.bad_allowed = val.first, options.bad_allowed
        self.budget = Budget(None, 1)
        self.engine = parts.manifest(0)["part"]["engine"]
        self._eots = tuple(dict.fromkeys(output.eot for output in outputs))
        self._used: list[StoredPart] = []
        self._used_bytes = 0

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
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
            need += sum(destination.space(output, _bytes_of(manifest, output), 0)[0] for output in outputs)
        more = max(0, need + min(2 * largest + _USED, stored) - stored)
        _log.warning("note: up to %s of disk are needed besides the parts, which are removed as they are used up",
                     show_bytes(more))  # fmt: skip
        destination.check_free(more, hint="free some space and run the same command again")

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch | None]]:
        with closing(self._batches(MergePosition(**position or {}))) as batches:
            yield batches

    def _batches(self, at: MergePosition) -> Generator[Batch | None, None, None]:
        """Yield all rows. A part inside which `--limit` is reached is read from its text, as on one machine."""
        eot_id = self._plan.tokenizer.eot or 0
        for part in self._whole.parts[at.part :]:
            manifest = self._parts.manifest(part.number)
            if at.text is None and self._reaches_limit(at, manifest):
                text = TextPosition(part.first, at.begun, records=at.records, split=at.split)
                at.text = asdict(replace(text, documents=at.documents, tokens=at.tokens))
            if at.text is not None:
                with _TextOfPart(part, len(self.sources), self._plan, self._outputs).batches(at.text) as batches:
                    for batch in batches:
                        text_position = batch.position and {**asdict(at), "text": batch.position}
                        yield batch._replace(position=text_position)
                return
            stored = StoredPart(self._whole.place, part.number, manifest, self._plan.tokenizer.dtype)
            for streams, inside in stored.streams(at.inside, at.records, self._eots):
                rows = streams[self._eots[0]].rows
                if before := seam(streams, at.split, eot_id):
                    at.split, at.documents = "train" if at.split == "val" else "val", at.documents + 1
                    at.tokens += _tokens_in(before[self._eots[0]])
                    yield Batch(BatchTokens(before), [FoundInSource(int(rows.source[0]), documents=1)], asdict(at))
                at.split, at.inside = open_after(rows, at.split), inside
                at.tokens += _tokens_in(streams[self._eots[0]])
                yield Batch(BatchTokens(streams), [], asdict(at))
                self._parts.go_on()
            found = _found_in(part, manifest, stored, at.records)
            at.go_on(manifest)
            self._used.append(stored)
            self._used_bytes += part.bytes
            self.has_used_files = part is self._whole.parts[-1] or self._used_bytes >= _USED
            yield Batch(None, [found], asdict(at))

    def delete_used_files(self) -> None:
        with deleting(self._whole.out):
            while self._used:
                self._used.pop().delete()
        self._used.clear()
        self._used_bytes, self.has_used_files = 0, False

    def _reaches_limit(self, at: MergePosition, manifest: dict[str, Any]) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        limit = Limit(documents and documents - at.documents, tokens and tokens - at.tokens)
        # One document may end at the seam before the part, and one be ended in it by the limit.
        return limit.reached_by(manifest["documents"] + 1, _tokens_of(manifest) + 2)


class KeptParts(MergedParts):
    """Produces no rows: counts the files of the parts, and gives them their names."""

    def __init__(self, whole: PartPlan, plan: Plan, outputs: list[Output], parts: PlannedParts) -> None:
        super().__init__(whole, plan, outputs, parts)
        for output in outputs:
            output.shared = True

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """Check nothing: the files are there."""

    def _batches(self, at: MergePosition) -> Generator[Batch | None, None, None]:
        files: list[tuple[int, str, Written]] = []
        for part in self._whole.parts:
            manifest = self._parts.manifest(part.number)
            finished = _finished_files(manifest)
            files += finished.files
            if part.number >= at.part:
                stored = StoredPart(self._whole.place, part.number, manifest, self._plan.tokenizer.dtype)
                found = _found_in(part, manifest, stored, at.records)
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
    """Encodes the text from the beginning of a part up to `--limit`."""

    def __init__(self, part: PartBounds, sources: int, plan: Plan, outputs: list[Output]) -> None:
        super().__init__(plan, outputs)
        self._bounds = Bounds(part.first, part.byte, sources, 0)


def _tokens_of(described: dict[str, Any]) -> int:
    return sum(split["tokens"] for split in described["splits"].values())


def _bytes_of(manifest: dict[str, Any], output: Output) -> int:
    """Return the bytes that the tokens of a part take in the files of an output."""
    streams = (one for one in (manifest, *manifest.get("also", ())) if one["eot"] == output.eot)
    return sum(map(_tokens_of, streams)) * output.dtype.itemsize


def _tokens_in(stream: Stream) -> int:
    return sum(map(len, stream.tokens.values()))


def _finished_files(manifest: dict[str, Any]) -> FinishedFiles:
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
                name: {key: split[key] for key in ("tokens", "documents", "bytes")}
                for name, split in one["splits"].items()
            }
            for _, one in described
        ],
    )


def _found_in(part: PartBounds, manifest: dict[str, Any], stored: StoredPart, earlier: int) -> FoundPart:
    """What a part has found. `earlier`: records of its first source that are in other parts."""
    about = manifest["part"]
    names = ("documents", "empty", "rejected", "replaced")
    # Earlier parts may hold some of the first source, and later parts some of the last.
    first = next(iter(manifest["sources"]), None)
    renumbered = (first or about["open"]).get("rejected", 0) if earlier else 0
    return FoundPart(
        totals={**{name: manifest[name] for name in names}, "fallbacks": about["fallbacks"]},
        first=first,
        sources=manifest["sources"].blocks() if first else (),
        here={name: count for name, count in about["open"].items() if name != "records"},
        odd=about.get("odd", {}),
        rejects=_rejects(stored, earlier, renumbered),
        bytes=part.bytes,
        place=f"part {part.number:,}",
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
