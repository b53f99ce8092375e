"""The last of the three steps: makes the dataset from its parts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing
from functools import partial
from typing import Any

from shardmill import arguments
from shardmill.cluster.layout import is_piece
from shardmill.cluster.merged_parts import Maker, MergedParts, bytes_of, hidden_progress
from shardmill.cluster.pieces import make_piece
from shardmill.cluster.place import final_files, part_manifest, place_of
from shardmill.cluster.planning import PartPlan, find_part_plan, missing_parts, read_part_plan
from shardmill.errors import MismatchError, StuckError, UsageError
from shardmill.run import (
    Budget,
    Done,
    Progress,
    Result,
    Run,
    open_destination,
    open_outputs,
    settle_allocator,
    usable_cpus,
)
from shardmill.shards import Output
from shardmill.units import parse_bytes

_PROCESS, _PIECE = 150_000_000, 60_000_000  # bytes of memory that a merge takes, and each piece that is being written
_AT_ONCE = 4  # pieces that are written together by default: fewer keep a disk busy
_PATIENCE = 600.0  # seconds without a byte written after which the disk has failed


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    workers: int | None = None,
    max_bad: str | None = None,
    keep_parts: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call resumes an earlier one.

    Parts are removed as they are used up. `workers`: files that are written at a time. `max_bad`: in place of the
    plan's. `keep_parts`: UsageError unless the plan was made so.
    """
    arguments.instance("progress", progress, Progress)
    out = arguments.path("out", out)
    whole = find_part_plan(out)
    if keep_parts and whole is not None and not whole.keep:
        raise UsageError(
            "the parts of this plan hold no shards that could be kept",
            place=out,
            hint="merge them without it, or use another folder, and `shardmill plan --keep-parts`",
        )
    by_memory = _AT_ONCE if memory is None else max(1, (parse_bytes(memory) - _PROCESS) // _PIECE)
    # More than CPUs: while one piece is synced to the disk, another can be hashed.
    threads = workers or min(_AT_ONCE, 2 * usable_cpus(), by_memory)
    settle_allocator()
    if whole is None:
        destination = open_destination(out)
        if destination.has_manifest():
            place_of(out).clear()  # leftovers of a kill in the last step
            with destination.locked(overwrite=False):
                return Result(destination.shown, destination.manifest() or {}, already=True)
        whole = read_part_plan(out)
    with closing(Threads(whole, threads, progress or Progress())) as maker:
        return merge_by(maker, whole, memory=memory, max_bad=max_bad)


def merge_by(maker: Maker, whole: PartPlan, **settings: Any) -> Result:
    """Merge parts and pieces that `maker` makes. `settings`: options of `prepare` that do not change the bytes."""
    destination = open_destination(whole.out)
    while (first := maker.part(0)) is None:
        pass
    plan, _ = whole.load(None, {name: value for name, value in settings.items() if value is not None})
    outputs = open_outputs(plan, destination.folder)
    parts = MergedParts(whole, first, plan, outputs, maker)
    result = Run(parts, destination, outputs, maker.progress_of_run(outputs, in_pieces=parts.in_pieces)).go()
    maker.close()
    whole.place.clear()
    return result


class Threads(Maker):
    """Makes pieces in threads, since copying and hashing release the GIL. All parts must be there."""

    def __init__(self, whole: PartPlan, threads: int, progress: Progress) -> None:
        """Raise an error that names a missing or foreign part."""
        self.at_once = threads
        self._whole, self._progress = whole, progress
        if missing := missing_parts(whole):
            listed = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
            raise UsageError(
                f"{len(missing):,} of {len(whole.parts):,} parts are missing: {listed}",
                place=whole.out,
                hint=f"make them: `shardmill prepare --plan {whole.out} --part {missing[0]}`",
            )
        self._manifests = list(_all_parts(whole))
        self._pool, self._stopped = ThreadPoolExecutor(threads, "shardmill-piece"), threading.Event()
        self._running: dict[Future[bool], int] = {}
        self._copied: dict[int, int] = {}
        self._lock = threading.Lock()
        self._last, self._stuck = time.monotonic(), False

    def close(self) -> None:
        self._stopped.set()  # each thread ends within a batch, unless the disk is stuck
        self._pool.shutdown(wait=not self._stuck, cancel_futures=True)
        self._progress.end()

    def progress_of_run(self, outputs: list[Output], *, in_pieces: bool) -> Progress:
        if not in_pieces:
            return self._progress
        place = self._whole.place
        made = [place.manifest(name) for name in place.published() if is_piece(name)]
        before = sum(file["bytes"] for manifest in made if manifest for file in final_files(manifest))
        total = sum(bytes_of(self._manifests, output) for output in outputs)
        self._copied[-1] = before
        self._progress.begin(total, Done(bytes=before), Budget(None, 1))
        return hidden_progress(self._progress)

    def part(self, number: int) -> dict[str, Any]:
        return self._manifests[number]

    def all_parts(self) -> list[dict[str, Any]]:
        return self._manifests

    def make_piece(self, number: int, size: int) -> None:
        progress = Progress()
        progress.update = partial(self._update, number)  # type: ignore[method-assign]
        piece = self._pool.submit(make_piece, self._whole.out, number, progress=progress, stopped=self._stopped)
        self._running[piece] = number

    def made_pieces(self, *, wait: bool = False) -> list[int]:
        done, _ = wait_for(self._running, timeout=1.0 if wait else 0.0, return_when=FIRST_COMPLETED)
        if not done and self._running and time.monotonic() - self._last > _PATIENCE:
            self._stuck = True
            raise StuckError(f"nothing was written for {_PATIENCE:.0f} seconds", place=self._whole.out)
        for piece in done:
            piece.result()
        return [self._running.pop(piece) for piece in done]

    def _update(self, number: int, done: Done) -> None:
        with self._lock:
            self._copied[number], self._last = done.bytes, time.monotonic()
            self._progress.update(Done(bytes=sum(self._copied.values())))


def _all_parts(whole: PartPlan) -> Iterator[dict[str, Any]]:
    """Yield the manifests of all parts, checked."""
    first = None
    for part in whole.parts:
        manifest = checked_part(whole, part.number, first)
        assert manifest is not None
        first = first or manifest
        yield manifest


def checked_part(whole: PartPlan, number: int, first: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the manifest of a part, or None if it is not there. Raise MismatchError if it does not belong here.

    `first`: the manifest of the first part, to compare with.
    """
    manifest, part = part_manifest(whole.place, number), whole.parts[number]
    if manifest is None:
        return None
    about = manifest["part"]
    if about["plan"] != whole.fingerprint or about["bounds"] != list(part[1:5]):
        raise MismatchError(
            f"part {number:,} is of another plan",
            place=whole.out,
            hint=f"delete it, and make it again: `shardmill prepare --plan {whole.out} --part {number}`",
        )
    if first is not None and about["engine"]["sha256"] != first["part"]["engine"]["sha256"]:
        raise MismatchError(
            f"parts {first['part']['number']:,} and {number:,} were made by releases that give other tokens",
            place=whole.out,
            hint="install the same releases on all machines, delete the parts of one kind, and make them again",
        )
    return manifest
