"""The warnings of a run. What was found in the text while it was read is a function of the manifest alone.

So they are the same with any number of workers, after a resumed run, and after a merge of parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shardmill.core import ODD_KINDS
from shardmill.detection import format_of
from shardmill.options import Val
from shardmill.shards import FORMATS, ShardWriter, early_warnings
from shardmill.troubles import (
    NAMES_SHOWN,
    RARE,
    Trouble,
    empty_sources,
    invalid_utf8,
    no_text,
    not_text,
    separator_not_found,
    special_tokens,
)
from shardmill.write.manifest import Manifest, SourceEntry, SourceLines, each_output

# The share of a source's tokens that are control characters, from which on it is not text: about a hundredth of bytes.
_CONTROL_SHARE = 0.04
FEW_TOKENS = 1024
"""Fewer than a trainer reads in one row."""
FEW_DOCUMENTS, MANY_DOCUMENTS = 10, 100
"""So few documents of val are too few if there are so many in all."""
FAR_FROM_SHARE = 4
"""The share of the tokens in val is this many times as large or small as the one that was asked for."""
_ODD, _EMPTY = b'"odd": ', b'"bytes": 0, '


class _Seen:
    """A count, how many sources it comes from, and the first of them."""

    def __init__(self) -> None:
        self.count = self.sources = 0
        self.names: list[str] = []

    def add(self, name: str, count: int) -> None:
        self.count, self.sources = self.count + count, self.sources + 1
        if len(self.names) < NAMES_SHOWN:
            self.names.append(name)


def warnings_about(outputs: list[ShardWriter], manifest: Manifest) -> tuple[str, ...]:
    """All warnings of a run: what looks wrong in the sources, problems of readers, and a split that is of no use."""
    described = zip(outputs, each_output(manifest), strict=True)
    about_sources = manifest.get("skipped", {}).get("warnings", ())
    known = [output.format for output in outputs if output.format in FORMATS]  # a part has no readers
    made_of_text = "converted" not in manifest and "part" not in manifest
    return (
        *about_sources,
        *(trouble.sentence() for trouble in found_troubles(manifest)),
        *early_warnings(known),
        *(warning for output, one in described for warning in output.warnings(one["splits"])),
        *(val_warnings(manifest) if made_of_text else ()),
    )


def found_troubles(manifest: Manifest) -> list[Trouble]:
    """What looks wrong in the text that a manifest describes."""
    options = manifest["options"]
    text = sum(split["bytes"] for split in manifest["splits"].values())
    empty, invalid, binary = _Seen(), _Seen(), _Seen()
    plain: dict[str, _Seen] = {}
    records: dict[str, _Seen] = {}
    for source in _unusual(manifest["sources"]):
        name, odd = source["name"], source.get("odd", {})
        if source["bytes"] == 0:
            empty.add(name, 1)
        if odd.get("invalid"):
            invalid.add(name, odd["invalid"])
        if odd.get("control", 0) > _CONTROL_SHARE * source.get("tokens", 0):
            binary.add(name, odd["control"])
        seen = plain if _is_plain(name, options) else records
        for kind in odd.keys() & ODD_KINDS[1:]:
            seen.setdefault(kind, _Seen()).add(name, odd[kind])
    troubles = []
    if empty.count:
        troubles.append(empty_sources(empty.names, empty.count, len(manifest["sources"])))
    if not manifest["documents"] and not manifest["rejected"] and empty.count < len(manifest["sources"]):
        troubles.append(no_text())
    if invalid.count:
        troubles.append(invalid_utf8(invalid.count, text, invalid.names[0]))
    if binary.count:
        troubles.append(not_text(binary.names, binary.sources, f"{binary.count:,}"))
    if options.get("specials") == "text":
        for kind in ODD_KINDS[1:]:
            for seen, is_plain in ((plain, True), (records, False)):
                if kind in seen and text / seen[kind].count <= RARE:
                    troubles.append(special_tokens(kind, seen[kind].count, seen[kind].names[0], plain=is_plain))
    return [*troubles, *_separator(manifest, options)]


def _unusual(sources: SourceLines) -> Iterator[SourceEntry]:
    """The sources that are empty or hold something odd; the others are not parsed."""
    for block in sources.blocks():
        if _ODD in block or _EMPTY in block:
            yield from (json.loads(line) for line in block.splitlines() if _ODD in line or _EMPTY in line)


def _is_plain(name: str, options: dict[str, Any]) -> bool:
    """Whether a source is plain text, by its name or by the user's choice."""
    chosen = options.get("input_format", "auto")
    return (format_of(name) or "text") == "text" if chosen == "auto" else bool(chosen == "text")


def _separator(manifest: Manifest, options: dict[str, Any]) -> Iterator[Trouble]:
    """A separator that separates nothing: there are no more documents than sources."""
    records = sum(manifest[name] for name in ("documents", "empty", "rejected"))
    sources = manifest["sources"]
    if not options.get("separator") or options.get("limit") or not manifest["documents"] or records > len(sources):
        return
    if all(_is_plain(source["name"], options) for source in sources):
        yield separator_not_found(options["separator"])


def val_warnings(manifest: Manifest) -> Iterator[str]:
    """What is wrong with the splits of a dataset that was made from text; nothing for one without val."""
    splits, val = manifest["splits"], Val.parse(str(manifest["options"].get("val", "0")))
    if "val" not in splits or not any(split["tokens"] for split in splits.values()):
        return
    tokens, documents = splits["val"]["tokens"], splits["val"]["documents"]
    total, total_documents = tokens + splits["train"]["tokens"], documents + splits["train"]["documents"]
    share = tokens / total
    first = f"`--val first:{_round(max(2 * FEW_TOKENS, total // 100))}` takes that many tokens from the start"
    more = min(0.5, max(2 * val.fraction, 2 * FEW_DOCUMENTS / total_documents))
    hint = f"use a larger share, such as `--val {more:.1g}`; {first}"
    if tokens == total:
        yield f"train is empty: all of it went to val; use a smaller share, or `--val 0`; {first}"
    elif not tokens:
        yield f"val is empty: too little text, or too few documents, for its share; {hint if val.fraction else first}"
    elif tokens < FEW_TOKENS:
        yield f"val has only {tokens:,} tokens; {hint if val.fraction else first}"
    elif val.fraction and documents < FEW_DOCUMENTS and total_documents >= MANY_DOCUMENTS:
        yield f"val has only {documents:,} of {total_documents:,} documents; {hint}"
    elif val.fraction and not val.fraction / FAR_FROM_SHARE <= share <= FAR_FROM_SHARE * val.fraction:
        yield (
            f"val has {100 * share:.2g} % of the tokens, and `--val {val.canonical}` asked for "
            f"{100 * val.fraction:.2g} %: documents go to one split as a whole, and some are very long; {first}"
        )


def _round(number: int) -> str:
    """A number of tokens as the option takes it, with one digit."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{int(float(f'{number / size:.1g}'))}{letter}"
    return str(number)
