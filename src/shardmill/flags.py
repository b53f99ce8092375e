"""The flags of commands: those of `Options`, and those of a dataset that is made in parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from shardmill.errors import UsageError
from shardmill.options import Options


def complete_tokenizers(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Names that begin so, or else files."""
    from click.shell_completion import CompletionItem

    from shardmill.tokens import list_tokenizers

    named = [one.name for one in list_tokenizers() if one.name.startswith(begun)]
    return [CompletionItem(name) for name in named] or [CompletionItem(begun, type="file")]


def option_flags(command: Callable[..., None], only: tuple[str, ...] = ()) -> Callable[..., None]:
    """Every option of `Options` as a flag, or only some."""
    for option in reversed(dataclasses.fields(Options)):
        if only and option.name not in only:
            continue
        meta = option.metadata
        several = isinstance(option.default, tuple)
        settings: dict[str, Any] = {"help": meta["help"], "default": None}
        if option.default is False:
            settings |= {"is_flag": True, "default": False}
        else:
            settings |= {"metavar": meta["metavar"] or None, "multiple": several}
            settings["type"] = click.Choice(meta["choices"]) if meta["choices"] else None
            if option.name in ("seed", "workers"):
                settings["type"] = int
            if option.name == "tokenizer":
                settings["shell_complete"] = complete_tokenizers
            if option.default is not None:
                default = ",".join(option.default) if several else option.default
                settings["help"] += f"  [default: {default}]"
        command = click.option(*meta["flags"], option.name, **settings)(command)
    return command


_FLAGS = [
    click.option("--plan", "planned", metavar="DIR", help="make one part of a plan, in place of SOURCE and --out"),
    click.option(
        "--part",
        type=int,
        metavar="K",
        help="with --plan: which part; by default the number of this task of a Slurm array or of a Kubernetes job",
    ),
    click.option(
        "--executor",
        metavar="NAME",
        help="make the dataset in parts, in processes of this machine (local) or on a Ray cluster; --memory and "
        "--workers are then those of one part",
    ),
    click.option("--parts", type=int, metavar="N", help="with --executor: how many parts  [default: about 4 GB each]"),
    click.option(
        "--keep-parts",
        is_flag=True,
        default=None,
        help="with --executor: keep the shards of the parts as they are, of unequal size; nothing is merged",
    ),
    click.option("--parallel", type=int, metavar="N", help="with --executor local: parts at a time  [default: 1]"),
    click.option("--ray-address", metavar="ADDR", help="with --executor ray: HOST:PORT of the cluster's head"),
]
_WITH_AN_EXECUTOR = ("executor", "parts", "keep_parts", "parallel", "ray_address")


def part_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The options as flags of a command."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def take_part_options(options: dict[str, Any], called: bool) -> tuple[str | None, int | None, dict[str, Any]]:
    """The plan and the part of it to make, and what goes to an executor, taken out of `options`.

    `called`: sources and output are given. UsageError for what does not go together.
    """
    planned, part = options.pop("planned", None), options.pop("part", None)
    in_parts = {name: options.pop(name) for name in _WITH_AN_EXECUTOR if name in options}
    if planned is None and (part is not None or not called):
        what = "`--part` needs a `--plan`" if part is not None else "a SOURCE and `--out DIR` are needed"
        raise UsageError(what, hint="`shardmill prepare --help` lists the options")
    if in_parts and "executor" not in in_parts:
        raise UsageError(f"`--{next(iter(in_parts)).replace('_', '-')}` needs an `--executor`")
    return planned, part, in_parts
