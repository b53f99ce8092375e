"""A dataset card: Markdown with the YAML head that the Hugging Face hub reads, from the manifest alone."""

from __future__ import annotations

import json
import os
import re
from itertools import islice
from typing import Any

from shardmill.dataset import CACHE_SIZE, open_dataset
from shardmill.units import plural, show_bytes
from shardmill.write import SplitEntry

_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B",
          "10B<n<100B", "100B<n<1T", "n>1T")  # fmt: skip
_SOURCES = 20  # that are listed
_CARD = """\
---
pretty_name: {yaml_name}
task_categories:
- text-generation
size_categories:
- {size}
tags:
- tokenized
- shardmill
- {yaml_tokenizer}
---

# {name}

{summary}

| split | documents | tokens | text | files |
|---|---:|---:|---:|---:|
{splits}

| | |
|---|---|
{facts}

## How to read it

```python
import shardmill

data = shardmill.open({quoted})
tokens = data["train"][0:1024]
```

`shardmill verify` checks every file against the checksums in `manifest.json`.

## Sources ({count})

{sources}

## Licence

Fill in: the licence of the sources, and what this dataset may be used for."""


def card(
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    address: str | None = None,
) -> str:
    """Return a dataset card in Markdown. Raise UsageError if `folder`, a folder or URL, is not a dataset.

    Fields that the files do not answer are left to fill in. `cache`, `cache_size`: as for `open`.
    `address`: where the dataset will be published.
    """
    data = open_dataset(folder, cache=cache, cache_size=cache_size)
    manifest = data.manifest
    tokenizer, options, documents = manifest["tokenizer"], manifest["options"], manifest["documents"]
    name = data.folder.resolve().name if address is None else address.rpartition("/")[2].partition("@")[0]
    tokens = sum(len(data[split]) for split in data)
    text = sum(data[split].described["bytes"] for split in data)
    ratio = f", {text / tokens:.2f} bytes per token" if text and tokens else ""
    held = f" ({show_bytes(text)} of text{ratio})" if text else ""
    rejected = f", {manifest['rejected']:,} rejected" if manifest["rejected"] else ""
    facts = {
        "tokenizer": f"{_code(tokenizer['name'])}, {tokenizer['vocab_size']:,} tokens, "
        f"sha256 `{tokenizer['sha256'][:16]}…`",
        "format": f"`{data.format}`, {data.dtype}, little-endian",
        "end-of-text token": "none" if tokenizer["eot"] is None or data.eot == "none" else
        f"`{tokenizer['eot']}`, {data.eot} each document",
        "validation split": _code(options.get("val", "–")) + f", seed {options.get('seed', 0)}",
        "made by": f"shardmill {_plain(str(manifest.get('shardmill', '')))}",
        "fingerprint": f"`{manifest['fingerprint']}`",
    }  # fmt: skip
    sources: Any = manifest["sources"]
    listed = [f"- {_code(one['name'])}: {plural(one['documents'], 'document')}" for one in islice(sources, _SOURCES)]
    if len(sources) > _SOURCES:
        listed.append(f"- and {len(sources) - _SOURCES:,} more, all in `manifest.json`")
    return _CARD.format(
        yaml_name=_yaml(name),
        size=_SIZES[min(max(len(str(documents)) - 3, 0), len(_SIZES) - 1)],
        yaml_tokenizer=_yaml(str(tokenizer["name"])),
        name=_plain(name),
        summary=f"{tokens:,} tokens of {plural(documents, 'document')}{held}, "
        f"tokenized with {_code(tokenizer['name'])}{rejected}.",
        splits="\n".join(_split_row(split, data[split].described) for split in data),
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        quoted=repr(address or name),
        count=f"{len(sources):,}",
        sources="\n".join(listed),
    )


def _split_row(split: str, described: SplitEntry) -> str:
    text = show_bytes(described["bytes"]) if described["bytes"] else "–"
    files = len(described["files"])
    return f"| {split} | {described['documents']:,} | {described['tokens']:,} | {text} | {files:,} |"


def _yaml(text: str) -> str:
    """A text as YAML: JSON is YAML too, so quotes and line breaks cannot end the head."""
    return json.dumps(text, ensure_ascii=True)


def _plain(text: str) -> str:
    """On one line, and without Markdown or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else max(c, " ") for c in text)


def _code(value: Any) -> str:
    """As code that stays on its line and in its cell."""
    text = "".join(max(c, " ") for c in str(value)).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`*", text))) + 1)
    return f"{ticks}{' ' if '`' in text else ''}{text}{' ' if '`' in text else ''}{ticks}"
