"""Before a run: `inspect` arranges a sample of the sources, and describes the machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill import arguments
from shardmill.documents import FreeRoom, Reading
from shardmill.errors import BudgetError, UsageError
from shardmill.inspection import Inspection, Looking, looking_fetcher, make_report, take_sample
from shardmill.options import Options
from shardmill.run.budget import Budget, check_memory, default_memory
from shardmill.run.machine import settle_allocator, usable_cpus, usable_memory
from shardmill.run.plan import Plan
from shardmill.shards import format_named
from shardmill.sources import apply_recipes, find_sources
from shardmill.storage import ROOM, is_url
from shardmill.tokens import load_tokenizer
from shardmill.write import SHARDS_HERE, dataset_files, staging_folder

_SECONDS, _REMOTE_SECONDS = 5.0, 8.0  # that a sample may take


def inspect(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Inspection:
    """Estimate what `prepare` would find, write and need with these options. Nothing is written.

    Raise UsageError for a wrong call; problems of the sources are in `troubles`.
    """
    out = None if out is None else arguments.path("out", out)
    specs, options = apply_recipes(arguments.paths("sources", sources), Options.typed(options))
    chosen = Options.of(options)
    is_url(out or "")  # raises for one where nothing can be written
    found = find_sources(
        specs, chosen.input_format, out=out, owned=dataset_files,
        include=chosen.include, exclude=chosen.exclude, text_field=chosen.text_field,
    )  # fmt: skip
    if found.total_bytes is None:
        stream = next(source.name for source in found if source.size is None)
        raise UsageError("a stream can be read only once", place=stream, hint="store it in a file, and inspect that")
    tokenizer = load_tokenizer(chosen.tokenizer, pattern=chosen.pattern, specials=chosen.specials)
    return inspect_plan(Plan(found, tokenizer.with_delimiter(chosen.delimiter), chosen), out or ".")


def inspect_plan(plan: Plan, out: str) -> Inspection:
    """Estimate a run of a plan, whose sources are listed already."""
    found, tokenizer, chosen = plan.sources, plan.tokenizer, plan.options
    staging = str(staging_folder(Path(chosen.cache) if chosen.cache else None)) if is_url(out) else ""
    folder = Path(staging or out).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    settle_allocator()  # as in a run, or the sample would be slower
    budget = _budget(plan, uploads=bool(staging))
    workers = budget.workers if isinstance(budget, Budget) else chosen.workers or usable_cpus()
    started = time.monotonic()
    with looking_fetcher() as fetcher:
        # Where no place is known to be safe for the tokenizer, one after a space is near enough for an estimate.
        cut = tokenizer.cut or (lambda window, at: window.find(b" ", at) + 1 or -1)
        reading = Reading(chosen.text_field, chosen.separator_bytes, cut)
        looking = Looking(reading, FreeRoom(), fetcher, tokenizer.engine())
        kinds = take_sample(found, looking, seconds=_REMOTE_SECONDS if found.remote else _SECONDS)
        sampled_seconds = time.monotonic() - started
    return make_report(
        kinds, looking.findings, found, chosen, tokenizer, budget,
        sampled_seconds=sampled_seconds,
        busy_workers=min(workers, usable_cpus()),
        staged_bytes=SHARDS_HERE * chosen.tokens_per_shard * tokenizer.dtype.itemsize,
        out=out,
        staging=staging,
        free_bytes=shutil.disk_usage(folder).free,
        machine_bytes=usable_memory(),
        memory_bytes=chosen.memory_bytes or default_memory(workers),
        workers=workers,
    )  # fmt: skip


def _budget(plan: Plan, *, uploads: bool) -> Budget | BudgetError:
    """The budget of a run, or why the memory is too small for any."""
    options, tokenizer = plan.options, plan.tokenizer
    try:
        check_memory(options.memory_bytes, options.workers)
        return Budget(
            options.memory_bytes,
            options.workers,
            tokenizer.dtype.itemsize,
            engine_bytes=tokenizer.engine_bytes,
            library_bytes=tokenizer.library_bytes,
            remote=plan.sources.remote,
            beside=(ROOM if uploads else 0) + sum(format_named(name).memory_bytes for name in options.format),
            cuts=tokenizer.cut is not None,
        )
    except BudgetError as error:
        return error
