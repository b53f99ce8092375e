"""Text for samples, files of it, and what is true of it."""

from __future__ import annotations

from collections import namedtuple
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq

from shardmill.encoding import load_tokenizer
from tests.corpus import documents

Disk = namedtuple("Disk", "total used free")


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


def true_tokens(made: list[str]) -> int:
    """With an end-of-text token for each document that has text."""
    joined = [text.encode() for text in made if text]
    ends = np.cumsum([0, *map(len, joined)])
    encoded = load_tokenizer("gpt2").engine().encode(np.frombuffer(b"".join(joined), np.uint8), ends)
    return len(encoded.tokens) + len(joined)


def write_parquet(path: Path, made: list[str], group: int) -> Path:
    table = pa.table({"id": list(range(len(made))), "text": made})
    pq.write_table(table, path, row_group_size=group, compression="zstd", use_dictionary=False)
    return path


def write_csv(path: Path, made: list[str]) -> Path:
    pyarrow.csv.write_csv(pa.table({"id": list(range(len(made))), "text": made}), path)
    return path


def found(report, what):
    return [trouble for trouble in report.troubles if trouble.what == what]
