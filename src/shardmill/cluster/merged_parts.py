"""The rows of all parts in order, for the same loop and writer as in any other run.

Parts may still be made while the merge is under way: it asks for them in order, and uses each as soon as it is there.
The files of a format with shards are written in pieces, several at a time (layout.py). A format with one file a split
is written by this process, and so is a dataset with `--limit`. With `--keep-parts` only the manifest is written.
"""

from __future__ import annotations

import collections
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from shardmill.cluster.layout import FilePiece, PieceOrder, Pieces, piece_name
from shardmill.cluster.part_files import RowSettings, StoredPart
from shardmill.cluster.place import final_files, part_manifest, part_name
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
    Progress,
    Writer,
    json_line,
    output_orders,
    settled,
    surely_fits,
    with_odd,
)
from shardmill.shards import SPLITS, Output
from shardmill.storage import Written
from shardmill.units import show_bytes

_log = logging.getLogger(__name__)
PIECE_BYTES = 1 << 27
"""The least bytes of tokens in a piece: one shard of the usual size. More if there would be too many pieces."""
_MOST_PIECES = 100_000  # about: each is a folder until the end
_USED = 1 << 30  # bytes of used parts that are removed together


class Maker(ABC):
    """Makes the parts and pieces of a merge somewhere, or finds them made. No call waits for long."""

    at_once = 1
    """Pieces that are written at a time."""

    @abstractmethod
    def progress_of_run(self, outputs: list[Output], *, in_pieces: bool) -> Progress:
        """Return the display of the merge itself: a hidden one if the maker shows the progress of all."""

    @abstractmethod
    def part(self, number: int) -> dict[str, Any] | None:
        """Return the manifest of a part, checked; None after a moment if it is not there yet."""

    def all_parts(self) -> list[dict[str, Any]] | None:
        """Return the manifests of all parts, if they were all there when the merge began."""
        return None

    @abstractmethod
    def make_piece(self, number: int, size: int) -> None:
        """Start to make a piece with so many bytes of tokens."""

    @abstractmethod
    def made_pieces(self, *, wait: bool = False) -> list[int]:
        """Let the work go on. Return the pieces that were made since the last call; `wait`: after a moment."""

    @abstractmethod
    def close(self) -> None:
        """Stop what is still being made: with `--limit`, not all parts are needed."""


def hidden_progress(shown: Progress) -> Progress:
    """Return a progress display that shows nothing. What is being retried, `shown` shows for it."""
    hidden = Progress()
    shown.status = lambda: hidden.status()
    return hidden


