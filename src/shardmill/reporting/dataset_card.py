"""A dataset card: Markdown with the YAML head that the Hugging Face hub reads, from the manifest alone."""

from __future__ import annotations

import json
import os
from typing import Any

from shardmill.dataset import open_dataset
from shardmill.units import show_bytes

_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
          (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B"),
          (10**12, "100B<n<1T"))  # fmt: skip
_SOURCES = 20  # that are listed


def card(folder: str | os.PathLike[str]) -> str:
    """The card of a dataset; UsageError when the folder is none. What the files do not say is left to fill in."""
    data = open_dataset(folder)
    manifest = data.manifest
    tokenizer, options = manifest["tokenizer"], manifest["options"]
    name = data.folder.resolve().name
    tokens = sum(len(data[split]) for split in data)
    text = sum(data[split].described["bytes"] for split in data)
    size = next((label for most, label in _SIZES if manifest["documents"] < most), "n>1T")
    head = [
        "---",
        f"pretty_name: {_yaml(name)}",
        "task_categories:",
        "- text-generation",
        "size_categories:",
        f"- {size}",
        "tags:",
        "- tokenized",
        "- shardmill",
        f"- {_yaml(str(tokenizer['name']))}",
        "---",
    ]
    ratio = f", {text / tokens:.2f} bytes per token" if text and tokens else ""
    rejected = f", {manifest['rejected']:,} rejected" if manifest["rejected"] else ""
    lines = [
        *head,
        "",
        f"# {_plain(name)}",
        "",
        f"{tokens:,} tokens of {manifest['documents']:,} document{'s' * (manifest['documents'] != 1)}"
        + (f" ({show_bytes(text)} of text{ratio})" if text else "")
        + f", tokenized with {_code(tokenizer['name'])}{rejected}.",
        "",
        "| split | documents | tokens | text | files |",
        "|---|---:|---:|---:|---:|",
    ]
    for split in data:
        described = data[split].described
        shown = show_bytes(described["bytes"]) if described["bytes"] else "–"
        cells = (
            split,
            f"{described['documents']:,}",
            f"{described['tokens']:,}",
            shown,
            f"{len(described['files']):,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    eot = f"`{tokenizer['eot']}`, {data.eot} each document" if tokenizer["eot"] is not None else "none"
    facts = {
        "tokenizer": f"{_code(tokenizer['name'])}, {tokenizer['vocab_size']:,} tokens, "
        f"sha256 `{tokenizer['sha256'][:16]}…`",
        "format": f"`{data.format}`, {data.dtype}, little-endian",
        "end-of-text token": eot if data.eot != "none" else "none",
        "validation split": _code(options.get("val", "–")) + f", seed {options.get('seed', 0)}",
        "made by": f"shardmill {_plain(str(manifest.get('shardmill', '')))}",
        "fingerprint": f"`{manifest['fingerprint']}`",
    }
    lines += ["", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())]
    lines += [
        "",
        "## How to read it",
        "",
        "```python",
        "import shardmill",
        "",
        f"data = shardmill.open({name!r})",
        'tokens = data["train"][0:1024]',
        "```",
    ]
    lines += ["", "`shardmill verify` checks every file against the checksums in `manifest.json`."]
    sources: Any = manifest["sources"]
    lines += ["", f"## Sources ({len(sources):,})", ""]
    lines += [
        f"- {_code(source['name'])}: {source['documents']:,} documents"
        for source, _ in zip(sources, range(_SOURCES), strict=False)
    ]
    if len(sources) > _SOURCES:
        lines.append(f"- and {len(sources) - _SOURCES:,} more, all in `manifest.json`")
    lines += ["", "## Licence", "", "Fill in: the licence of the sources, and what this dataset may be used for."]
    return "\n".join(lines)


def _yaml(text: str) -> str:
    """A text as YAML: JSON is YAML too, so quotes and line breaks cannot end the head."""
    return json.dumps(text, ensure_ascii=True)


def _plain(text: str) -> str:
    """On one line, and without Markdown or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else max(c, " ") for c in text)


def _code(value: Any) -> str:
    """As code that stays on its line and in its cell."""
    text = "".join(max(c, " ") for c in str(value)).replace("|", "\\|")
    ticks = "`" * (max((len(run) for run in _runs(text)), default=0) + 1)
    return f"{ticks}{' ' if '`' in text else ''}{text}{' ' if '`' in text else ''}{ticks}"


def _runs(text: str) -> list[str]:
    """Runs of backticks."""
    return [run for run in "".join(c if c == "`" else " " for c in text).split() if run]
