"""The rows of all parts in order, for the same loop and writer as in any other run.

The files of a format with shards are written in pieces, several at a time (layout.py). A format with one file a split
is written by one process, and so is a dataset with `--limit`. With `--keep-parts` only the manifest is written.
"""

from __future__ import annotations

import collections
import json
import logging
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from shardmill.cluster.layout import PIECE_BYTES, PIECES, Layout, Pieces, piece_name, read_layout
from shardmill.cluster.part_files import RowSettings, StoredPart
from shardmill.cluster.place import final_files, part_name
from shardmill.cluster.planning import PartBounds, PartPlan, facts_of
from shardmill.documents import Bounds, Position
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
    output_orders,
)
from shardmill.shards import SPLITS, Output
from shardmill.storage import Written, writing_temporary_files
from shardmill.units import show_bytes

_log = logging.getLogger(__name__)
_MOST_PIECES = 10_000  # about: every process that makes a piece reads the list of them
_USED = 1 << 30  # bytes of used parts that are removed together


class MergedParts(Producer):
    """Produces the rows of all parts in order."""

    def __init__(
        self,
        whole: PartPlan,
        manifests: list[dict[str, Any]],
        plan: Plan,
        outputs: list[Output],
        make: Callable[[Layout], None],
        at_once: int,
    ) -> None:
        """`manifests`: those of all parts. `make`: makes the missing pieces, `at_once` of them at a time."""
        val, options = Val.parse(plan.options.val), plan.options
        self._whole, self._plan, self._outputs, self._make, self._pieces_at_once = whole, plan, outputs, make, at_once
        self.facts, self.sources = facts_of(plan, whole.keep), plan.sources
        self.splits = ("train",) if val.nothing else SPLITS
        self.first, self.bad_allowed = val.first, options.bad_allowed
        self.budget = Budget(None, 1)
        self._manifests = manifests
        self.engine = self._manifests[0]["part"]["engine"]
        spans = options.separator is None and not (val.nothing and options.limit is None)
        self._settings = RowSettings(plan.tokenizer.dtype.name, spans, val.first)
        self._eots = tuple(dict.fromkeys(output.eot for output in outputs))
        self._in_pieces = options.limit is None and all(output.file_tokens for output in outputs)
        if whole.keep or (self._in_pieces and read_layout(whole.place) is not None):
            self._write_nothing()

    def _write_nothing(self) -> None:
        for output in self._outputs:
            output.only = {}

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """Check the disk. Parts are removed once used, but those that files are being written from are still there."""
        if self._whole.keep:
            return
        tokens: collections.Counter[str] = collections.Counter()
        for manifest in self._manifests:
            for one in (manifest, *manifest.get("also", ())):
                tokens[one["eot"]] += _tokens_of(one)
        stored = [sum(file["bytes"] for file in final_files(manifest)) for manifest in self._manifests]
        used = self._pieces_at_once * self._piece_bytes() if self._in_pieces else _USED
        waiting = min(2 * max(stored) + used, sum(stored))
        need = sum(destination.space(output, tokens[output.eot] * output.dtype.itemsize, 0)[0] for output in outputs)
        more = max(0, need + waiting - sum(stored))
        _log.warning("note: up to %s of disk are needed besides the parts, which are removed as they are used up",
                     show_bytes(more))  # fmt: skip
        destination.check_free(more, hint="free some space and run the same command again")

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        way = self._kept if self._whole.keep else self._laid_out if self._in_pieces else self._at_once
        with closing(way(writer)) as batches:
            yield batches

    def _kept(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield no rows: count the files of the parts, and give them their names."""
        for part in self._whole.parts[writer.state.merge.get("part", 0) :]:
            yield Batch([], [], {}, after=partial(self._take_files, part))
        for i, output in enumerate(self._outputs):
            files, position = [file for file in writer.checkpoints.files if file[0] == i], output.position()
            for split in {split for _, split, _ in files}:
                position[split][0] = position[split][0] or 1  # the split has files already
            output.restore(position, [written for _, _, written in files])
        writer.checkpoints.keep(now=True)
        self._whole.place.adopt({part_name(n): final_files(one) for n, one in enumerate(self._manifests)})
        for output in self._outputs:
            output.only = None

    def _take_files(self, part: PartBounds, writer: Writer) -> None:
        """Take the files of a part over into the dataset."""
        manifest = self._manifests[part.number]
        for i, described in enumerate((manifest, *manifest.get("also", ()))):
            for name, split in described["splits"].items():
                for key, count in writer.state.counts[i][name].items():
                    writer.state.counts[i][name][key] = count + split[key]
                writer.checkpoints.adopt([(i, name, Written(**entry)) for entry in split["files"]])
        _end_part(part, manifest, self._stored(part), writer)

    def _at_once(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield all rows. A part inside which `--limit` is reached is read from its text, as on one machine."""
        state, place = writer.state, self._whole.place
        parts = self._whole.parts[state.merge.get("part", 0) :]
        writer.pass_bytes(self._whole.bytes - sum(part.bytes for part in parts))
        used: list[PartBounds] = []
        for part in parts:
            manifest = self._manifests[part.number]
            if "text" in state.merge or self._reaches_limit(writer, manifest):
                if "text" not in state.merge:
                    yield Batch([], [], {}, after=partial(_enter_text, part))
                with _TextOfPart(part, len(self.sources), self._plan, self._outputs).batches(writer) as batches:
                    yield from batches
                return
            stored = self._stored(part)
            yield from stored.batches(dict(state.merge), self._eots)
            yield Batch([], [], {}, after=partial(_end_part, part, manifest, stored))
            used.append(part)
            if part is parts[-1] or sum(one.bytes for one in used) >= _USED:
                writer.checkpoints.keep(now=True)
                for one in used:
                    place.remove(part_name(one.number))
                used.clear()

    def _laid_out(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield the rows without writing tokens, to find the pieces; then have these made, and take their files."""
        state = writer.state
        writer.pass_bytes(self._whole.bytes if state.merge else 0)
        if not state.merge:
            self._write_nothing()
            yield from self._lay_out(writer)
            yield Batch([], [], {}, after=partial(_set_stage, "laid out"))
            writer.checkpoints.keep(now=True)
        layout = read_layout(self._whole.place)
        assert layout is not None
        names = list(map(piece_name, range(len(layout.pieces))))
        if "adopted" not in state.merge:
            self._make(layout)
            for piece, name in zip(layout.pieces, names, strict=True):
                files = [Written(**entry) for entry in self._files(name, piece.split)]
                self._outputs[piece.output].adopt(files)
                writer.checkpoints.adopt([(piece.output, piece.split, written) for written in files])
            yield Batch([], [], {}, after=partial(_set_stage, "adopted"))
            writer.checkpoints.keep(now=True)
        pieces = zip(names, layout.pieces, strict=True)
        self._whole.place.adopt({name: self._files(name, piece.split) for name, piece in pieces})
        for output in self._outputs:
            output.only = None

    def _lay_out(self, writer: Writer) -> Iterator[Batch]:
        """Find the pieces. Nothing is recorded before the end: it takes a hundredth of the time of writing."""
        pieces = Pieces(self._outputs, self._piece_bytes())
        for part in self._whole.parts:
            stored = self._stored(part)
            for batch in stored.batches(dict(writer.state.merge), self._eots):
                batch.final = False
                pieces.before(writer)
                yield batch
                pieces.after(writer)
            end = partial(_end_part, part, self._manifests[part.number], stored)
            yield Batch([], [], {}, final=False, after=end)
        orders = [{**order, "dtype": order["dtype"].name} for order in output_orders(self._plan)]
        layout = Layout(self._settings, self._whole.fingerprint, orders, pieces.found(writer))
        with writing_temporary_files(), tempfile.TemporaryDirectory(prefix="shardmill-") as folder:
            written = Path(folder) / PIECES
            written.write_text(layout.json())
            self._whole.place.create(PIECES, written)

    def _files(self, name: str, split: str) -> list[dict[str, Any]]:
        manifest = self._whole.place.manifest(name)
        assert manifest is not None
        files: list[dict[str, Any]] = manifest["splits"][split]["files"]
        return files

    def _stored(self, part: PartBounds) -> StoredPart:
        return StoredPart(self._whole.place, part.number, self._manifests[part.number], self._settings)

    def _reaches_limit(self, writer: Writer, manifest: dict[str, Any]) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        done = writer.done()
        limit = Limit(documents and documents - done.documents, tokens and tokens - done.tokens)
        return limit.reached_by(manifest["documents"], _tokens_of(manifest))

    def _piece_bytes(self) -> int:
        return max(PIECE_BYTES, sum(map(_tokens_of, self._manifests)) * self._outputs[0].dtype.itemsize // _MOST_PIECES)


class _TextOfPart(EncodedText):
    """Encodes the text from the beginning of a part up to `--limit`."""

    def __init__(self, part: PartBounds, sources: int, plan: Plan, outputs: list[Output]) -> None:
        super().__init__(plan, outputs)
        self._bounds = Bounds(part.first, part.byte, sources, 0)


def _tokens_of(described: dict[str, Any]) -> int:
    return sum(split["tokens"] for split in described["splits"].values())


def _set_stage(stage: str, writer: Writer) -> None:
    writer.state.merge = {**writer.state.merge, stage: 1}


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
            block = json_line({**first, **{name: first[name] + state.here[name] for name in state.here}}) + rest
            state.here = dict.fromkeys(state.here, 0)
        writer.add_sources(block)
    bad = (first or opened).get("rejected", 0) if earlier else 0
    for name in state.here:
        state.here[name] += opened.get(name, 0)
    for lines in stored.rejects():
        writer.add_rejects([_renumbered(line, earlier) for line in lines[:bad]] + lines[bad:])
        bad -= min(bad, len(lines))
    records = opened.get("records", 0) + (0 if first else earlier)
    state.merge = {"part": part.number + 1, "records": records, "open": state.merge.get("open", 0)}
    writer.pass_bytes(part.bytes)
    writer.check_rejects(f"part {part.number:,}")


def _renumbered(line: bytes, earlier: int) -> bytes:
    """Return the line of a reject with its number raised by `earlier`."""
    record = json.loads(line)
    return json_line({key: value + earlier if key in ("line", "row") else value for key, value in record.items()})
