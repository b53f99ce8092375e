"""The rows of all parts in order, for the same loop and writer as in any other run.

Parts may still be made while the merge is under way: it asks for them in order, and uses each as soon as it is there.
With `--keep-parts` the files of the parts are those of the dataset, and only the manifest is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from shardmill.cluster.part_files import StoredPart
from shardmill.cluster.parts import PlannedParts
from shardmill.cluster.place import final_files, part_name
from shardmill.cluster.planning import PartBounds, PartPlan, facts_of
from shardmill.documents import Bounds, Position
from shardmill.errors import OutputError
from shardmill.options import Val
from shardmill.run import (
    Batch,
    Budget,
    Destination,
    EncodedText,
    Limit,
    Plan,
    Producer,
    Writer,
    json_line,
    settled,
    surely_fits,
    with_odd,
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
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        with closing(self._batches(writer)) as batches:
            yield batches

    def _batches(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield all rows. A part inside which `--limit` is reached is read from its text, as on one machine."""
        state = writer.state
        parts = self._whole.parts[state.merge.get("part", 0) :]
        writer.pass_bytes(self._whole.bytes - sum(part.bytes for part in parts))
        used: list[StoredPart] = []
        used_bytes = 0
        for part in parts:
            manifest = self._parts.manifest(part.number)
            if "text" in state.merge or self._reaches_limit(writer, manifest):
                if "text" not in state.merge:
                    yield Batch([], [], {}, after=partial(_enter_text, part))
                with _TextOfPart(part, len(self.sources), self._plan, self._outputs).batches(writer) as batches:
                    yield from batches
                return
            stored = StoredPart(self._whole.place, part.number, manifest, self._plan.tokenizer.dtype)
            eot_id = self._plan.tokenizer.eot or 0
            for batch in settled(stored.batches(dict(state.merge), self._eots), state.open, eot_id):
                yield batch
                self._parts.go_on()
            yield Batch([], [], {}, after=partial(_end_part, part, manifest, stored))
            used.append(stored)
            used_bytes += part.bytes
            if part is parts[-1] or used_bytes >= _USED:
                writer.checkpoints.keep(now=True)
                with deleting(self._whole.out):
                    while used:
                        used.pop().delete()
                used, used_bytes = [], 0

    def _reaches_limit(self, writer: Writer, manifest: dict[str, Any]) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        done = writer.done()
        limit = Limit(documents and documents - done.documents, tokens and tokens - done.tokens)
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

    def _batches(self, writer: Writer) -> Generator[Batch, None, None]:
        for part in self._whole.parts[writer.state.merge.get("part", 0) :]:
            manifest = self._parts.manifest(part.number)
            yield Batch([], [], {}, after=partial(self._take_files, part, manifest))
        for i, output in enumerate(self._outputs):
            files, position = [file for file in writer.checkpoints.files if file[0] == i], output.position()
            for split in {split for _, split, _ in files}:
                position[split][0] = position[split][0] or 1  # the split has files already
            output.restore(position, [written for _, _, written in files])
        writer.checkpoints.keep(now=True)
        self._whole.place.adopt(
            {part_name(part.number): final_files(self._parts.manifest(part.number)) for part in self._whole.parts}
        )
        for output in self._outputs:  # from here on it writes what belongs to whole splits
            output.shared = False

    def _take_files(self, part: PartBounds, manifest: dict[str, Any], writer: Writer) -> None:
        """Take the files of a part over into the dataset."""
        for i, described in enumerate((manifest, *manifest.get("also", ()))):
            for name, split in described["splits"].items():
                for key, count in writer.state.counts[i][name].items():
                    writer.state.counts[i][name][key] = count + split[key]
                writer.checkpoints.adopt([(i, name, Written(**entry)) for entry in split["files"]])
        stored = StoredPart(self._whole.place, part.number, manifest, self._plan.tokenizer.dtype)
        _end_part(part, manifest, stored, writer)


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


def _enter_text(part: PartBounds, writer: Writer) -> None:
    """Go on with the text of this part. Records of its first source are counted from those of earlier parts."""
    state = writer.state
    state.source, state.position = part.first, Position(records=state.merge.get("records", 0))
    state.merge = {"part": part.number, "text": 1}


def _end_part(part: PartBounds, manifest: dict[str, Any], stored: StoredPart, writer: Writer) -> None:
    """Count what a part found, and go on to the next."""
    state, opened = writer.state, manifest["part"]["open"]
    for name in state.totals:
        state.totals[name] += manifest["part"]["fallbacks"] if name == "fallbacks" else manifest[name]
    earlier = state.merge.get("records", 0)
    # Earlier parts may hold some of the first source, and later parts some of the last.
    first = next(iter(manifest["sources"]), None)
    for number, block in enumerate(manifest["sources"].blocks() if first else ()):
        if number == 0 and first:
            rest = block.partition(b"\n")[2]
            counts = {name: first[name] + state.here[name] for name in state.here}
            writer.add_odd(first.get("odd", {}))
            block = json_line({**first, **counts, **with_odd(state.odd)}) + rest
            state.here, state.odd = dict.fromkeys(state.here, 0), {}
        writer.add_sources(block)
    bad = (first or opened).get("rejected", 0) if earlier else 0
    for name in state.here:
        state.here[name] += opened.get(name, 0)
    writer.add_odd(manifest["part"].get("odd", {}))
    for lines in stored.rejects():
        writer.add_rejects([_renumbered(line, earlier) for line in lines[:bad]] + lines[bad:])
        bad -= min(bad, len(lines))
    records = opened.get("records", 0) + (0 if first else earlier)
    state.merge = {"part": part.number + 1, "records": records}
    writer.pass_bytes(part.bytes)
    writer.check_rejects(f"part {part.number:,}")
    writer.check_invalid(f"part {part.number:,}")


def _renumbered(line: bytes, earlier: int) -> bytes:
    """Return the line of a reject with its number raised by `earlier`."""
    record = json.loads(line)
    return json_line({key: value + earlier if key in ("line", "row") else value for key, value in record.items()})
