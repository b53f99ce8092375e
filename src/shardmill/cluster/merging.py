"""The last of the three steps: the dataset from its parts, which must all be there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shardmill import arguments
from shardmill.cluster.layout import Layout
from shardmill.cluster.merged_parts import MergedParts
from shardmill.cluster.place import part_manifest, place_of
from shardmill.cluster.planning import PartPlan, find_part_plan, missing_parts, read_part_plan
from shardmill.errors import MismatchError, UsageError
from shardmill.run import Progress, Result, Run, open_destination, open_outputs, settle_allocator

MakePieces = Callable[[PartPlan, Layout, Progress], None]
"""Makes all pieces that are missing, and removes parts that were used up."""


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    workers: int | None = None,
    keep_parts: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call goes on from where one ended.

    Parts are removed as they are used up. `workers`: files that are written at a time. `keep_parts`: UsageError unless
    the plan was made so.
    """
    from shardmill.cluster.driver import make_pieces
    from shardmill.cluster.thread_executor import ThreadExecutor

    arguments.instance("progress", progress, Progress)
    out = arguments.path("out", out)
    whole = find_part_plan(out)
    if keep_parts and whole is not None and not whole.keep:
        raise UsageError(
            "the parts of this plan hold no shards that could be kept",
            place=out,
            hint="merge them without it, or use another folder, and `shardmill plan --keep-parts`",
        )
    threads = ThreadExecutor(out, memory, workers)
    return merge_by(partial(make_pieces, threads), threads.room(), out, memory, progress or Progress())


def merge_by(make: MakePieces, at_once: int, out: str, memory: int | str | None, progress: Progress) -> Result:
    """The same, with pieces that are made in another way, so many at a time."""
    settle_allocator()
    destination = open_destination(out)
    whole = find_part_plan(out)
    if whole is None:
        if manifest := destination.manifest():
            place_of(out).clear()  # what a kill in the last step has left
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
    """The manifests of all parts."""
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
