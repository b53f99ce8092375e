"""The command line: thin. `options.py` says what an option is."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import click

from shardmill import __version__
from shardmill.errors import ShardmillError
from shardmill.options import Options

INTERRUPTED = 130


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which one needs them, not of the alphabet


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="shardmill")
def shardmill() -> None:
    """Turn any pile of text into the token files that a language-model trainer reads, in an amount of memory that you
    set beforehand.

    \b
      shardmill prepare corpus.txt -o data
    """


def _options(command: Callable[..., None], only: tuple[str, ...] = ()) -> Callable[..., None]:
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
            if option.default is not None:
                default = ",".join(option.default) if several else option.default
                settings["help"] += f"  [default: {default}]"
        command = click.option(*meta["flags"], option.name, **settings)(command)
    return command


@shardmill.command(short_help="text in, token files out")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--out", required=True, metavar="DIR", help="folder of the dataset, or a URL: s3://, gs://, az://")
@_options
@click.option("--json", "as_json", is_flag=True, help="print the summary as JSON on standard output")
@click.option("-q", "--quiet", is_flag=True, help="no progress and no summary")
def prepare(sources: tuple[str, ...], out: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Turn text into token files.

    SOURCE is a file, a folder, a glob, a URL (hf://, https://, s3://, gs://, az://), or `-` for standard input: plain
    text, JSON Lines, parquet, Arrow or CSV, also compressed by gzip, zstd, bzip2 or xz. Or it is a recipe such as
    `fineweb-edu/sample-10BT` (`shardmill recipes` has a list), which also brings settings, or a recipe of your own, a
    .toml file. A path that exists counts before a recipe of that name. Kill it at any moment: the same command goes on
    from there.
    """
    with _importing():
        from shardmill.run.main import prepare as run
        from shardmill.run.progress import choose_progress
        from shardmill.run.summary import as_data, as_text

    options = {name: value for name, value in given.items() if value not in (None, ())}
    if quiet:
        logging.getLogger("shardmill").setLevel(logging.ERROR)
    _tell_shadowed(sources, quiet or as_json)
    result = run(list(sources), out, progress=choose_progress(quiet or as_json), **options)
    if as_json:
        click.echo(json.dumps(as_data(result)))
    elif not quiet:
        click.echo(as_text(result), err=True)


