"""The command line's view of parts: checks calls, and formats plans and results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from shardmill.cluster.part import PartResult, make_part
from shardmill.cluster.part_process import make_parts_of_input
from shardmill.cluster.planning import PartPlan
from shardmill.errors import UsageError
from shardmill.inspection import Inspection
from shardmill.shards import DOCUMENT
from shardmill.units import plural, show_bytes, show_count, show_seconds
from shardmill.write import Progress

_TASKS = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
_SHOWN = 12  # parts of a plan that are printed
_OF_A_PART = ("memory", "workers", "cache", "max_bad")


def make_called_part(
    planned: str, part: str | None, also: object, options: Mapping[str, Any], progress: Progress
) -> PartResult | None:
    """Make a part of a plan, by default that of this batch task. Raise UsageError for options of the plan.

    `-`: make the parts that standard input names, until it ends.
    """
    others = [name for name, value in options.items() if value is not False and name not in _OF_A_PART]
    if also or others:
        what = f"`--{others[0].replace('_', '-')}`" if others else "SOURCE, `--out` or `--executor`"
        hint = "the plan holds the sources and the options"
        if "overwrite" in others:
            hint = f"make the plan anew: `shardmill plan SOURCE… -o {planned} --overwrite`"
        raise UsageError(f"{what} cannot be used with `--plan`", hint=hint)
    settings = {name: value for name, value in options.items() if name in _OF_A_PART}
    if part == "-":
        make_parts_of_input(planned, settings)
        return None
    number = next((os.environ[name] for name in _TASKS if os.environ.get(name)), "") if part is None else part
    if not number.isdigit():
        wrong = "which part?" if part is None else f"`--part {part}`: not a number"
        raise UsageError(wrong, hint=f"say `--part K`, or set {' or '.join(_TASKS)}")
    return make_part(planned, int(number), progress=progress, **settings)


def part_words(result: PartResult) -> str:
    """Describe what was made."""
    done = f"made in {result.seconds:.1f} s" if result.made else "was there already"
    return f"part {result.number:,}: {plural(result.documents, 'document')}, {plural(result.tokens, 'token')}, {done}"


def plan_words(plan: PartPlan, report: Inspection) -> str:
    """Describe the parts, what each takes, and what to do next."""
    last = len(plan.parts) - 1
    lines = [
        f"{plural(last + 1, 'part')} (0 to {last:,}) of {plural(plan.sources, 'source')}, {show_bytes(plan.bytes)}",
        "",
    ]
    lines.append(f"  {'part':>6}  {'sources':>10}  {'tokens':>10}  {'disk':>10}  {'time':>8}")
    estimates = list(_estimates(plan, report))
    for number, part in [*enumerate(estimates)][:_SHOWN]:
        tokens, disk, time = show_count(part["tokens"]), show_bytes(part["disk_bytes"]), show_seconds(part["seconds"])
        lines.append(f"  {number:>6,}  {show_bytes(part['bytes']):>10}  {tokens:>10}  {disk:>10}  {time:>8}")
    if last >= _SHOWN:
        longest = show_seconds(max(part["seconds"] for part in estimates))
        lines.append(f"  and {last + 1 - _SHOWN:,} more; the longest takes {longest} (`--json` lists all)")
    lines += [f"  estimated from a sample, for {report.workers:,} workers of this machine's speed", ""]
    if plan.undivided:
        texts = " or, with --keep-parts, a text without a separator," if plan.keep else ""
        lines.append(
            f"note: a compressed stream, CSV or Arrow{texts} is one piece, which no part begins inside of: "
            f"{', '.join(plan.undivided)}"
        )
    lines.append(f"next: `shardmill prepare --plan {plan.out} --part K` for each K, then `shardmill merge {plan.out}`")
    return "\n".join(lines)


def plan_data(plan: PartPlan, report: Inspection) -> dict[str, Any]:
    """Return the same as data for JSON."""
    parts = [{"number": number, **part} for number, part in enumerate(_estimates(plan, report))]
    return {"out": plan.out, "parts": parts, "undivided": plan.undivided, "workers": report.workers}


def _estimates(plan: PartPlan, report: Inspection) -> Iterator[dict[str, Any]]:
    """Yield what each part takes: its share of the whole by bytes, and a second to start."""
    tokens, documents = report.tokens.value, report.documents.value
    disk = (tokens + documents) * report.token_bytes + documents * DOCUMENT.itemsize
    for part in plan.parts:
        share = part.bytes / plan.bytes if plan.bytes else 1.0
        yield {
            "bytes": part.bytes,
            "tokens": round(share * tokens),
            "disk_bytes": round(share * disk),
            "seconds": round(1.0 + share * report.seconds, 1),
        }
