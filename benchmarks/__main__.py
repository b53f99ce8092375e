"""`python -m benchmarks COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import bound_shares, bounds, compare, growth, machines, plot, python, remote, report, results, scale
from benchmarks.corpus import Corpus

UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3}


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.command == "table":
        show(json.loads(arguments.file.read_text()), arguments.file)
        return
    if arguments.command == "scale":
        scale.main()
        return
    runs = {
        "compare": run_compare,
        "growth": run_growth,
        "bounds": run_bounds,
        "tokenizers": run_tokenizers,
        "remote": run_remote,
        "python": run_python,
        "report": run_report,
        "machines": run_machines,
    }
    result = runs[arguments.command](arguments)
    path = results.save(result, arguments.results)
    if arguments.command == "bounds":
        arguments.page.write_text(bound_shares.page(result, path, arguments.source, arguments.page))
    show(result, path)
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


def run_growth(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = growth.cells(arguments.sizes, size=arguments.size, workers=arguments.workers, memory=arguments.memory)
    if arguments.only:
        chosen = [cell for cell in chosen if cell.question in arguments.only]
    if not chosen:
        raise SystemExit(f"error: --only takes {', '.join(growth.TITLES)}")
    return growth.grow(chosen, arguments.input, repeat=arguments.repeat, timeout=arguments.timeout)


def run_bounds(arguments: argparse.Namespace) -> dict[str, Any]:
    size = arguments.size or (None if arguments.source else size_of("200MB"))
    return bounds.measure(
        Corpus("english", size, arguments.source),
        workers=arguments.workers,
        memory=arguments.memory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
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


def show(result: dict[str, Any], path: Path) -> None:
    """The Markdown to stdout, the plots beside the result."""
    if result["kind"] == "compare":
        print(compare.table(result))
        plots = {"": plot.bars(rows, "MB/s of text")} if (rows := compare.bars(result)) else {}
    elif result["kind"] == "bounds":
        print(bound_shares.table(result))
        plots = {}
    elif result["kind"] == "remote":
        print(remote.table(result))
        plots = {}
    elif result["kind"] == "python":
        print(python.table(result))
        plots = {}
    elif result["kind"] == "report":
        print(report.table(result))
        plots = {}
    elif result["kind"] == "machines":
        print(machines.table(result))
        plots = {}
    elif result["kind"] == "tokenizers":
        from benchmarks import tokenizers

        print(tokenizers.table(result))
        plots = {}
    else:
        print(growth.table(result))
        units = {"speed": "MB/s of text", "memory": "peak memory, MB"}
        found = {name: growth.series(result, name) for name in units}
        plots = {f"-{name}": plot.lines(found[name], "GB of text", units[name]) for name in units if found[name]}
    for suffix, svg in plots.items():
        path.with_name(f"{path.stem}{suffix}.svg").write_text(svg)


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

    two = commands.add_parser("growth", parents=[both], help="against size, workers, budget, container, kind")
    sizes = [size_of(s) for s in ("100MB", "300MB", "1GB", "3GB", "10GB")]
    two.add_argument("--sizes", type=lambda s: [size_of(one) for one in s.split(",")], default=sizes)
    two.add_argument("--size", type=size_of, default=size_of("300MB"), help="for all questions but that of size")
    two.add_argument("--repeat", type=int, default=2)

    least = commands.add_parser("bounds", help="what each necessary step takes alone, and the share that is reached")
    least.add_argument("source", nargs="?", type=Path, help="as --input of the others; default: 200MB of made text")
    least.add_argument("--size", type=size_of, help="bytes of text; default: all of SOURCE")
    least.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    least.add_argument("--memory", default="512MB", help="shardmill's --memory")
    least.add_argument("--repeat", type=int, default=3)
    least.add_argument("--timeout", type=float, default=1800, help="seconds for one step or run")
    least.add_argument("--results", type=Path, default=results.FOLDER, help="folder for the result")
    least.add_argument("--page", type=Path, default=bound_shares.PAGE, help="the page of the docs that is written")

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

    commands.add_parser("scale", help="the tables of docs/scale.md: clusters on paper")

    three = commands.add_parser("table", help="the tables of a result again")
    three.add_argument("file", type=Path)
    return parser


if __name__ == "__main__":
    main()
