"""Text for samples, files of it, and what is true of it."""

from __future__ import annotations

from collections import namedtuple
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq

from shardmill.inspection import Inspection
from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.troubles import Trouble
from tests.corpus import documents

_COMMON = [f"{start}{end}" for start in ("wo", "ti", "ca", "pre", "mo", "un", "dis", "con", "th", "re", "s")
           for end in ("rd", "me", "se", "tion", "re", "til", "ing", "er", "e")]  # fmt: skip
Disk = namedtuple("Disk", "total used free")


@lru_cache(4)
def texts(size: int, seed: int) -> list[str]:
    """About `size` bytes of documents of very different lengths; nothing is repeated, which would compress too well."""
    made: list[str] = []
    pool = iter(documents(size // 380 + 100, seed))
    rng = np.random.default_rng(seed)
    while size > 0:
        parts = int(rng.integers(1, 4 + 8 * (len(made) % 7 == 0)))
        made.append(" ".join(islice(pool, parts)))
        size -= len(made[-1].encode()) or 1
    return made


def corpus(size: int, seed: int) -> list[str]:
    """About `size` bytes of documents, made quickly. Every fourth seed: all alike, in stretches that are alike, growing
    longer towards the end, and of lengths that differ a thousandfold."""
    rng = np.random.default_rng(seed)
    words = np.array([*_COMMON, *("".join(letters) for letters in rng.choice(list("abcdefghij"), (500, 7)))])
    made: list[str] = []
    mean, rare, style = 4.6, 0.1, seed % 4
    while size > 0:
        if style == 1 and rng.random() < 0.02:
            mean, rare = rng.uniform(3.8, 5.4), rng.uniform(0.0, 0.4)
        mean += 1e-4 * (style == 2)
        count = int(np.clip(rng.lognormal(mean, 1.4 if style == 3 else 0.8), 1, 1500))
        chosen = np.where(rng.random(count) < rare, rng.integers(0, len(words), count), rng.integers(0, 99, count))
        made.append(" ".join(words[chosen].tolist()))
        size -= len(made[-1])
    return made


def few_long(size: int, seed: int) -> list[str]:
    """About `size` bytes: many short documents, and in their midst some that are a hundred times as long."""
    rng = np.random.default_rng(seed)
    short = corpus(size // 2, 4 * seed)
    words = rng.choice(_COMMON, size // 8).tolist()
    for i in range(0, len(words), 12_000):
        short.insert(int(rng.integers(len(short))), " ".join(words[i : i + int(rng.integers(4_000, 12_000))]))
    return short


def true_tokens(made: list[str]) -> int:
    """With an end-of-text token for each document that has text."""
    joined = [text.encode() for text in made if text]
    ends = np.cumsum([0, *map(len, joined)])
    # A new engine each time: the caches of one for all of these texts would be gigabytes.
    encoded = _tokenizer().engine().encode(np.frombuffer(b"".join(joined), np.uint8), ends)
    return len(encoded.tokens)


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer("gpt2")


def write_parquet(path: Path, made: list[str], group: int) -> Path:
    table = pa.table({"id": list(range(len(made))), "text": made})
    pq.write_table(table, path, row_group_size=group, compression="zstd", use_dictionary=False)
    return path


def write_csv(path: Path, made: list[str]) -> Path:
    pyarrow.csv.write_csv(pa.table({"id": list(range(len(made))), "text": made}), path)
    return path


def found(report: Inspection, what: str) -> list[Trouble]:
    return [trouble for trouble in report.troubles if trouble.what == what]
