"""The final files from the parts: the same loop and the same writer as any run's, with rows that were stored."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import arguments
from shardmill.cluster.place import published
from shardmill.cluster.planning import PartBounds, PartPlan, find_part_plan, read_part_plan
from shardmill.documents import Bounds, Position, chunks_of
from shardmill.errors import MismatchError, UsageError
from shardmill.run import (
    REJECTS,
    ROW,
    ROWS,
    TOKENS,
    Batch,
    Destination,
    EncodedText,
    Entry,
    Limit,
    Progress,
    Result,
    Run,
    Writer,
    json_line,
    open_destination,
    open_outputs,
    unpacked,
    with_eot,
)
from shardmill.shards import Output
from shardmill.tokens import Encoded

_ROWS_AT_ONCE, _PLACES_AT_ONCE = 1 << 16, 1 << 22  # rows, and tokens with the places for EOT, that are moved at once
_USED = 1 << 30  # bytes of parts that were used up, and are removed together
_BLOCK = 1 << 20
_TICK = 0.5  # seconds


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call goes on from where one ended.

    Parts are removed as they are used up.
    """
    arguments.instance("progress", progress, Progress)
    out = arguments.path("out", out)
    destination = open_destination(out)
    whole = find_part_plan(out)
    if whole is None:
        if manifest := destination.manifest():
            return Result(destination.shown, manifest, already=True)
        whole = read_part_plan(out)
    given = {"memory": memory, "workers": workers}
    plan, _ = whole.load(None, {name: value for name, value in given.items() if value is not None})
    outputs = open_outputs(plan, destination.folder)
    parts = MergedParts(whole, plan, outputs, destination.room)
    result = Run(parts, destination, outputs, progress or Progress()).go()
    whole.place.clear()
    return result


