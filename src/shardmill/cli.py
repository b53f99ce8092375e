"""The command line: every command, and how an error becomes a message and an exit code.

A command imports what it needs when it is called, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, NoReturn

import click

from shardmill import __version__, interrupts
from shardmill.errors import Interrupted, ShardmillError
from shardmill.flags import (
    cache_flags,
    complete_tokenizer,
    folder_argument,
    json_flag,
    number_flag,
    option_flags,
    part_flags,
    pop_part_options,
    quiet_flag,
    sources_argument,
    summary_flags,
    verbose_flag,
)
from shardmill.order_commands import convert, mix, pack, shuffle, trace
from shardmill.printing import RESUMABLE, begin_run, options_in, print_error, print_line, summarize

_COMPLETE = "_SHARDMILL_COMPLETE"
_DRY_RUN = ("--dry-run", "--dryrun", "--dry")


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they are defined below, not in alphabetical order


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="shardmill")
def shardmill() -> None:
    """Tokenizes text of any size for LLM training, within a memory limit you set.

    \b
      shardmill prepare corpus.txt -o data
    """


@shardmill.command(short_help="turn text into token files")
@sources_argument()
@click.option("-o", "--out", metavar="DIR", help="folder of the dataset, or a URL: s3://, gs://, az://")
@option_flags()
@part_flags
@summary_flags
@verbose_flag()
def prepare(sources: tuple[str, ...], out: str | None, as_json: bool, quiet: bool, verbose: bool, **flags: Any) -> None:
    """Turn text into token files.

    SOURCE is a file, a folder, a glob, a URL (hf://, https://, s3://, gs://, az://), or `-` for standard input. It
    holds plain text, JSON Lines, parquet, Arrow or CSV, which may be compressed with gzip, zstd, bzip2 or xz.

    SOURCE may also be a recipe, which brings its own settings: a name such as `fineweb-edu/sample-10BT` (`shardmill
    recipes` lists them). An existing path takes precedence over a recipe of that name.

    You can stop it at any moment; the same command resumes it.
    """
    from shardmill.run import own_process

    own_process()
    from shardmill.preparing import prepare_with

    progress = begin_run(as_json, quiet)
    options = options_in(flags)
    planned, part, in_parts = pop_part_options(options, bool(sources), out is not None)
    if planned is not None:
        from shardmill.cluster import make_called_part, part_words

        made = make_called_part(planned, part, sources or out or in_parts, options, progress)
        if made is None:
            return
        if as_json:
            print_line(json.dumps(dataclasses.asdict(made)))
        elif not quiet:
            print_error(part_words(made))
        return
    assert out is not None
    _note_shadowed(sources, quiet or as_json)
    if not in_parts:
        result = prepare_with(list(sources), out, progress, options, {})
    else:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):  # Ray prints paragraphs about lost workers
            result = prepare_with(list(sources), out, progress, options, in_parts)
    summarize(result, as_json, quiet, verbose)


@shardmill.command(short_help="divide the work into parts, for many machines")
@sources_argument(required=True)
@click.option(
    "-o", "--out", required=True, metavar="DIR", help="folder of the dataset, or a URL, that all machines see"
)
@click.option("--parts", type=int, metavar="N", help="number of parts  [default: parts of about 4 GB]")
@click.option(
    "--keep-parts", is_flag=True, help="keep the shards of the parts, which have unequal sizes, instead of merging them"
)
@option_flags()
@json_flag(help="print the parts as JSON on standard output")
def plan(sources: tuple[str, ...], out: str, parts: int | None, keep_parts: bool, as_json: bool, **flags: Any) -> None:
    """Divide the work of `prepare` into parts of about equal size.

    `shardmill prepare --plan DIR --part K` then makes part K, on any machine and in any order. `shardmill merge DIR`
    combines all parts into the dataset that `shardmill prepare` would have made. Running the command again changes
    nothing.
    """
    from shardmill.cluster import plan_data, plan_parts, plan_words
    from shardmill.run import inspect_plan

    _note_shadowed(sources, as_json)
    options = options_in(flags)
    made = plan_parts(list(sources), out, parts=parts, keep_parts=keep_parts, **options)
    machine = {name: value for name, value in options.items() if name in ("memory", "workers")}
    report = inspect_plan(made.load(None, machine)[0], out)
    print_line(json.dumps(plan_data(made, report)) if as_json else plan_words(made, report))


@shardmill.command(short_help="merge the parts into one dataset")
@click.argument("out", metavar="DIR")
@option_flags("memory", "max_bad")
@click.option(
    "--keep-parts", is_flag=True, help="accepted for plans made with --keep-parts, whose parts are always kept"
)
@summary_flags
def merge(out: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Make the dataset of a plan from its parts, byte for byte what one machine would have made.

    All parts must exist; the error names any that is missing, damaged or made from another plan. Parts are deleted as
    they are merged. You can stop it at any moment; the same command resumes it.
    """
    from shardmill.run import own_process

    own_process()
    from shardmill.cluster import merge as run

    summarize(run(out, progress=begin_run(as_json, quiet), **options_in(flags)), as_json, quiet)


@shardmill.command(short_help="estimate a run before you start it, and find problems")
@sources_argument(required=True)
@click.option(
    "-o", "--out", metavar="DIR", help="folder or URL where the dataset will go  [default: the current folder]"
)
@option_flags(
    "tokenizer", "pattern", "format", "input_format", "include", "exclude", "text_field", "separator", "memory",
    "workers", "recipe",
)  # fmt: skip
@json_flag(help="print the report as JSON")
@verbose_flag()
def inspect(sources: tuple[str, ...], out: str | None, as_json: bool, verbose: bool, **flags: Any) -> None:
    """Estimate documents, tokens, disk, memory and time of a run from a sample of a few megabytes, and report what
    would go wrong. Nothing is written. The exit code is 1 if `prepare` would stop with an error.

    SOURCE is whatever `prepare` accepts, recipes included.
    """
    from shardmill.run import inspect as run_inspection

    _note_shadowed(sources, as_json)
    report = run_inspection(list(sources), out, **options_in(flags))
    print_line(json.dumps(report.data()) if as_json else report.text(verbose=verbose))
    if report.stops:
        sys.exit(1)


@shardmill.command(short_help="check a finished dataset")
@folder_argument("folder")
@click.option("--sample", default=100, metavar="N", help="number of documents to encode again  [default: 100]")
@click.option("--source", is_flag=True, help="read all sources again and compare every token")
@cache_flags
@json_flag(help="print the report as JSON on standard output")
@quiet_flag(help="print only damage")
def verify(folder: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Check a dataset against its manifest: file sizes, sha256 and counts. Check also that every id is in range and
    that EOT is exactly between documents. A sample of the documents is encoded again with the tokenizer's own library.
    The exit code is 1 if something is damaged. DIR may be a URL.
    """
    from shardmill.dataset import verify as check

    notify = (lambda line: None) if quiet or as_json else print_error
    report = check(folder, notify=notify, **options_in(flags))
    if as_json:
        print_line(json.dumps(dataclasses.asdict(report)))
    elif report.damage or not quiet:
        print_error(report.text())
    if report.damage:
        sys.exit(1)


@shardmill.command(short_help="print documents with their token boundaries")
@folder_argument("folder", metavar="[DIR]", required=False)
@click.option("--split", default=None, metavar="SPLIT", help="split to show: train or val  [default: the first one]")
@number_flag("-d", "--document", "first", default=0, help="number of the first document to show, counted from 0")
@number_flag("--at", help="show the document that holds token N of the split")
@click.option("--random", is_flag=True, help="show documents drawn at random")
@number_flag("--seed", help="with --random: draw the same documents every time")
@number_flag("-n", "--documents", minimum=1, default=3, help="number of documents to show")
@number_flag("--tokens", minimum=1, default=200, help="maximum number of tokens to show of each document")
@click.option("--ids", is_flag=True, help="show the id of each token too")
@click.option("--text", metavar="TEXT", help="show how tokenizers split this text, instead of a dataset")
@click.option(
    "-t", "--tokenizer", "tokenizers", multiple=True, metavar="NAME", shell_complete=complete_tokenizer,
    help="with --text: the tokenizer; give several to compare them side by side  [default: gpt2]",
)  # fmt: skip
@cache_flags
def show(
    folder: str | None,
    text: str | None,
    tokenizers: tuple[str, ...],
    cache: str | None,
    cache_size: str | None,
    **flags: Any,
) -> None:
    """Print documents of a dataset token by token, or how tokenizers split a text. On a terminal tokens have
    alternating colours; elsewhere, and with NO_COLOR, they are separated by │. DIR may be a URL.
    """
    from shardmill.dataset import open_dataset, show_text
    from shardmill.dataset import show as shown
    from shardmill.pager import page, painter

    if (folder is None) == (text is None):
        raise click.UsageError("name a dataset, or give a text with `--text`")
    if tokenizers and text is None:
        raise click.UsageError("`--tokenizer` goes with `--text`: a dataset has its own")
    if flags["at"] is not None and flags["random"]:
        raise click.UsageError("`--at` and `--random` do not go together")
    if flags["seed"] is not None and not flags["random"]:
        raise click.UsageError("`--seed` goes with `--random`")
    paint = painter()
    if text is not None:
        lines = show_text(text, tokenizers or ("gpt2",), ids=flags["ids"], paint=paint)
    else:
        data = open_dataset(folder or "", **options_in({"cache": cache, "cache_size": cache_size}))
        lines = shown(data, **flags, paint=paint)
    page(lines, print_line)


@shardmill.command(short_help="write an HTML page about a dataset")
@folder_argument("folder")
@click.option("-o", "--out", default="report.html", show_default=True, metavar="FILE", help="file to write")
@number_flag("--seed", default=0, help="seed for drawing documents at random")
@number_flag("-n", "--documents", minimum=1, maximum=50, default=6, help="number of documents to draw from each split")
@click.option(
    "--tokens", default="2B", show_default=True, metavar="N",
    help="maximum number of tokens to read; a larger dataset is sampled",
)  # fmt: skip
@cache_flags
def report(folder: str, out: str, **flags: Any) -> None:
    """Write an HTML page about a dataset: totals, plots, tokens, documents drawn at random with every token coloured,
    outliers and rejects. The page is one file that needs no network. DIR may be a URL.
    """
    from shardmill.reporting import report as write

    print_error(f"written: {write(folder, out, **options_in(flags))}")


@shardmill.command(short_help="print a dataset card for the hub")
@folder_argument("folder")
@cache_flags
def card(folder: str, **flags: Any) -> None:
    """Print a dataset card, made from the manifest: Markdown with the YAML metadata that the Hugging Face hub reads.

    \b
      shardmill card data > data/README.md
    """
    from shardmill.reporting import card as made

    print_line(made(folder, **options_in(flags)))


@shardmill.command(short_help="publish a dataset at the Hugging Face hub")
@folder_argument("folder")
@click.argument("to", metavar="URL")
@click.option("--private", is_flag=True, help="make the repository private if it does not exist yet")
@click.option("--overwrite", is_flag=True, help="replace another dataset that is published there")
@json_flag(help="print what was sent as JSON on standard output")
@quiet_flag(help="print nothing")
def publish(folder: str, to: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Publish a dataset at hf://datasets/OWNER/NAME[@BRANCH] or hf://buckets/OWNER/NAME: its files, its card and, last,
    its manifest, which is then read back.

    \b
      shardmill publish data/web hf://datasets/me/web-tokens --private

    You can stop it at any moment; the same command goes on, and nothing is sent twice. A token is needed, from HF_TOKEN
    or `hf auth login`. If DIR has a README.md, that is the card.
    """
    from shardmill.reporting import publish as send

    interrupts.end_orderly(RESUMABLE)
    result = send(folder, to, notify=(lambda line: None) if quiet or as_json else print_error, **flags)
    if as_json:
        print_line(json.dumps(dataclasses.asdict(result)))
    elif not quiet:
        print_error(str(result))


shardmill.add_command(convert)
shardmill.add_command(shuffle)
shardmill.add_command(mix)
shardmill.add_command(pack)
shardmill.add_command(trace)


@shardmill.command(short_help="list the tokenizers that have a name")
@json_flag(help="print the list as JSON")
def tokenizers(as_json: bool) -> None:
    """List the tokenizers that have a name. `--tokenizer` also accepts any `.tiktoken`, `tokenizer.json` or
    SentencePiece `.model` file, and any hub id.
    """
    from shardmill.tokens import list_tokenizers

    listed = list_tokenizers()
    if as_json:
        print_line(json.dumps([dataclasses.asdict(one) for one in listed]))
        return
    print_line(f"{'name':<14}{'vocabulary':>11}  {'engine':<12}{'source':<40}")
    for one in listed:
        print_line(f"{one.name:<14}{one.vocab_size:>11,}  {one.engine:<12}{one.source}")


@shardmill.command(short_help="list the recipes for well-known datasets")
@click.argument("name", required=False)
@json_flag(help="print the recipes as JSON")
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes: names that `prepare` and `inspect` accept as a SOURCE. With NAME, which may be a recipe file,
    print the details of one and the commands it stands for.
    """
    from shardmill.sources import list_recipes, named_recipe, recipe_data, recipe_page, recipe_table

    listed = list_recipes() if name is None else [named_recipe(name)]
    if as_json:
        data = [recipe_data(one) for one in listed]
        print_line(json.dumps(data if name is None else data[0]))
        return
    for line in recipe_table(listed) if name is None else recipe_page(listed[0]):
        print_line(line)


@shardmill.command(short_help="print the completion script for a shell")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options and values. To install it:

    \b
      bash:  echo 'eval "$(shardmill completion bash)"' >> ~/.bashrc
      zsh:   echo 'eval "$(shardmill completion zsh)"' >> ~/.zshrc
      fish:  shardmill completion fish > ~/.config/fish/completions/shardmill.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    # Not `source()`: it starts a bash to ask for its version, and may find another than the one that reads this.
    completes = made(shardmill, {}, "shardmill", _COMPLETE)
    print_line(completes.source_template % completes.source_vars())


def _note_shadowed(sources: tuple[str, ...], quiet: bool) -> None:
    from shardmill.sources import shadowed

    for name in shadowed(sources) if not quiet else ():
        print_error(f"note: `{name}` exists on disk, so it is read instead of the recipe of that name")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit; an expected failure becomes a message on standard error and an exit code."""
    # Nothing here multiplies matrices, and the threads that numpy starts for it spin a tenth of a second for nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _run(sys.argv[1:] if arguments is None else list(arguments))
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        print_error(f"error: {error.format_message()}")
        if isinstance(error, click.NoSuchOption) and error.option_name in _DRY_RUN:
            print_error("  hint:  `shardmill inspect SOURCE…` estimates a run and writes nothing")
        elif isinstance(error, click.UsageError) and error.ctx is not None:
            listed = "commands" if isinstance(error.ctx.command, click.Group) else "options"
            print_error(f"  hint:  `{error.ctx.command_path} --help` lists the {listed}")
        sys.exit(2)
    except ShardmillError as error:
        print_error(f"error: {error.command_text()}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        kept = error.kept if isinstance(error, Interrupted) else None
        print_error(f"interrupted: {kept}" if kept else RESUMABLE)
        sys.exit(interrupts.CODE)
    except BrokenPipeError:
        # The reader of our output has seen enough. Python would try to write the rest again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:
        print_error(f"error: {error.strerror or error}" + (f"\n  place: {error.filename}" if error.filename else ""))
        sys.exit(1)
    except MemoryError:
        print_error("error: out of memory\n  hint:  close other programs, or raise the memory limit of this process")
        sys.exit(1)
    sys.exit(0)


def _run(arguments: list[str]) -> None:
    """Do what click's own `main` does, without its handling of interrupts and of pipes that nobody reads."""
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(shardmill, {}, "shardmill", _COMPLETE, instruction))
    with shardmill.make_context("shardmill", arguments or ["--help"]) as context:
        shardmill.invoke(context)