class MergedParts(Producer):
    """Produces the rows of all parts in order."""

    def __init__(self, whole: PartPlan, first: dict[str, Any], plan: Plan, outputs: list[Output], maker: Maker) -> None:
        """`first`: the manifest of the first part."""
        val, options = Val.parse(plan.options.val), plan.options
        self._whole, self._plan, self._outputs, self._maker = whole, plan, outputs, maker
        self.facts, self.sources = facts_of(plan, whole.keep), plan.sources
        self.splits = ("train",) if val.nothing else SPLITS
        self.first, self.bad_allowed = val.first, options.bad_allowed
        self.budget = Budget(None, 1)
        self.engine = first["part"]["engine"]
        self._settings = RowSettings(plan.tokenizer.dtype.name, plan.tokenizer.eot or 0, val.first)
        self._eots = tuple(dict.fromkeys(output.eot for output in outputs))
        self.in_pieces = not whole.keep and options.limit is None and all(output.file_tokens for output in outputs)
        self._piece_bytes = max(PIECE_BYTES, whole.bytes // _MOST_PIECES)
        self._orders = [{**order, "dtype": order["dtype"].name} for order in output_orders(plan)]
        # With `first:N`, val takes tokens from files of train.
        self._splits_with_train = SPLITS if val.first else ("train",)
        self._running: dict[int, FilePiece] = {}
        self._needed: collections.Counter[int] = collections.Counter()
        """How many running pieces need the tokens of train of each part."""
        if whole.keep or self.in_pieces:
            self._write_nothing()

    def _write_nothing(self) -> None:
        for output in self._outputs:
            output.only = {}

    def _write_what_remains(self) -> None:
        """From here on, the outputs write what belongs to whole splits."""
        for output in self._outputs:
            output.only = None

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """Check the disk. Parts are removed once used, but those that files are being written from are still there."""
        if self._whole.keep:
            return
        self._write_what_remains()  # a merge that has just begun has no files yet: those that are there are foreign
        manifests = self._maker.all_parts()
        if manifests is None:  # there is only the text to judge by, as in a run without parts
            if not surely_fits(self._plan, destination, outputs):
                EncodedText(self._plan, outputs).check_space(destination, outputs)
            return
        need = sum(destination.space(output, bytes_of(manifests, output), 0)[0] for output in outputs)
        stored = [sum(file["bytes"] for file in final_files(manifest)) for manifest in manifests]
        used = self._maker.at_once * self._piece_bytes if self.in_pieces else _USED
        waiting = min(2 * max(stored) + used, sum(stored))
        more = max(0, need + waiting - sum(stored))
        _log.warning("note: up to %s of disk are needed besides the parts, which are removed as they are used up",
                     show_bytes(more))  # fmt: skip
        destination.check_free(more, hint="free some space and run the same command again")

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        way = self._kept if self._whole.keep else self._laid_out if self.in_pieces else self._at_once
        with closing(way(writer)) as batches:
            yield batches

    def _manifest(self, part: PartBounds) -> Generator[Batch, None, dict[str, Any]]:
        """Wait until a part is there. Yield empty batches meanwhile, so that the run shows that it goes on."""
        while (manifest := self._maker.part(part.number)) is None:
            yield Batch([], [], {})
        return manifest

    def _kept(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield no rows: count the files of the parts, and give them their names."""
        for part in self._whole.parts[writer.state.merge.get("part", 0) :]:
            manifest = yield from self._manifest(part)
            yield Batch([], [], {}, after=partial(self._take_files, part, manifest))
        for i, output in enumerate(self._outputs):
            files, position = [file for file in writer.checkpoints.files if file[0] == i], output.position()
            for split in {split for _, split, _ in files}:
                position[split][0] = position[split][0] or 1  # the split has files already
            output.restore(position, [written for _, _, written in files])
        writer.checkpoints.keep(now=True)
        named: dict[str, list[dict[str, Any]]] = {}
        for part in self._whole.parts:
            named[part_name(part.number)] = final_files((yield from self._manifest(part)))
        self._whole.place.adopt(named)
        self._write_what_remains()

    def _take_files(self, part: PartBounds, manifest: dict[str, Any], writer: Writer) -> None:
        """Take the files of a part over into the dataset."""
        for i, described in enumerate((manifest, *manifest.get("also", ()))):
            for name, split in described["splits"].items():
                for key, count in writer.state.counts[i][name].items():
                    writer.state.counts[i][name][key] = count + split[key]
                writer.checkpoints.adopt([(i, name, Written(**entry)) for entry in split["files"]])
        _end_part(part, manifest, self._stored(part, manifest), writer)

    def _at_once(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield all rows. A part inside which `--limit` is reached is read from its text, as on one machine."""
        state = writer.state
        parts = self._whole.parts[state.merge.get("part", 0) :]
        writer.pass_bytes(self._whole.bytes - sum(part.bytes for part in parts))
        used: list[StoredPart] = []
        used_bytes = 0
        for part in parts:
            manifest = yield from self._manifest(part)
            if "text" in state.merge or self._reaches_limit(writer, manifest):
                if "text" not in state.merge:
                    yield Batch([], [], {}, after=partial(_enter_text, part))
                with _TextOfPart(part, len(self.sources), self._plan, self._outputs).batches(writer) as batches:
                    yield from batches
                return
            stored = self._stored(part, manifest)
            for batch in settled(stored.batches(dict(state.merge), self._eots), state.open, self._settings.eot_id):
                yield batch
                self._maker.made_pieces()
            yield Batch([], [], {}, after=partial(_end_part, part, manifest, stored))
            used.append(stored)
            used_bytes += part.bytes
            if part is parts[-1] or used_bytes >= _USED:
                writer.checkpoints.keep(now=True)
                while used:
                    used.pop().delete()
                used_bytes = 0

    def _laid_out(self, writer: Writer) -> Generator[Batch, None, None]:
        """Yield the rows without writing tokens, to find the pieces. They are made meanwhile; take their files."""
        state, place = writer.state, self._whole.place
        self._write_nothing()
        self._published = place.published()
        for number in range(state.merge.get("pieces", 0)):
            if piece_name(number) not in self._published and (order := PieceOrder.read(place, number)):
                self._start(number, order.piece)
        if "laid out" not in state.merge:
            yield from self._lay_out(writer)
            writer.checkpoints.keep(now=True)
        while self._running:
            self._remove_used(writer, len(self._whole.parts), wait=True)
            yield Batch([], [], {})
        files: dict[str, list[dict[str, Any]]] = {}
        for number in range(state.merge["pieces"]):
            manifest = place.manifest(piece_name(number))
            assert manifest is not None
            ((split, described),) = manifest["splits"].items()
            files[piece_name(number)] = described["files"]
            if "adopted" not in state.merge:
                written = [Written(**entry) for entry in described["files"]]
                self._outputs[manifest["output"]].adopt(written)
                writer.checkpoints.adopt([(manifest["output"], split, one) for one in written])
        if "adopted" not in state.merge:
            yield Batch([], [], {}, after=partial(_note, {"adopted": 1}))
            writer.checkpoints.keep(now=True)
        place.adopt(files)
        self._write_what_remains()

    def _lay_out(self, writer: Writer) -> Iterator[Batch]:
        """Find the pieces, and start each as soon as the parts that it needs are there."""
        state = writer.state
        pieces = Pieces(self._outputs, self._piece_bytes, state.merge.get("layout"))
        parts = self._whole.parts[state.merge.get("part", 0) :]
        writer.pass_bytes(self._whole.bytes - sum(part.bytes for part in parts))
        self._count = state.merge.get("pieces", 0)
        for part in parts:
            manifest = yield from self._manifest(part)
            stored = self._stored(part, manifest)
            for batch in settled(stored.batches(dict(state.merge), self._eots), state.open, self._settings.eot_id):
                batch.final = False
                pieces.before(writer)
                yield batch
                self._order(pieces.after(writer))
            yield Batch([], [], {}, after=partial(self._end_laid_out, part, manifest, stored, pieces))
            self._remove_used(writer, min(part.number + 1, pieces.first_part(self._splits_with_train)))
        self._order(pieces.rest(writer))
        yield Batch([], [], {}, after=partial(_note, {"laid out": 1, "pieces": self._count, "layout": None}))

    def _end_laid_out(
        self, part: PartBounds, manifest: dict[str, Any], stored: StoredPart, pieces: Pieces, writer: Writer
    ) -> None:
        removed = writer.state.merge.get("removed", 0)
        _end_part(part, manifest, stored, writer)
        writer.state.merge |= {"layout": pieces.state(), "pieces": self._count, "removed": removed}

    def _order(self, found: Iterator[FilePiece]) -> None:
        """Have pieces made. After a kill, the same ones are found again and get the same numbers."""
        for piece in found:
            order = PieceOrder(self._settings, self._whole.fingerprint, self._orders[piece.output], piece)
            order.store(self._whole.place, self._count)
            if piece_name(self._count) not in self._published:
                self._start(self._count, piece)
            self._count += 1

    def _start(self, number: int, piece: FilePiece) -> None:
        self._running[number] = piece
        if piece.split in self._splits_with_train:
            self._needed.update(range(piece.parts[0], piece.parts[1] + 1))
        self._maker.make_piece(number, piece.tokens * self._outputs[piece.output].dtype.itemsize)

    def _remove_used(self, writer: Writer, stop: int, *, wait: bool = False) -> None:
        """Remove the tokens of train of parts before `stop` that no piece needs any more. All else goes at the end."""
        for number in self._maker.made_pieces(wait=wait):
            piece = self._running.pop(number)
            if piece.split in self._splits_with_train:
                self._needed.subtract(range(piece.parts[0], piece.parts[1] + 1))
        start = end = writer.state.merge.get("removed", 0)
        while end < stop and not self._needed[end]:
            end += 1
        if start < end:
            writer.state.merge["removed"] = end
            writer.checkpoints.keep(now=True)  # a later run must not go through the rows of these parts again
            for part in self._whole.parts[start:end]:
                if manifest := part_manifest(self._whole.place, part.number):
                    self._stored(part, manifest).delete("train")

    def _stored(self, part: PartBounds, manifest: dict[str, Any]) -> StoredPart:
        return StoredPart(self._whole.place, part.number, manifest, self._settings)

    def _reaches_limit(self, writer: Writer, manifest: dict[str, Any]) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        done = writer.done()
        limit = Limit(documents and documents - done.documents, tokens and tokens - done.tokens)
        # One document may end at the seam before the part, and one be ended in it by the limit.
        return limit.reached_by(manifest["documents"] + 1, _tokens_of(manifest) + 2)


class _TextOfPart(EncodedText):
    """Encodes the text from the beginning of a part up to `--limit`."""

    def __init__(self, part: PartBounds, sources: int, plan: Plan, outputs: list[Output]) -> None:
        super().__init__(plan, outputs)
        self._bounds = Bounds(part.first, part.byte, sources, 0)


def _tokens_of(described: dict[str, Any]) -> int:
    return sum(split["tokens"] for split in described["splits"].values())


def bytes_of(manifests: list[dict[str, Any]], output: Output) -> int:
    """Return the bytes that the tokens of all parts take in the files of an output."""
    streams = (
        one for manifest in manifests for one in (manifest, *manifest.get("also", ())) if one["eot"] == output.eot
    )
    return sum(map(_tokens_of, streams)) * output.dtype.itemsize


def _note(entries: dict[str, Any], writer: Writer) -> None:
    writer.state.merge |= entries


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