@contextmanager
def _importing() -> Iterator[None]:
    """Modules make many objects and no garbage: to look for it takes a tenth of the time, and again later on."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _tell_shadowed(sources: tuple[str, ...], quiet: bool) -> None:
    from shardmill.sources.recipe_calls import shadowed

    for name in shadowed(sources) if not quiet else ():
        click.echo(f"note: `{name}` is here, so it is read, and not the recipe of that name", err=True)


_INSPECTED = (
    "tokenizer", "pattern", "format", "input_format", "text_field", "separator", "memory", "workers", "recipe",
)  # fmt: skip


@shardmill.command(short_help="before: what it will take, and what would go wrong")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--out", metavar="DIR", help="folder or URL that the dataset is meant for  [default: this folder]")
@partial(_options, only=_INSPECTED)
@click.option("--json", "as_json", is_flag=True, help="print the report as JSON")
def inspect(sources: tuple[str, ...], out: str | None, as_json: bool, **given: Any) -> None:
    """Look into sources before a run: documents, tokens, disk, memory and time to expect, from a sample of a few
    megabytes, and what would go wrong. Nothing is written. Exit code 1: `prepare` would stop with an error.

    SOURCE is what `prepare` takes, recipes included.
    """
    from shardmill.inspection import inspect as look

    _tell_shadowed(sources, as_json)
    options = {name: value for name, value in given.items() if value not in (None, ())}
    report = look(list(sources), out, **options)
    click.echo(json.dumps(report.data()) if as_json else report.text())
    if report.stops:
        sys.exit(1)


@shardmill.command(short_help="is a dataset what its manifest says?")
@click.argument("folder", metavar="DIR")
@click.option("--sample", default=100, metavar="N", help="documents to encode again  [default: 100]")
@click.option("--source", is_flag=True, help="read the sources again, and compare every token")
@click.option("--json", "as_json", is_flag=True, help="print the report as JSON on standard output")
@click.option("-q", "--quiet", is_flag=True, help="say nothing but what is damaged")
def verify(folder: str, sample: int, source: bool, as_json: bool, quiet: bool) -> None:
    """Check a dataset: sizes, sha256, counts, that every id is in range and EOT stands exactly between documents; and
    encode a sample of the documents again with the tokenizer's own library.
    """
    from shardmill.dataset.verify import verify as check

    said = (lambda line: None) if quiet or as_json else (lambda line: click.echo(line, err=True))
    report = check(folder, sample=sample, source=source, tell=said)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    elif report.damage or not quiet:
        click.echo(report.text(), err=True)
    if report.damage:
        sys.exit(1)


@shardmill.command(short_help="documents, decoded, with their token boundaries")
@click.argument("folder", metavar="DIR")
@click.option("--split", default=None, metavar="SPLIT", help="train or val  [default: the first]")
@click.option("-d", "--document", "first", type=click.IntRange(min=0), default=0, metavar="N", help="the first to show")
@click.option("-n", "--documents", type=click.IntRange(min=1), default=3, metavar="N", help="how many  [default: 3]")
@click.option(
    "--tokens", type=click.IntRange(min=1), default=200, metavar="N", help="of each at the most  [default: 200]"
)
@click.option("--ids", is_flag=True, help="the id of each token as well")
def show(folder: str, **given: Any) -> None:
    """Look at documents of a dataset. Tokens are told apart by colour on a terminal, and by │ elsewhere."""
    from shardmill.dataset.dataset import open_dataset
    from shardmill.dataset.show import show as shown

    def paint(number: int, text: str) -> str:
        return click.style(text, bg=("bright_black", "blue")[number % 2])

    for line in shown(open_dataset(folder), **given, paint=paint if sys.stdout.isatty() else None):
        click.echo(line)


@shardmill.command(short_help="another format, without tokenizing again")
@click.argument("source", metavar="DIR")
@click.option("-o", "--out", required=True, metavar="DIR", help="folder of the new dataset")
@partial(_options, only=("format", "eot", "shard_tokens", "tail", "name", "tokenizer", "overwrite"))
@click.option(
    "--source-eot", type=click.Choice(["after", "before", "none"]), default=None,
    help="where the end-of-text token stands in files of other tools; found out by default",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print the summary as JSON on standard output")
@click.option("-q", "--quiet", is_flag=True, help="no progress and no summary")
def convert(source: str, out: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write a dataset again in other formats, with EOT, shard size and width as they need it.

    DIR is a dataset, or files that other tools have made: nanoGPT's and llm.c's `.bin`, build-nanogpt's `.npy`,
    Megatron's `.bin` and `.idx`. Of such files `--tokenizer` says what made them. Kill it at any moment: the same
    command goes on from there.
    """
    from shardmill.dataset.conversion import convert as run
    from shardmill.run.progress import choose_progress
    from shardmill.run.summary import as_data, as_text

    options = {name: value for name, value in given.items() if value not in (None, ())}
    result = run(source, out, progress=choose_progress(quiet or as_json), **options)
    if as_json:
        click.echo(json.dumps(as_data(result)))
    elif not quiet:
        click.echo(as_text(result), err=True)


@shardmill.command(short_help="what tokenizers there are")
@click.option("--json", "as_json", is_flag=True, help="print the list as JSON")
def tokenizers(as_json: bool) -> None:
    """List the tokenizers that have a name. Any `.tiktoken`, `tokenizer.json` or SentencePiece `.model` file, and any
    hub id, can be given to `--tokenizer` as well.
    """
    from shardmill.tokens import list_tokenizers

    listed = list_tokenizers()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in listed]))
        return
    click.echo(f"{'name':<14}{'vocabulary':>11}  {'engine':<12}{'from':<40}")
    for one in listed:
        here = one.source if one.available else f"{one.source} (not here yet)"
        click.echo(f"{one.name:<14}{one.vocab_size:>11,}  {one.engine:<12}{here}")


@shardmill.command(short_help="datasets that have a name")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="print them as JSON")
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes: names that `prepare` and `inspect` take as a SOURCE. With NAME, or a recipe's file, all about
    one, and the commands that it stands for.
    """
    from shardmill.sources.recipe_calls import as_data, as_page, as_table
    from shardmill.sources.recipes import list_recipes, named_recipe

    listed = list_recipes() if name is None else [named_recipe(name)]
    if as_json:
        data = [as_data(one) for one in listed]
        click.echo(json.dumps(data if name is None else data[0]))
        return
    for line in as_table(listed) if name is None else as_page(listed[0]):
        click.echo(line)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: runs a command, and turns what is expected to go wrong into words and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    # Nothing here multiplies matrices, and the threads that numpy starts for it spin a tenth of a second for nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        shardmill.main(args=None if arguments is None else list(arguments), standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as wrong:
        click.echo(f"error: {wrong.format_message()}", err=True)
        if isinstance(wrong, click.UsageError) and wrong.ctx is not None:
            click.echo(f"  hint:  `{wrong.ctx.command_path} --help` shows what there is", err=True)
        sys.exit(2)
    except ShardmillError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted: what is done is recorded; the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing can be said to them any more.
        sys.stdout = None
        sys.exit(1)
    sys.exit(0)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
