"""`python -m benchmarks COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import arrange, compare, cores, machines, publish, python, remote, report, results
from benchmarks.corpus import Corpus

UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3}


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.command == "table":
        show(json.loads(arguments.file.read_text()))
        return
    if arguments.command == "publish":
        publish.publish(publish.newest())
        return
    runs = {
        "compare": run_compare,
        "tokenizers": run_tokenizers,
        "remote": run_remote,
        "python": run_python,
        "report": run_report,
        "machines": run_machines,
        "cores": run_cores,
        "arrange": run_arrange,
    }
    result = runs[arguments.command](arguments)
    path = results.save(result, arguments.results)
    show(result)
    print(f"\nkept in {path}", file=sys.stderr)


def run_compare(arguments: argparse.Namespace) -> dict[str, Any]:
    size = arguments.size or (None if arguments.input else size_of("200MB"))
    return compare.compare(
        Corpus("english", size, arguments.input),
        {name: Corpus(name, None, path) for name, path in arguments.also},
        slice_bytes=arguments.slice,
        workers=arguments.workers,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
        only=arguments.only,
    )


def run_tokenizers(arguments: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import tokenizers  # needs what the tests need

    return tokenizers.measure(Corpus("english", arguments.size, arguments.input), arguments.only)


def run_remote(arguments: argparse.Namespace) -> dict[str, Any]:
    return remote.measure(
        Corpus("english", arguments.size, arguments.input),
        latency=arguments.latency,
        workers=arguments.workers,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
    )


def run_python(arguments: argparse.Namespace) -> dict[str, Any]:
    return python.measure(
        Corpus("english", arguments.size, arguments.input),
        workers=arguments.workers,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
    )


def run_report(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = Corpus("english", arguments.size, arguments.input)
    return report.measure(corpus, tokens=arguments.tokens, memory=arguments.memory, timeout=arguments.timeout)


def run_machines(arguments: argparse.Namespace) -> dict[str, Any]:
    return machines.measure(
        Corpus("english", arguments.size, arguments.input),
        parts=arguments.parts,
        workers=arguments.workers,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
        only=arguments.only,
    )


def run_cores(arguments: argparse.Namespace) -> dict[str, Any]:
    return cores.measure(
        Corpus("english", arguments.size, arguments.input),
        workers=arguments.workers,
        memory=arguments.memory,
        timeout=arguments.timeout,
        only=arguments.only,
    )


def run_arrange(arguments: argparse.Namespace) -> dict[str, Any]:
    return arrange.measure(
        arguments.dataset,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
        only=arguments.only,
    )


def show(result: dict[str, Any]) -> None:
    """Print the result as Markdown."""
    if result["kind"] == "tokenizers":
        from benchmarks import tokenizers

        print(tokenizers.table(result))
        return
    tables = {
        "compare": compare.table,
        "remote": remote.table,
        "python": python.table,
        "report": report.table,
        "machines": machines.table,
        "cores": cores.table,
        "arrange": arrange.table,
    }
    print(tables[result["kind"]](result))


def size_of(written: str) -> int:
    """Bytes of `500MB`, `1.5GB` or a plain number."""
    for unit, factor in UNITS.items():
        if written.endswith(unit):
            return int(float(written.removesuffix(unit)) * factor)
    return int(written)


def named(written: str) -> tuple[str, Path]:
    """Name and file of `chinese=zh.jsonl`."""
    name, _, path = written.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError("NAME=FILE is wanted")
    return name, Path(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--input", type=Path, help="file or folder: .jsonl, .jsonl.zst, .jsonl.gz, .parquet, .txt")
    both.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    both.add_argument("--memory", default="1GB", help="shardmill's --memory")
    both.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    both.add_argument("--only", action="append", default=[], metavar="WORD", help="may be given more than once")
    both.add_argument("--results", type=Path, default=results.FOLDER, help="folder for the result")

    one = commands.add_parser("compare", parents=[both], help="beside what people use instead")
    one.add_argument("--size", type=size_of, help="bytes of text; default: all of --input, or 200MB of made text")
    one.add_argument(
        "--also", type=named, action="append", default=[], metavar="NAME=FILE", help="text of another kind, as --input"
    )
    one.add_argument("--slice", type=size_of, default=size_of("20MB"), help="what the slowest ways get")
    one.add_argument("--repeat", type=int, default=3)

    tokens = commands.add_parser("tokenizers", help="engine, speed and differences of every tokenizer")
    tokens.add_argument("--input", type=Path)
    tokens.add_argument("--size", type=size_of, default=size_of("40MB"), help="bytes of text")
    tokens.add_argument("--only", action="append", default=[], metavar="NAME")
    tokens.add_argument("--results", type=Path, default=results.FOLDER)

    away = commands.add_parser("remote", parents=[both], help="parquet from a hub against the same on disk")
    away.add_argument("--size", type=size_of, default=size_of("500MB"), help="bytes of text")
    away.add_argument("--latency", type=float, default=0.05, help="seconds added to every request")
    away.add_argument("--repeat", type=int, default=3)

    given = commands.add_parser("python", parents=[both], help="text from Python against the same text in a file")
    given.add_argument("--size", type=size_of, default=size_of("200MB"), help="bytes of text")
    given.add_argument("--repeat", type=int, default=3)

    page = commands.add_parser("report", parents=[both], help="a report of a dataset of a billion tokens")
    page.add_argument(
        "--size", type=size_of, default=size_of("100MB"), help="bytes of text that its shards are made of"
    )
    page.add_argument("--tokens", type=int, default=10**9)

    many = commands.add_parser("machines", parents=[both], help="in parts, also on Ray, against one run; merge, plan")
    many.add_argument("--size", type=size_of, default=size_of("1GB"), help="bytes of text")
    many.add_argument("--parts", type=int, default=10)
    many.add_argument("--repeat", type=int, default=3)

    busy = commands.add_parser("cores", help="how many cores one run keeps busy, with an encoder that only sleeps")
    busy.add_argument("--input", type=Path, help="as for the others")
    busy.add_argument("--size", type=size_of, default=size_of("2GB"), help="bytes of text")
    busy.add_argument("--workers", type=lambda s: [int(one) for one in s.split(",")], default=list(cores.WORKERS))
    busy.add_argument("--memory", default="8GB", help="shardmill's --memory")
    busy.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    busy.add_argument("--only", action="append", default=[], metavar="CONTAINER", help="may be given more than once")
    busy.add_argument("--results", type=Path, default=results.FOLDER, help="folder for the result")

    order = commands.add_parser("arrange", help="shuffle, mix, pack and convert a dataset, in turns with cp")
    order.add_argument("dataset", type=Path, help="folder of a finished dataset")
    order.add_argument("--memory", default="256MB", help="shardmill's --memory")
    order.add_argument("--repeat", type=int, default=3)
    order.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    order.add_argument("--only", action="append", default=[], metavar="COMMAND", help="may be given more than once")
    order.add_argument("--results", type=Path, default=results.FOLDER, help="folder for the result")

    commands.add_parser("publish", help="put the newest result of compare into README.md and docs/speed.md")
    three = commands.add_parser("table", help="the tables of a result again")
    three.add_argument("file", type=Path)
    return parser


if __name__ == "__main__":
    main()
