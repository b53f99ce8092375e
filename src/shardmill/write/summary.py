"""The result of a run, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.source_list import Skipped
from shardmill.units import plural, show_bytes, show_seconds
from shardmill.write.manifest import Manifest, SplitEntry, each_output

if TYPE_CHECKING:
    from shardmill import Dataset


@dataclass(frozen=True)
class Result:
    """The result of a run. `open()` opens the dataset."""

    out: Path | str
    """The folder, or the URL."""
    manifest: Manifest
    """What `manifest.json` holds."""
    seconds: float = 0.0
    """Of this call."""
    peak_memory: int = 0
    """Bytes."""
    replaced: int = 0
    """Invalid UTF-8 sequences that became U+FFFD."""
    fallbacks: int = 0
    """Documents that the tokenizer's own library encoded, because the core could not."""
    warnings: tuple[str, ...] = ()
    """What looks wrong in the sources, with the way out, and anything that the readers of the formats cannot handle."""
    already: bool = False
    """The dataset was already complete; nothing was done."""
    resumed: bool = False
    """An earlier call had begun it."""
    text_before: int = 0
    """Bytes of text that earlier attempts had written; `seconds` are those of the last attempt."""
    retries: int = 0
    """Requests to remote sources and to the output's store that were retried. Those that the store's library retries
    within an upload of many parts are not counted."""
    engine: str = ""
    """The engine and the reference library, with versions."""

    @property
    def documents(self) -> int:
        documents: int = self.manifest["documents"]
        return documents

    @property
    def tokens(self) -> int:
        """The tokens of all splits, with the end-of-text tokens."""
        return sum(split["tokens"] for split in self.manifest["splits"].values())

    def open(self) -> Dataset:
        """Return the dataset as `shardmill.open` does."""
        import shardmill

        return shardmill.open(self.out)

    def __repr__(self) -> str:
        data = as_data(self)
        took = "complete before" if self.already else f"in {show_seconds(self.seconds)}"
        return (
            f"<shardmill result {str(self.out)!r}: {plural(data['tokens'], 'token')} of "
            f"{plural(data['documents'], 'document')}, {data['rejected']:,} rejected, {took}>"
        )

    def _repr_html_(self) -> str:
        data = as_data(self)
        took = "it was complete before" if self.already else show_seconds(self.seconds)
        memory = f", at most {show_bytes(self.peak_memory)} of memory" if self.peak_memory else ""
        counts = f"{plural(data['documents'], 'document')}, {data['rejected']:,} rejected, {data['empty']:,} empty"
        name, splits = self.manifest["tokenizer"]["name"], self.manifest["splits"]
        return splits_html(str(self.out), f"{counts}; {took}{memory}", name, splits)


def as_data(result: Result) -> dict[str, Any]:
    """The summary as JSON-able data."""
    manifest = result.manifest
    return {
        "out": str(result.out),
        **{key: manifest[key] for key in ("fingerprint", "documents", "empty", "rejected", "replaced")},
        "fallbacks": result.fallbacks,
        "tokens": result.tokens,
        "text_bytes": sum(split["bytes"] for split in manifest["splits"].values()),
        "splits": {
            name: {key: split[key] for key in ("tokens", "documents", "bytes")} | {"files": len(split["files"])}
            for name, split in manifest["splits"].items()
        },
        "skipped": Skipped.of(manifest.get("skipped")).data(),
        "warnings": list(result.warnings),
        "seconds": round(result.seconds, 3),
        **{key: getattr(result, key) for key in ("peak_memory", "already", "resumed", "retries", "engine")},
    }


def as_text(result: Result, *, verbose: bool = False) -> str:
    """The summary as a person reads it; `verbose`: with the names of what was skipped."""
    data = as_data(result)
    if result.already:
        held = f"{plural(data['tokens'], 'token')} of {plural(data['documents'], 'document')}"
        return f"{result.out} is complete: {held}. Nothing to do."
    tokens, text = data["tokens"], data["text_bytes"]
    by = ", by ".join(filter(None, [result.manifest["tokenizer"]["name"], result.engine.partition(" ")[0]]))
    counts = [plural(data["documents"], "document")]
    counts += [f"{data['empty']:,} empty"] if data["empty"] else []
    counts += [f"{data['rejected']:,} rejected (see {result.out}/rejects.jsonl)"] if data["rejected"] else []
    lines = [
        ", ".join(counts),
        f"{plural(tokens, 'token')} from {show_bytes(text)} of text"
        + (f", {text / tokens:.2f} bytes per token ({by})" if tokens else ""),
    ]
    rows = []
    for described in each_output(result.manifest):
        for name, split in described["splits"].items():
            files = split["files"]
            shown = files[0]["name"] if files else "no file"
            shown += f" … {files[-1]['name']} ({len(files):,} files)" if len(files) > 1 else ""
            size = show_bytes(sum(file["bytes"] for file in files))
            documents = plural(split["documents"], "document")
            if split["tokens"] and not split["documents"]:  # a document counts where it ends
                documents = "part of a document"
            rows.append((name, plural(split["tokens"], "token"), documents, size, shown))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        lines.append("  ".join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=False)), last]))
    lines += Skipped.of(result.manifest.get("skipped")).lines(names=verbose)
    library = result.engine.partition(" ")[0]
    if library not in ("", "core"):
        lines.append(
            f"encoded by {library}, at less than a tenth of the usual speed: the core does not know this tokenizer"
        )
    if result.fallbacks:
        were = "was" if result.fallbacks == 1 else "were"
        lines.append(f"{plural(result.fallbacks, 'document')} {were} encoded by the tokenizer's own library")
    if result.retries:
        lines.append(f"{plural(result.retries, 'request')} {'was' if result.retries == 1 else 'were'} retried")
    if data["rejected"] and not tokens:
        lines.append("warning: the dataset is empty: every document was rejected")
    lines += [f"warning: {warning}" for warning in result.warnings]
    speed = f", {show_bytes(max(0, text - result.text_before) / result.seconds)}/s" if result.seconds else ""
    took = f"{'resumed: ' if result.resumed else ''}{show_seconds(result.seconds)}{speed}"
    lines.append(f"{took}, at most {show_bytes(result.peak_memory)} of memory → {result.out}")
    return "\n".join(lines)


def splits_html(name: str, note: str, tokenizer: str, splits: dict[str, SplitEntry]) -> str:
    """The splits of a dataset as a table, with a line below it."""
    rows = []
    for split, described in splits.items():
        tokens, text = described["tokens"], described["bytes"]
        ratio = f"{text / tokens:.2f}" if text and tokens else "–"
        size = show_bytes(text) if text else "–"
        rows.append((split, f"{tokens:,}", f"{described['documents']:,}", size, ratio, f"{len(described['files']):,}"))
    head = ("split", "tokens", "documents", "text", "bytes/token", "files")
    names = "".join(f"<th>{name}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    caption = f"<caption><b>{escape(f'{name} · {tokenizer}')}</b></caption>"
    table = f"<table>{caption}<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
    return f"{table}<p>{escape(note)}</p>"
