"""Text in, token files out: plan → chunks → documents → tokens → shards → manifest."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from shardmill import arguments
from shardmill.cluster import discard_plan, divide, find_part_plan
from shardmill.errors import UsageError
from shardmill.options import Options
from shardmill.run import EncodedText, make_plan, most_resident, open_outputs
from shardmill.sources import apply_recipes
from shardmill.storage import is_url
from shardmill.write import Producer, Progress, Result, Run, finished_result, open_destination, progress_of


def prepare(
    sources: Any,
    out: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Result:
    """Turn `sources` into token files in `out`, a folder or URL; the keywords are the command's options.

    `sources`: a path or a URL, text from Python (an iterable, Arrow data, a callable, a `shardmill.Source`), or a list.
    Raise a ShardmillError for any expected failure. The same call resumes an unfinished run.
    """
    return prepare_with(sources, out, progress_of(progress), options, {})


prepare.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in inspect.signature(prepare).parameters.values() if p.kind is not p.VAR_KEYWORD]
    + [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Options)],
    return_annotation=Result,
)


def prepare_with(
    sources: Any,
    out: str | os.PathLike[str],
    progress: Progress,
    options: dict[str, Any],
    in_parts: dict[str, Any],
) -> Result:
    """Do what `prepare` does; `in_parts`: the arguments of an executor, if it is to make the dataset in parts."""
    if in_parts and not options.get("shuffle"):
        from shardmill.cluster import prepare_in_parts

        return prepare_in_parts(sources, out, progress=progress, **in_parts, **options)
    before = most_resident()
    out = arguments.path("out", out)
    specs, applied = apply_recipes(arguments.sources("sources", sources), Options.typed(options))
    chosen = Options.of(applied)
    if in_parts:
        _check_shuffled_parts(out, in_parts)
    destination = open_destination(out, chosen.cache)
    alone = None if chosen.overwrite else destination.recorded_plan()
    begun = None if chosen.overwrite else find_part_plan(out)
    plan = make_plan(specs, chosen, destination, alone or (begun.facts() if begun else None))
    if chosen.overwrite:
        discard_plan(plan, out, destination)
    elif done := finished_result(destination, plan.facts(), plan.sources):
        if begun is not None:
            from shardmill.cluster import remove_plan

            remove_plan(begun)
        return done
    # A run goes on as it was begun.
    if begun is not None or (alone is None and not chosen.shuffle):
        whole = divide(plan, out, begun)
        if whole is not None:
            from shardmill.cluster import run_in_processes

            return run_in_processes(plan, whole, progress)
    outputs = open_outputs(plan, destination.folder)
    text: Producer
    if chosen.shuffle:
        from shardmill.arrange import ShuffledText

        encode = partial(_encode_in_parts, sources, options, in_parts) if in_parts else None
        shuffled = ShuffledText(plan, outputs, destination, progress, encode)
        text, progress = shuffled, shuffled.second_progress
    else:
        text = EncodedText(plan, outputs, destination.buffer_bytes)
    result = Run(text, destination, outputs, progress, overwrite=chosen.overwrite).go()
    # The budget saw only samples. But the process may have held more before this call.
    most = most_resident()
    return replace(result, peak_memory=max(result.peak_memory, most if most > before else 0))


def _check_shuffled_parts(out: str, in_parts: dict[str, Any]) -> None:
    """Raise UsageError where parts cannot be made and then shuffled by one command."""
    if is_url(out):
        raise UsageError(
            "a dataset that is made in parts can be shuffled only in a folder, not in an object store",
            hint="choose a folder that all machines see, or leave `--executor` out",
        )
    if in_parts.get("keep_parts"):
        raise UsageError("`--keep-parts` cannot be used with `--shuffle`: the shards of the parts are not shuffled")


def _encode_in_parts(
    sources: Any,
    options: dict[str, Any],
    in_parts: dict[str, Any],
    changed: dict[str, Any],
    folder: Path,
    progress: Progress,
) -> Result:
    """Make the dataset that is to be shuffled; `changed`: options that it has in place of the given ones."""
    from shardmill.cluster import prepare_in_parts

    return prepare_in_parts(sources, folder, progress=progress, **in_parts, **{**options, **changed})
