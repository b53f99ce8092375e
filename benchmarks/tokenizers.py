"""Every tokenizer with a vocabulary at hand: which engine runs it, how fast, and whether it differs from its library.

Vocabularies come from the packages of the `test` extra, as in the tests; what is not installed is left out, and said.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import results
from benchmarks.corpus import Corpus
from tests.tokens.vocabularies import TOKENIZERS, tokenizer

BATCH = 4_000_000


def measure(corpus: Corpus, only: list[str] | None = None) -> dict[str, Any]:
    """A row for each tokenizer."""
    texts = list(corpus.documents())
    size = sum(len(text.encode()) for text in texts)
    rows = []
    for name in only or TOKENIZERS:
        try:
            chosen = tokenizer(name)
        except pytest.skip.Exception as why:
            print(f"left out: {why}", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        rows.append({"tokenizer": name, **_compare(chosen, texts)})
    text = {"description": corpus.describe(size), "bytes": size, "documents": len(texts)}
    return results.frame("tokenizers", text=text, rows=rows)


def _compare(chosen: Any, texts: list[str]) -> dict[str, Any]:
    engine, reference = chosen.engine(), chosen.reference()
    spent = own = 0.0
    tokens = differences = fallbacks = done = 0
    for data, offsets, some in _batches(texts):
        started = time.perf_counter()
        encoded = engine.encode(data, offsets)
        spent += time.perf_counter() - started
        started = time.perf_counter()
        expected = [reference(text) for text in some]
        own += time.perf_counter() - started
        rows = [row[:-1] for row in np.split(encoded.tokens, encoded.offsets[1:-1])]
        differences += sum(not np.array_equal(row, want) for row, want in zip(rows, expected, strict=True))
        tokens += int(encoded.lengths.sum())
        fallbacks += encoded.fallbacks
        done += len(data)
    return {
        "engine": chosen.engine_name,
        "vocabulary": chosen.vocab_size,
        "tokens": tokens,
        "documents_that_differ": differences,
        "documents_encoded_by_the_library": fallbacks,
        "mb_per_second": done / 1e6 / spent,
        "library_mb_per_second": done / 1e6 / own,
    }


def _batches(texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray, list[str]]]:
    some: list[str] = []
    size = 0
    for i, text in enumerate(texts):
        some.append(text)
        size += len(text)
        if size >= BATCH or i == len(texts) - 1:
            raw = [one.encode() for one in some]
            offsets = np.cumsum([0, *map(len, raw)]).astype(np.int64)
            yield np.frombuffer(b"".join(raw), np.uint8), offsets, some
            some, size = [], 0


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    machine, text = result["machine"], result["text"]
    lines = [
        f"{result['date'][:10]}, {machine['cpu']}, one thread. Text: {text['description']}, "
        f"{text['bytes'] / 1e6:,.0f} MB in {text['documents']:,} documents.",
        "",
        "| tokenizer | vocabulary | engine | MB/s, one thread | its library, MB/s | differences |",
        "|---|---:|---|---:|---:|---|",
    ]
    for row in result["rows"]:
        count = row["documents_that_differ"]
        said = f"{count} in {row['tokens'] / 1e6:.1f} million tokens"
        lines.append(
            f"| {row['tokenizer']} | {row['vocabulary']:,} | {row['engine']} | {row['mb_per_second']:.0f} "
            f"| {row['library_mb_per_second']:.1f} | {said} |"
        )
    return "\n".join(lines)
