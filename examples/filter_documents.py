"""Read, filter in Python and tokenize, in a resumable run.    python examples/filter_documents.py OUT SOURCE…"""

# ruff: noqa: T201
from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

import shardmill

LEAST = 200  # characters


def long_ones(*sources: str) -> Iterator[pa.RecordBatch]:
    """Yield batches of a few megabytes; no Python object is made for a document."""
    for batch in shardmill.read(*sources):
        yield batch.filter(pc.greater_equal(pc.utf8_length(batch["text"]), LEAST))


def prepare(out: str, *sources: str) -> shardmill.Result:
    # The version identifies the files and the filter. Extend it when you change the filter.
    version = f"{shardmill.read(*sources).fingerprint}, at least {LEAST}"
    kept = shardmill.Source(lambda: long_ones(*sources), name="long", version=version)
    return shardmill.prepare(kept, out)


if __name__ == "__main__":
    print(f"{prepare(*sys.argv[1:]).manifest['documents']:,} documents kept")
