"""What is known before a run over text: its plan and its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardmill.errors import UsageError
from shardmill.options import Options, Val
from shardmill.run.plan import Plan, hash_data
from shardmill.shards import SPLITS, ShardWriter, open_output
from shardmill.sources import find_sources
from shardmill.tokens import load_tokenizer
from shardmill.write import Destination, Facts, as_recorded, dataset_files


def make_plan(specs: list[Any], options: Options, destination: Destination, before: Facts | None) -> Plan:
    """Find the sources, and load the tokenizer. `before`: the plan of an unfinished run, whose commits are read."""
    hash_data(specs, options)
    sources = find_sources(
        specs, options.input_format, destination.pinned_commits(before),
        out=destination.shown, owned=dataset_files,
        include=options.include, exclude=options.exclude, text_field=options.text_field,
    )  # fmt: skip
    sources = as_recorded(sources, before)
    tokenizer = load_tokenizer(options.tokenizer, pattern=options.pattern, specials=options.specials)
    return Plan(sources, tokenizer.with_delimiter(options.delimiter), options)


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


def open_outputs(plan: Plan, out: Path, **more: Any) -> list[ShardWriter]:
    """An output for each format that is wanted; `more` overrides arguments of `open_output`."""
    tokenizer = plan.tokenizer
    outputs: list[ShardWriter] = [open_output(folder=out, **{**order, **more}) for order in output_orders(plan)]
    if tokenizer.eot is None and any(output.eot != "none" for output in outputs):
        raise UsageError(f"the tokenizer `{tokenizer.name}` has no end-of-text token", hint="add `--eot none`")
    return outputs
