"""What a run has made, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from shardmill.run.manifest import each_output
from shardmill.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from shardmill.run.loop import Result


def as_data(result: Result) -> dict[str, Any]:
    """The summary as JSON-able data."""
    manifest = result.manifest
    return {
        "out": str(result.out),
        "fingerprint": manifest["fingerprint"],
        "documents": manifest["documents"],
        "empty": manifest["empty"],
        "rejected": manifest["rejected"],
        "replaced": manifest["replaced"],
        "fallbacks": result.fallbacks,
        "tokens": sum(split["tokens"] for split in manifest["splits"].values()),
        "text_bytes": sum(split["bytes"] for split in manifest["splits"].values()),
        "splits": {
            name: {key: split[key] for key in ("tokens", "documents", "bytes")} | {"files": len(split["files"])}
            for name, split in manifest["splits"].items()
        },
        "warnings": list(result.warnings),
        "seconds": round(result.seconds, 3),
        "peak_memory": result.peak_memory,
        "already": result.already,
        "resumed": result.resumed,
        "retries": result.retries,
        "engine": result.engine,
    }


def as_text(result: Result) -> str:
    """The summary as a person reads it."""
    data = as_data(result)
    if result.already:
        return f"{result.out} is complete: {data['tokens']:,} tokens of {data['documents']:,} documents. Nothing to do."
    tokens, text = data["tokens"], data["text_bytes"]
    counts = [f"{data['documents']:,} documents"]
    counts += [f"{data['empty']:,} empty"] if data["empty"] else []
    counts += [f"{data['rejected']:,} rejected (see {result.out}/rejects.jsonl)"] if data["rejected"] else []
    lines = [
        ", ".join(counts),
        f"{tokens:,} tokens from {show_bytes(text)} of text"
        + (f", {text / tokens:.2f} bytes a token ({_tokenizer(result)})" if tokens else ""),
    ]
    rows = []
    for described in each_output(result.manifest):
        for name, split in described["splits"].items():
            files = split["files"]
            shown = files[0]["name"] if files else "no file"
            shown += f" … {files[-1]['name']} ({len(files):,} files)" if len(files) > 1 else ""
            size = show_bytes(sum(file["bytes"] for file in files))
            rows.append((name, f"{split['tokens']:,} tokens", f"{split['documents']:,} documents", size, shown))
    lines += _aligned(rows)
    if data["replaced"]:
        lines.append(f"{data['replaced']:,} invalid UTF-8 sequences became U+FFFD")
    if result.fallbacks:
        lines.append(f"{result.fallbacks:,} documents were encoded by the tokenizer's own library")
    if result.retries:
        lines.append(f"{result.retries:,} requests were retried")
    if data["rejected"] and not tokens:
        lines.append("warning: the dataset is empty: every document was rejected")
    elif not data["splits"].get("val", {"tokens": 1})["tokens"]:
        lines.append("val is empty: too little text for its share; see `--val`")
    lines += [f"warning: {warning}" for warning in result.warnings]
    speed = f", {show_bytes(text / result.seconds)}/s" if result.seconds else ""
    lines.append(
        f"{show_seconds(result.seconds)}{speed}, at most {show_bytes(result.peak_memory)} of memory → {result.out}"
    )
    return "\n".join(lines)


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as they have to be, and the last one as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        yield "  ".join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=False)), last])


def as_line(result: Result) -> str:
    """The summary as Python's prompt shows it."""
    data = as_data(result)
    took = "complete before" if result.already else f"in {show_seconds(result.seconds)}"
    return (
        f"<shardmill result {str(result.out)!r}: {data['tokens']:,} tokens of {data['documents']:,} documents, "
        f"{data['rejected']:,} rejected, {took}>"
    )


def as_html(result: Result) -> str:
    """The summary as a notebook shows it."""
    data = as_data(result)
    took = "it was complete before" if result.already else show_seconds(result.seconds)
    memory = f", at most {show_bytes(result.peak_memory)} of memory" if result.peak_memory else ""
    words = f"{data['documents']:,} documents, {data['rejected']:,} rejected, {data['empty']:,} empty; {took}{memory}"
    return splits_html(str(result.out), words, result.manifest["tokenizer"]["name"], result.manifest["splits"])


def splits_html(name: str, words: str, tokenizer: str, splits: dict[str, dict[str, Any]]) -> str:
    """The splits of a dataset as a table, with a line below it."""
    rows = []
    for split, described in splits.items():
        tokens, text = described["tokens"], described["bytes"]
        ratio = f"{text / tokens:.2f}" if text and tokens else "–"
        size = show_bytes(text) if text else "–"
        rows.append((split, f"{tokens:,}", f"{described['documents']:,}", size, ratio, f"{len(described['files']):,}"))
    head = ("split", "tokens", "documents", "text", "bytes/token", "files")
    return f"{_table(f'{name} · {tokenizer}', head, rows)}<p>{escape(words)}</p>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    shown = f"<caption><b>{escape(caption)}</b></caption>"
    return f"<table>{shown}<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _tokenizer(result: Result) -> str:
    """Its name, and what encoded: the core, gigatoken, or its own library."""
    name, engine = result.manifest["tokenizer"]["name"], result.engine.partition(" ")[0]
    return f"{name}, by {engine}" if engine else str(name)
