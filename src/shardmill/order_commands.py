"""The commands that write finished datasets anew: in another format, or in training order."""

from __future__ import annotations

import json
from typing import Any

import click

from shardmill.errors import UsageError
from shardmill.flags import cache_flags, folder_argument, json_flag, number_flag, option_flags, summary_flags
from shardmill.printing import begin_run, options_in, print_error, print_line, summarize


@click.command(short_help="write a dataset in another format")
@folder_argument("folder")
@click.option("-o", "--out", required=True, metavar="DIR", help="folder of the new dataset")
@option_flags("format", "eot", "shard_tokens", "tail", "name", "tokenizer", "delimiter", "memory", "overwrite")
@click.option(
    "--source-eot", type=click.Choice(["after", "before", "none"]), default=None,
    help="position of the end-of-text token in files made by other tools  [default: detected]",
)  # fmt: skip
@cache_flags
@summary_flags
def convert(folder: str, out: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write a dataset in other formats without tokenizing again, with EOT, shard size and integer type as they need it.

    DIR is a dataset, or a folder of files made by another tool, in any format except mds; it may be a URL (s3://,
    gs://, az://, https://, hf://datasets/OWNER/NAME, hf://buckets/OWNER/NAME). For files of another tool `--tokenizer`
    names the tokenizer that made them, and `--delimiter` and `--source-eot` name the token between documents and its
    position. You can stop it at any moment; the same command resumes it.
    """
    from shardmill.arrange import convert as run

    summarize(run(folder, out, progress=begin_run(as_json, quiet), **options_in(flags)), as_json, quiet)


@click.command(short_help="write the documents of a dataset in random order")
@folder_argument("folder")
@click.option("-o", "--out", required=True, metavar="DIR", help="folder of the new dataset")
@number_flag("--seed", minimum=-(1 << 63), default=0, help="chooses the order")
@option_flags("format", "eot", "shard_tokens", "tail", "name", "memory", "overwrite")
@cache_flags
@summary_flags
def shuffle(folder: str, out: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write the documents of each split of a dataset in a random order, whatever the size of the dataset.

    DIR may be a URL. The order depends on `--seed` and the number of documents alone. Formats, EOT and shard size are
    those of the dataset unless others are given. You can stop it at any moment; the same command resumes it, also with
    another amount of memory.
    """
    from shardmill.arrange import shuffle as run

    summarize(run(folder, out, progress=begin_run(as_json, quiet), **options_in(flags)), as_json, quiet)


@click.command(short_help="write several datasets as one, in given shares of tokens")
@click.argument("datasets", nargs=-1, required=True, metavar="DIR:WEIGHT...")
@click.option("-o", "--out", metavar="DIR", help="folder of the new dataset; without it, only the table is printed")
@click.option(
    "--tokens", metavar="N", help="length of the mixture  [default: until a dataset was read --max-epochs times]"
)
@number_flag("--max-epochs", minimum=1, default=1, help="how many times a dataset may be read")
@click.option(
    "--stage", "stages", multiple=True, metavar="N:DIR=WEIGHT,...",
    help="other weights from token N of the mixture on; a dataset that is not named has none; may be repeated",
)  # fmt: skip
@click.option(
    "--export", metavar="TRAINER",
    help="print the mixture as settings of a trainer, and write nothing: megatron, olmo, levanter or nanotron",
)  # fmt: skip
@number_flag("--seed", minimum=-(1 << 63), default=0, help="chooses the order")
@option_flags("format", "eot", "shard_tokens", "tail", "name", "memory", "overwrite")
@cache_flags
@summary_flags
def mix(
    datasets: tuple[str, ...], out: str | None, export: str | None, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Write several datasets as one in which each has its share of the tokens, from the beginning to the end.

    \b
      shardmill mix web:0.7 code:0.2 books:0.1 -o mixed --tokens 10B --max-epochs 4

    DIR may be a URL. A dataset that is read more than once has a new order each time. First comes a table: tokens,
    shares, epochs, and by how many tokens a dataset may be off its share at any place. The val split has every document
    of the datasets' val splits once. You can stop it at any moment; the same command resumes it, also with another
    amount of memory.
    """
    from shardmill.arrange import parse_stages, parse_weights, plan_mixture, write_mixture

    options = options_in(flags)
    limits = {name: options.pop(name) for name in ("tokens", "max_epochs", "cache", "cache_size") if name in options}
    planned = plan_mixture(parse_weights(datasets), stages=parse_stages(options.pop("stages", ())), **limits)
    if export is not None:
        print_line(planned.blend(export))
        return
    if out is None:
        print_line(json.dumps(planned.data()) if as_json else planned.text())
        return
    if not as_json and not quiet:
        print_error(planned.text())
    result = write_mixture(planned, out, begin_run(as_json, quiet), options)
    summarize(result, as_json, quiet, more={"mixture": planned.data()})


@click.command(short_help="write a dataset as rows that begin with a document")
@folder_argument("folder")
@click.option(
    "-o", "--out", metavar="DIR", help="folder of the new dataset; of an index, by default one inside the dataset"
)
@number_flag("--block-size", minimum=2, required=True, help="tokens in a row")
@click.option(
    "--index-only", is_flag=True,
    help="write which documents each row holds, for `batches(pack=True)`, and not the tokens",
)  # fmt: skip
@number_flag("--seed", minimum=-(1 << 63), default=0, help="chooses the order")
@option_flags("format", "shard_tokens", "tail", "name", "memory", "overwrite")
@cache_flags
@summary_flags
def pack(folder: str, out: str | None, index_only: bool, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write a dataset as rows of exactly --block-size tokens, in a random order, each of which begins with a document.

    DIR may be a URL. Only documents longer than a row are cut, into full rows and a rest. Nothing is lost. Rows lie end
    to end, and shards hold whole rows. What remains free at the end of a row is filled with end-of-text tokens. You can
    stop it at any moment; the same command resumes it, also with another amount of memory.
    """
    from shardmill.arrange import pack as run
    from shardmill.arrange import pack_index

    progress = begin_run(as_json, quiet)
    notify = (lambda line: None) if quiet or as_json else print_error
    if index_only:
        of_tokens = ("format", "shard_tokens", "tail", "name")
        for name in of_tokens:
            if name in options_in(flags):
                raise UsageError(f"`--{name.replace('_', '-')}` is for files of tokens, and an index has none")
        given = {name: value for name, value in options_in(flags).items() if name not in of_tokens}
        index = pack_index(folder, out, notify=notify, **given)
        if as_json:
            print_line(json.dumps(index))
        return
    if out is None:
        raise UsageError("no `--out DIR` was given", hint="or add `--index-only`")
    result = run(folder, out, progress=progress, notify=notify, **options_in(flags))
    summarize(result, as_json, quiet, more={"packed": result.manifest["arranged"]["splits"]})


@click.command(short_help="find the documents of a token or a training step, and back")
@folder_argument("folder")
@click.option("--split", default=None, metavar="SPLIT", help="train or val  [default: the first one; of a record, all]")
@number_flag("--token", help="the document that holds token N of the split, counted from 0")
@number_flag("--document", help="document N of the split, counted from 0")
@number_flag("--step", help="the rows of step N of the loader on every rank, counted from 0")
@click.option("--source", metavar="FILE", help="with --record: the documents that a record of this source became")
@number_flag("--record", help="line, row or document N of the source, counted from 1; of plain text, a byte, from 0")
@number_flag("--batch-size", minimum=1, help="the loader's rows in a batch of one rank")
@number_flag("--block-size", minimum=1, help="the loader's tokens in a row")
@number_flag("--world-size", minimum=1, help="the loader's number of ranks  [default: 1]")
@number_flag("--seed", minimum=-(1 << 63), help="the loader's seed  [default: 0]")
@click.option("--order", metavar="ORDER", help="the loader's order  [default: shuffled]")
@click.option("--pack", metavar="DIR", help="the loader's index of packed rows, made by pack --index-only")
@cache_flags
@json_flag(help="print what was found as JSON")
def trace(folder: str, as_json: bool, **flags: Any) -> None:
    """Print which documents, of which source and record, made a token of a dataset or a step of training; or which
    tokens and rows a record became. Works through convert, shuffle, mix and pack, and does not read the tokens. DIR may
    be a URL.

    \b
      shardmill trace data --step 1200 --batch-size 8 --block-size 1024 --world-size 4
      shardmill trace data --source web.jsonl --record 17
    """
    from shardmill.dataset import first_record, open_dataset, rows_text, traced_data
    from shardmill.dataset import trace as traced

    what = options_in(flags)
    kept = {name: what.pop(name) for name in ("cache", "cache_size") if name in what}
    data = open_dataset(folder, **kept)
    if "record" in what and "source" in what:
        what["record"] -= first_record(data, what["source"])
    found = traced(data, **what)
    print_line(json.dumps(traced_data(found)) if as_json else rows_text(found))
