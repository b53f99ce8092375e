"""What the command line asks of parts, checked and put into words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardmill.cluster.part import PartResult, make_part
from shardmill.cluster.planning import PartPlan
from shardmill.errors import UsageError
from shardmill.run import Progress
from shardmill.units import show_bytes

_TASKS = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
_OF_A_PART = ("memory", "workers", "cache")


def make_called_part(
    planned: str, part: int | None, also: object, options: Mapping[str, Any], progress: Progress
) -> PartResult:
    """Make a part of a plan, by default that of this task. What shapes the dataset was said when it was planned."""
    others = [name for name, value in options.items() if value is not False and name not in _OF_A_PART]
    if also or others:
        what = f"`--{others[0].replace('_', '-')}`" if others else "SOURCE, `--out` or `--executor`"
        raise UsageError(f"{what} cannot be used with `--plan`", hint="the plan holds the sources and the options")
    if part is None:
        number = next((os.environ[name] for name in _TASKS if os.environ.get(name)), "")
        if not number.isdigit():
            raise UsageError("which part?", hint=f"say `--part K`, or set {' or '.join(_TASKS)}")
        part = int(number)
    settings = {name: value for name, value in options.items() if name in _OF_A_PART}
    return make_part(planned, part, progress=progress, **settings)


def part_words(result: PartResult) -> str:
    """What was made, for people."""
    done = f"made in {result.seconds:.1f} s" if result.made else "was there already"
    return f"part {result.number:,}: {result.documents:,} documents, {result.tokens:,} tokens, {done}"


def plan_words(plan: PartPlan) -> str:
    """How the work was cut, and what to do next, for people."""
    largest, last = max(part.bytes for part in plan.parts), len(plan.parts) - 1
    lines = [
        f"{last + 1:,} parts (0 to {last:,}) of {plan.sources:,} sources, {show_bytes(plan.bytes)}",
        f"the largest part has {show_bytes(largest)}",
    ]
    if largest * len(plan.parts) > 2 * plan.bytes:
        lines.append("note: a source that is compressed, or that has no places to enter it, is in one part")
    lines.append(f"next: `shardmill prepare --plan {plan.out} --part K` for each K, then `shardmill merge {plan.out}`")
    return "\n".join(lines)


def plan_data(plan: PartPlan) -> dict[str, Any]:
    """The same as JSON-able data."""
    return {"out": plan.out, "parts": [{"number": part.number, "bytes": part.bytes} for part in plan.parts]}
