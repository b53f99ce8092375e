"""The last of the three steps: makes the dataset from its parts."""

from __future__ import annotations

import os
from typing import Any

from shardmill import arguments
from shardmill.cluster.merged_parts import KeptParts, MergedParts, deleting
from shardmill.cluster.parts import PlannedParts
from shardmill.cluster.place import Place
from shardmill.cluster.planning import PartPlan, find_part_plan, read_part_plan
from shardmill.errors import UsageError
from shardmill.run import Progress, Result, Run, open_destination, open_outputs, settle_allocator


def merge(
    out: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    max_bad: str | None = None,
    keep_parts: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the dataset of a plan from its parts, which must all be there. The same call resumes an earlier one.

    Parts are removed as they are used up. `max_bad`: in place of the plan's. `keep_parts`: UsageError unless the plan
    was made so.
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
    settle_allocator()
    if whole is None:
        destination = open_destination(out)
        if destination.has_manifest():
            with deleting(out):
                Place(out).clear()  # leftovers of a kill in the last step
            with destination.locked(overwrite=False):
                return Result(destination.shown, destination.manifest() or {}, already=True)
        whole = read_part_plan(out)
    parts = PlannedParts(whole)
    parts.check()
    return merge_parts(parts, whole, progress or Progress(), memory=memory, max_bad=max_bad)


def merge_parts(parts: PlannedParts, whole: PartPlan, progress: Progress, **settings: Any) -> Result:
    """Merge parts as they come. `settings`: options of `prepare` that do not change the bytes."""
    destination = open_destination(whole.out, whole.options.get("cache"))
    parts.manifest(0)
    plan, _ = whole.load(None, {name: value for name, value in settings.items() if value is not None})
    outputs = open_outputs(plan, destination.folder)
    merged = (KeptParts if whole.keep else MergedParts)(whole, plan, outputs, parts)
    result = Run(merged, destination, outputs, progress).go()
    parts.close()
    with deleting(whole.out):
        whole.place.clear()
    return result
