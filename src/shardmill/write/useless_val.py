"""Warnings about a validation split by which nobody can measure a loss, with the option that helps."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.options import Val
from shardmill.write.manifest import Manifest

FEW_TOKENS = 1024
"""Fewer than a trainer reads in one row."""
FEW_DOCUMENTS, MANY_DOCUMENTS = 10, 100
"""So few documents of val are too few if there are so many in all."""
FAR_FROM_SHARE = 4
"""The share of the tokens in val is this many times as large or small as the one that was asked for."""


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
