"""Flags and arguments that several commands share: those of `Options`, those for parts, and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shardmill.errors import UsageError
from shardmill.options import Options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def _completion(names: list[str], incomplete: str, fallback: str) -> list[CompletionItem]:
    """The names that begin with `incomplete`; if there are none, the shell completes a `file` or `dir` instead."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type=fallback)]


def _complete_folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _completion([], incomplete, "dir")


def _complete_source(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from shardmill.sources import list_recipes

    return _completion([recipe.name for recipe in list_recipes()] if incomplete else [], incomplete, "file")


def complete_tokenizer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from shardmill.tokens import list_tokenizers

    return _completion([tokenizer.name for tokenizer in list_tokenizers()], incomplete, "file")


sources_argument = partial(click.argument, "sources", nargs=-1, metavar="SOURCE...", shell_complete=_complete_source)
folder_argument = partial(click.argument, metavar="DIR", shell_complete=_complete_folder)
json_flag = partial(click.option, "--json", "as_json", is_flag=True)
verbose_flag = partial(click.option, "-v", "--verbose", is_flag=True, help="list the names of files that are skipped")
quiet_flag = partial(click.option, "-q", "--quiet", is_flag=True)


def number_flag(*names: str, minimum: int = 0, maximum: int | None = None, **settings: Any) -> Decorator:
    """A flag that takes a whole number."""
    shown = settings.get("default") is not None
    return click.option(*names, type=click.IntRange(minimum, maximum), metavar="N", show_default=shown, **settings)


def cache_flags(command: Command) -> Command:
    """Add `--cache` and `--cache-size`, for datasets at a URL."""
    size = click.option(
        "--cache-size", default=None, metavar="SIZE", help="upper limit for --cache on disk  [default: 10GB]"
    )
    folder = click.option(
        "--cache", default=None, metavar="FOLDER", shell_complete=_complete_folder,
        help="folder in which blocks of a dataset at a URL are kept  [default: one in the user's cache]",
    )  # fmt: skip
    return folder(size(command))


def summary_flags(command: Command) -> Command:
    """Add `--json` and `--quiet`."""
    command = quiet_flag(help="no progress and no summary")(command)
    return json_flag(help="print the summary as JSON on standard output")(command)


def option_flags(*only: str) -> Decorator:
    """Add a flag for every field of `Options`, or only for those that are named."""

    def decorate(command: Command) -> Command:
        for option in reversed(dataclasses.fields(Options)):
            if not only or option.name in only:
                command = _flag(option)(command)
        return command

    return decorate


def _flag(option: dataclasses.Field[Any]) -> Decorator:
    meta, default = option.metadata, option.default
    if default is False:
        return click.option(*meta["flags"], option.name, is_flag=True, default=False, help=meta["help"])
    multiple = isinstance(default, tuple)
    listed = ",".join(default) if isinstance(default, tuple) else default
    shown = "" if listed in (None, "") else f"  [default: {listed}]"
    # Amounts are read later, since they may be written as `100M`.
    type = int if meta["kind"] == "number" else click.Choice(meta["choices"]) if meta["choices"] else None
    completion = complete_tokenizer if option.name == "tokenizer" else None
    return click.option(
        *meta["flags"], option.name, default=None, type=type, metavar=meta["metavar"] or None, multiple=multiple,
        help=meta["help"] + shown, shell_complete=completion,
    )  # fmt: skip


_PART_FLAGS = [
    click.option("--plan", "planned", metavar="DIR", help="make one part of this plan, instead of SOURCE and --out"),
    click.option(
        "--part", metavar="K",
        help="with --plan: number of the part; by default the task number of the Slurm array or the index of the "
        "Kubernetes job; `-` reads numbers from standard input, and reports on standard output, as executors need it",
    ),
    click.option(
        "--executor", metavar="NAME",
        help="make the dataset in parts, in processes of this machine (local) or on a Ray cluster; --workers, and with "
        "ray also --memory, then apply to one part",
    ),
    click.option(
        "--parts", type=int, metavar="N", help="with --executor: number of parts  [default: parts of about 4 GB]"
    ),
    click.option(
        "--keep-parts", is_flag=True, default=None,
        help="with --executor: keep the shards of the parts, which have unequal sizes, instead of merging them",
    ),
    click.option(
        "--parallel", type=int, metavar="N", help="with --executor local: number of parts at a time  [default: 1]"
    ),
    click.option("--ray-address", metavar="ADDR", help="with --executor ray: HOST:PORT of the cluster's head node"),
    click.option(
        "--ray-resources", metavar="JSON", help="""with --executor ray: what a node must have, such as '{"label": 1}'"""
    ),
]  # fmt: skip
_WITH_AN_EXECUTOR = ("executor", "parts", "keep_parts", "parallel", "ray_address", "ray_resources")


def part_flags(command: Command) -> Command:
    """The flags of `prepare` for a dataset that is made in parts."""
    for flag in reversed(_PART_FLAGS):
        command = flag(command)
    return command


def pop_part_options(
    options: dict[str, Any], has_sources: bool, has_out: bool
) -> tuple[str | None, str | None, dict[str, Any]]:
    """Remove from `options` and return: the plan, the number of the part to make, and the options for an executor.

    Raise UsageError for a combination that makes no sense.
    """
    planned, part = options.pop("planned", None), options.pop("part", None)
    in_parts = {name: options.pop(name) for name in _WITH_AN_EXECUTOR if name in options}
    if planned is None and part is not None:
        raise UsageError("`--part` needs a `--plan`", hint="`shardmill prepare --help` lists the options")
    if planned is None and not (has_sources and has_out):
        what = "no `--out DIR` was given" if has_sources else "no SOURCE was given"
        raise UsageError(what, hint="for example: `shardmill prepare corpus.txt -o data`")
    if in_parts and "executor" not in in_parts:
        raise UsageError(f"`--{next(iter(in_parts)).replace('_', '-')}` needs an `--executor`")
    return planned, part, in_parts
