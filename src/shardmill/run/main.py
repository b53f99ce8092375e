"""Text in, token files out: plan → chunks → documents → tokens → shards → manifest."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shardmill import arguments
from shardmill.errors import UsageError
from shardmill.options import Options, Val
from shardmill.run.encoded_text import EncodedText
from shardmill.run.machine import most_resident
from shardmill.run.plan import Plan, hash_data
from shardmill.shards import SPLITS, Output, open_output
from shardmill.sources import apply_recipes, find_sources
from shardmill.tokens import load_tokenizer
from shardmill.write import (
    Destination,
    Progress,
    Result,
    Run,
    as_recorded,
    dataset_files,
    finished_result,
    open_destination,
    progress_of,
)


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
    before = most_resident()
    shown = progress_of(progress)
    out = arguments.path("out", out)
    specs, options = apply_recipes(arguments.sources("sources", sources), Options.typed(options))
    chosen = Options.of(options)
    destination = open_destination(out, chosen.cache)
    plan = _make_plan(specs, chosen, destination)
    if not chosen.overwrite and (done := finished_result(destination, plan.facts(), plan.sources)):
        return done
    outputs = open_outputs(plan, destination.folder)
    text = EncodedText(plan, outputs, destination.buffer_bytes)
    result = Run(text, destination, outputs, shown, overwrite=chosen.overwrite).go()
    # The budget saw only samples. But the process may have held more before this call.
    most = most_resident()
    return replace(result, peak_memory=max(result.peak_memory, most if most > before else 0))


def _make_plan(specs: list[Any], options: Options, destination: Destination) -> Plan:
    """Find the sources, at the commits that an unfinished run reads, and load the tokenizer."""
    hash_data(specs, options)
    before = None if options.overwrite else destination.recorded_plan()
    sources = find_sources(
        specs, options.input_format, destination.pinned_commits(before), options.cache,
        out=destination.shown, owned=dataset_files,
        include=options.include, exclude=options.exclude, text_field=options.text_field,
    )  # fmt: skip
    sources = as_recorded(sources, before)
    tokenizer = load_tokenizer(options.tokenizer, pattern=options.pattern, specials=options.specials)
    return Plan(sources, tokenizer.with_delimiter(options.delimiter), options)


prepare.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in inspect.signature(prepare).parameters.values() if p.kind is not p.VAR_KEYWORD]
    + [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Options)],
    return_annotation=Result,
)


def output_orders(plan: Plan) -> list[dict[str, Any]]:
    """The arguments of `open_output`, for each format that is wanted."""
    options, tokenizer = plan.options, plan.tokenizer
    order = {
        "name": plan.name,
        "dtype": tokenizer.dtype,
        "shard_tokens": options.tokens_per_shard,
        "eot": options.eot,
        "tail": options.tail,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "splits": ("train",) if Val.parse(options.val).nothing else SPLITS,
    }
    return [{"format": format, **order} for format in options.format]


def open_outputs(plan: Plan, out: Path, **more: Any) -> list[Output]:
    """An output for each format that is wanted; `more` overrides arguments of `open_output`."""
    tokenizer = plan.tokenizer
    outputs = [open_output(folder=out, **{**order, **more}) for order in output_orders(plan)]
    if tokenizer.eot is None and any(output.eot != "none" for output in outputs):
        raise UsageError(f"the tokenizer `{tokenizer.name}` has no end-of-text token", hint="add `--eot none`")
    return outputs