class MergedParts(EncodedText):
    """The rows of all parts in order.

    Where `--limit` is reached inside of a part, that one is read from its text, as on one machine.
    """

    def __init__(self, whole: PartPlan, plan: Any, outputs: list[Output], room: int) -> None:
        """UsageError where parts are missing, MismatchError for one of another plan."""
        super().__init__(plan, outputs, room)
        self._whole, self._outputs = whole, outputs
        self._manifests = list(_all_parts(whole))
        self.engine = self._manifests[0]["part"]["engine"]

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """Parts give back what they take as they are used up; some wait for others, with which they are removed."""
        splits = [manifest["splits"]["train"] for manifest in self._manifests]
        tokens = sum(split["tokens"] + split["documents"] for split in splits)
        stored = [sum(file["bytes"] for file in split["files"]) for split in splits]
        waiting = 2 * max(stored) + min(_USED, sum(stored))
        need = sum(destination.space(output, tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        destination.check_free(need + waiting - sum(stored))

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        stopped = threading.Event()
        reader = ThreadPoolExecutor(1, "shardmill-parts")
        try:
            yield self._all(writer, reader, stopped)
        finally:
            stopped.set()
            reader.shutdown(wait=False, cancel_futures=True)

    def _all(self, writer: Writer, reader: ThreadPoolExecutor, stopped: threading.Event) -> Iterator[Batch]:
        state, place = writer.state, self._whole.place
        parts = self._whole.parts[state.merge.get("part", 0) :]
        writer.pass_bytes(self._whole.bytes - sum(part.bytes for part in parts))
        coming: Future[Path] | None = None
        used: list[PartBounds] = []
        for part in parts:
            if "text" in state.merge or self._reaches_limit(writer, self._manifests[part.number]):
                if "text" not in state.merge:
                    yield Batch([], [], {}, after=partial(_enter_text, part))
                with super().batches(writer) as batches:
                    yield from batches
                return
            folder = _result(coming or reader.submit(place.bring, part.number, self._manifests[part.number], stopped))
            following = part.number + 1
            if following < len(self._whole.parts):
                coming = reader.submit(place.bring, following, self._manifests[following], stopped)
            yield from self._stored(folder, dict(state.merge))
            yield Batch([], [], {}, after=partial(_end_part, part, self._manifests[part.number], folder))
            used.append(part)
            if following == len(self._whole.parts) or sum(one.bytes for one in used) >= _USED:
                writer.checkpoints.keep(now=True)
                for one in used:
                    place.remove(one.number)
                used.clear()

    def _stored(self, folder: Path, behind: dict[str, int]) -> Iterator[Batch]:
        """The rows of a part from where the merge stands. A document that is cut across batches is alone in them."""
        rows_behind, places_behind, is_open = (behind.get(name, 0) for name in ("rows", "places", "open"))
        spans, tokenizer = self._settings.spans, self._plan.tokenizer
        dtype = tokenizer.dtype.newbyteorder("<")
        with open(folder / ROWS, "rb") as rows_file, open(folder / TOKENS, "rb") as tokens_file:
            rows_file.seek(rows_behind * ROW.itemsize)
            tokens_file.seek(places_behind * dtype.itemsize)
            table = np.empty(0, ROW)
            while len(table := np.concatenate([table, np.fromfile(rows_file, ROW, _ROWS_AT_ONCE - len(table))])):
                rows = unpacked(table)
                stops = np.cumsum(rows.length + 1)
                count = max(1, int(np.searchsorted(stops, _PLACES_AT_ONCE, side="right")))
                closed = np.flatnonzero(rows.closes[:count])
                count = int(closed[0 if is_open else -1]) + 1 if len(closed) else count
                rows, table, stops = rows[:count], table[count:], stops[:count]
                tokens = np.fromfile(tokens_file, dtype, int(stops[-1])).astype(tokenizer.dtype, copy=False)
                offsets = np.concatenate([np.zeros(1, np.int64), stops])
                streams = {
                    eot: with_eot(rows, Encoded(tokens.copy(), offsets), eot, tokenizer.eot or 0)
                    for eot in self._settings.eots
                }
                rows_behind, places_behind = rows_behind + count, places_behind + len(tokens)
                filled = np.flatnonzero(rows.length)
                was_open, is_open = is_open, int(not rows.closes[filled[-1]]) if len(filled) else is_open
                behind = {"rows": rows_behind, "places": places_behind, "open": is_open}
                yield Batch(
                    [], [], streams, spans=spans, begins=not was_open, ends=not is_open, after=partial(_note, behind)
                )

    def _reaches_limit(self, writer: Writer, manifest: dict[str, Any]) -> bool:
        documents, tokens = self._plan.options.limits
        if documents is None and tokens is None:
            return False
        done, split = writer.done(), manifest["splits"]["train"]
        limit = Limit(documents and documents - done.documents, tokens and tokens - done.tokens)
        marks = split["documents"] if self._outputs[0].eot != "none" else 0
        return limit.reached_by(manifest["documents"], split["tokens"] + marks)

    def _entries(self, writer: Writer) -> Iterator[Entry]:
        state = writer.state
        part = self._whole.parts[state.merge["part"]]
        bounds = Bounds(part.first, part.byte, len(self.sources), 0)
        chunks = chunks_of(self.sources, state.source, state.position, self._reading, self.budget.chunk_bytes, bounds)
        return (Entry(*chunk) for chunk in chunks)


def _note(behind: dict[str, int], writer: Writer) -> None:
    writer.state.merge |= behind


def _enter_text(part: PartBounds, writer: Writer) -> None:
    """From here on this part's text is read. So many records of its first source lie behind as the parts before had."""
    state = writer.state
    state.source, state.position = part.first, Position(records=state.merge.get("records", 0))
    state.merge = {"part": part.number, "text": 1}


def _end_part(part: PartBounds, manifest: dict[str, Any], folder: Path, writer: Writer) -> None:
    """Count what was found in a part, and go on to the next."""
    state, opened = writer.state, manifest["part"]["open"]
    for name in state.totals:
        state.totals[name] += manifest["part"]["fallbacks"] if name == "fallbacks" else manifest[name]
    behind = state.merge.get("records", 0)
    # Of the first source, earlier parts may have some; of the last, later ones.
    first = next(iter(manifest["sources"]), None)
    for number, block in enumerate(manifest["sources"].blocks() if first else ()):
        if number == 0 and first:
            rest = block.partition(b"\n")[2]
            block = json_line({**first, **{name: first[name] + state.here[name] for name in state.here}}) + rest
            state.here = dict.fromkeys(state.here, 0)
        writer.add_sources(block)
    bad = (first or opened).get("rejected", 0) if behind else 0
    for name in state.here:
        state.here[name] += opened.get(name, 0)
    if "rejects" in manifest:
        with open(folder / REJECTS, "rb") as lines:
            for _ in range(bad):
                writer.add_rejects([_renumbered(lines.readline(), behind)])
            while some := lines.readlines(_BLOCK):
                writer.add_rejects(some)
    records = opened.get("records", 0) + (0 if first else behind)
    state.merge = {"part": part.number + 1, "records": records, "open": state.merge.get("open", 0)}
    writer.pass_bytes(part.bytes)
    writer.check_rejects(f"part {part.number:,}")


def _renumbered(line: bytes, behind: int) -> bytes:
    """A reject with so many records more before it."""
    record = json.loads(line)
    return json_line({key: value + behind if key in ("line", "row") else value for key, value in record.items()})


def _all_parts(whole: PartPlan) -> Iterator[dict[str, Any]]:
    """The manifests of all parts."""
    missing = sorted({part.number for part in whole.parts} - whole.place.numbers())
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise UsageError(
            f"{len(missing):,} of {len(whole.parts):,} parts are missing: {listed}",
            place=whole.out,
            hint=f"make them: `shardmill prepare --plan {whole.out} --part {missing[0]}`",
        )
    engines: dict[str, int] = {}
    for part in whole.parts:
        manifest = published(whole.place, part.number)
        about = manifest["part"] if manifest else {}
        if not manifest or about["plan"] != whole.fingerprint or about["bounds"] != list(part[1:5]):
            raise MismatchError(
                f"part {part.number:,} is of another plan",
                place=whole.out,
                hint=f"delete it, and make it again: `shardmill prepare --plan {whole.out} --part {part.number}`",
            )
        engines.setdefault(about["engine"]["sha256"], part.number)
        if len(engines) > 1:
            one, other = engines.values()
            raise MismatchError(
                f"parts {one:,} and {other:,} were made by releases that give other tokens",
                place=whole.out,
                hint="install the same releases on all machines, delete the parts of one kind, and make them again",
            )
        yield manifest


def _result(future: Future[Path]) -> Path:
    while not wait_for([future], timeout=_TICK).done:
        pass
    return future.result()
