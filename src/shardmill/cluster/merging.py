"""The last of the three steps: makes the dataset from its parts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from shardmill import arguments
from shardmill.cluster.layout import Layout
from shardmill.cluster.merged_parts import MergedParts
from shardmill.cluster.pieces import UnusedParts, make_piece, missing_pieces
from shardmill.cluster.place import part_manifest, place_of
from shardmill.cluster.planning import PartPlan, find_part_plan, missing_parts, read_part_plan
from shardmill.errors import Interrupted, MismatchError, ShardmillError, StuckError, UsageError
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
from shardmill.units import parse_bytes

MakePieces = Callable[[PartPlan, Layout, Progress], None]
"""Makes all pieces that are missing, and removes parts that no piece needs any more."""
_PROCESS, _PIECE = 150_000_000, 60_000_000  # bytes of memory that a merge takes, and each piece that is being written
_AT_ONCE = 4  # pieces that are written together by default: fewer keep a disk busy
_PATIENCE = 600.0  # seconds without a byte written after which the disk has failed


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    workers: int | None = None,
    keep_parts: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call resumes an earlier one.

    Parts are removed as they are used up. `workers`: files that are written at a time. `keep_parts`: UsageError unless
    the plan was made so.
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
    return merge_by(partial(_make_in_threads, threads), threads, out, memory, progress or Progress())


def _make_in_threads(threads: int, plan: PartPlan, layout: Layout, progress: Progress) -> None:
    """Make the missing pieces in threads: copying and hashing release the GIL."""
    missing, sizes = missing_pieces(plan.place, layout), layout.sizes()
    parts, stopped, copied = UnusedParts(plan, layout, missing), threading.Event(), Copied(sizes, missing, progress)
    pool, stuck = ThreadPoolExecutor(threads, "shardmill-piece"), False
    running: dict[Future[bool], int] = {
        pool.submit(make_piece, plan.out, number, progress=copied.of(number), stopped=stopped): number
        for number in missing
    }
    try:
        while running:
            done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for piece in done:
                piece.result()
                parts.remove(running.pop(piece))
            if stuck := time.monotonic() - copied.last > _PATIENCE:
                raise StuckError(f"nothing was written for {_PATIENCE:.0f} seconds", place=plan.out)
    except (ShardmillError, Interrupted) as why:
        there = len(layout.pieces) - len(running)
        why.kept = why.kept or f"{there:,} of {len(layout.pieces):,} pieces are done; the same command resumes the run"
        raise
    finally:
        stopped.set()  # each thread ends within a batch, unless the disk is stuck
        pool.shutdown(wait=not stuck, cancel_futures=True)
        progress.end()


class Copied:
    """Adds up what all pieces have copied, for the progress display."""

    def __init__(self, sizes: dict[int, int], missing: list[int], progress: Progress) -> None:
        self._bytes = {number: 0 if number in set(missing) else size for number, size in sizes.items()}
        self._progress, self.last = progress, time.monotonic()
        progress.end()  # that of the layout
        progress.begin(sum(sizes.values()), self._sum(), Budget(None, 1))

    def of(self, number: int) -> Progress:
        """Return the object to which the piece of this number reports."""
        piece = Progress()
        piece.update = partial(self._update, number)  # type: ignore[method-assign]
        return piece

    def _update(self, number: int, done: Done) -> None:
        self._bytes[number], self.last = done.bytes, time.monotonic()
        self._progress.update(self._sum())

    def _sum(self) -> Done:
        return Done(bytes=sum(self._bytes.values()))


def merge_by(make: MakePieces, at_once: int, out: str, memory: int | str | None, progress: Progress) -> Result:
    """Merge with pieces that `make` makes, `at_once` of them at a time."""
    settle_allocator()
    destination = open_destination(out)
    whole = find_part_plan(out)
    if whole is None:
        if manifest := destination.manifest():
            place_of(out).clear()  # leftovers of a kill in the last step
            return Result(destination.shown, manifest, already=True)
        whole = read_part_plan(out)
    plan, _ = whole.load(None, {} if memory is None else {"memory": memory})
    outputs = open_outputs(plan, destination.folder)
    manifests = list(_all_parts(whole))
    parts = MergedParts(whole, manifests, plan, outputs, lambda layout: make(whole, layout, progress), at_once)
    result = Run(parts, destination, outputs, progress).go()
    whole.place.clear()
    return result


def _all_parts(whole: PartPlan) -> Iterator[dict[str, Any]]:
    """Yield the manifests of all parts. Raise an error that names a missing or foreign part."""
    if missing := missing_parts(whole):
        listed = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise UsageError(
            f"{len(missing):,} of {len(whole.parts):,} parts are missing: {listed}",
            place=whole.out,
            hint=f"make them: `shardmill prepare --plan {whole.out} --part {missing[0]}`",
        )
    engines: dict[str, int] = {}
    for part in whole.parts:
        manifest = part_manifest(whole.place, part.number)
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
