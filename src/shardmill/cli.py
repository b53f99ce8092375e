"""The command line: thin. `options.py` says what an option is."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import click

from shardmill import __version__, interrupts
from shardmill.errors import Interrupted, OutputError, ShardmillError
from shardmill.options import Options

_COMPLETE = "_SHARDMILL_COMPLETE"
_RESUMABLE = "interrupted: what was recorded stays; the same command goes on from there"


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
    from shardmill.run.machine import own_process

    own_process()
    with _importing():
        from shardmill.run.main import prepare as run
        from shardmill.run.progress import choose_progress
        from shardmill.run.summary import as_data, as_text

    interrupts.end_orderly(_RESUMABLE)
    options = {name: value for name, value in given.items() if value not in (None, ())}
    if quiet:
        logging.getLogger("shardmill").setLevel(logging.ERROR)
    _tell_shadowed(sources, quiet or as_json)
    result = run(list(sources), out, progress=choose_progress(quiet or as_json), **options)
    if as_json:
        _print(json.dumps(as_data(result)))
    elif not quiet:
        _complain(as_text(result))


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
        _complain(f"note: `{name}` is here, so it is read, and not the recipe of that name")


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
    _print(json.dumps(report.data()) if as_json else report.text())
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
    from shardmill.dataset import verify as check

    said = (lambda line: None) if quiet or as_json else (lambda line: _complain(line))
    report = check(folder, sample=sample, source=source, tell=said)
    if as_json:
        _print(json.dumps(dataclasses.asdict(report)))
    elif report.damage or not quiet:
        _complain(report.text())
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
    from shardmill.dataset import open_dataset
    from shardmill.dataset import show as shown

    def paint(number: int, text: str) -> str:
        return click.style(text, bg=("bright_black", "blue")[number % 2])

    for line in shown(open_dataset(folder), **given, paint=paint if sys.stdout and sys.stdout.isatty() else None):
        _print(line)


@shardmill.command(short_help="another format, without tokenizing again")
@click.argument("source", metavar="DIR")
@click.option("-o", "--out", required=True, metavar="DIR", help="folder of the new dataset")
@partial(_options, only=("format", "eot", "shard_tokens", "tail", "name", "tokenizer", "delimiter", "overwrite"))
@click.option(
    "--source-eot", type=click.Choice(["after", "before", "none"]), default=None,
    help="where the end-of-text token stands in files of other tools; found out by default",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print the summary as JSON on standard output")
@click.option("-q", "--quiet", is_flag=True, help="no progress and no summary")
def convert(source: str, out: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write a dataset again in other formats, with EOT, shard size and width as they need it.

    DIR is a dataset, or files that other tools have made, of any format but mds. Of such files `--tokenizer` says what
    made them, and `--delimiter` and `--source-eot` which token stands between documents, and where. Kill it at any
    moment: the same command goes on from there.
    """
    from shardmill.dataset import convert as run
    from shardmill.run.progress import choose_progress
    from shardmill.run.summary import as_data, as_text

    interrupts.end_orderly(_RESUMABLE)
    options = {name: value for name, value in given.items() if value not in (None, ())}
    result = run(source, out, progress=choose_progress(quiet or as_json), **options)
    if as_json:
        _print(json.dumps(as_data(result)))
    elif not quiet:
        _complain(as_text(result))


@shardmill.command(short_help="what tokenizers there are")
@click.option("--json", "as_json", is_flag=True, help="print the list as JSON")
def tokenizers(as_json: bool) -> None:
    """List the tokenizers that have a name. Any `.tiktoken`, `tokenizer.json` or SentencePiece `.model` file, and any
    hub id, can be given to `--tokenizer` as well.
    """
    from shardmill.tokens import list_tokenizers

    listed = list_tokenizers()
    if as_json:
        _print(json.dumps([dataclasses.asdict(one) for one in listed]))
        return
    _print(f"{'name':<14}{'vocabulary':>11}  {'engine':<12}{'from':<40}")
    for one in listed:
        here = one.source if one.available else f"{one.source} (not here yet)"
        _print(f"{one.name:<14}{one.vocab_size:>11,}  {one.engine:<12}{here}")


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
        _print(json.dumps(data if name is None else data[0]))
        return
    for line in as_table(listed) if name is None else as_page(listed[0]):
        _print(line)


def _print(text: str) -> None:
    """On standard output. To find that nobody reads it is no error; that it cannot be written is."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as why:
        raise OutputError(f"standard output cannot be written: {why.strerror or why}") from why


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and turn what is expected to go wrong into words and an exit code."""
    # Nothing here multiplies matrices, and the threads that numpy starts for it spin a tenth of a second for nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _run(sys.argv[1:] if arguments is None else list(arguments))
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as wrong:
        _complain(f"error: {wrong.format_message()}")
        if isinstance(wrong, click.UsageError) and wrong.ctx is not None:
            _complain(f"  hint:  `{wrong.ctx.command_path} --help` shows what there is")
        sys.exit(2)
    except ShardmillError as error:
        _complain(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt as why:
        kept = why.kept if isinstance(why, Interrupted) else None
        _complain(f"interrupted: {kept}" if kept else _RESUMABLE)
        sys.exit(interrupts.CODE)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would try again to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as why:
        _complain(f"error: {why.strerror or why}" + (f"\n  place: {why.filename}" if why.filename else ""))
        sys.exit(1)
    except MemoryError:
        _complain("error: the system has no memory left\n  hint:  end other programs, or lift the limit of this one")
        sys.exit(1)
    sys.exit(0)


def _run(arguments: list[str]) -> None:
    """What click's own `main` does, without its handling of interrupts and of pipes that nobody reads."""
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(shardmill, {}, "shardmill", _COMPLETE, instruction))
    with shardmill.make_context("shardmill", arguments or ["--help"]) as context:
        shardmill.invoke(context)


def _complain(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError as why:
        if why.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        # Then the exit code has to say it.
