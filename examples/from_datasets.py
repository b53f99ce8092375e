"""Filter a Hugging Face dataset and write token files.    python examples/from_datasets.py OUT FILES…"""

# ruff: noqa: T201
from __future__ import annotations

import sys

import datasets

import shardmill


def prepare(out: str, *files: str) -> shardmill.Result:
    """Stream the rows, so that nothing is copied to a cache first. Their state is saved, so a run can be resumed."""
    rows = datasets.load_dataset("json", data_files=list(files), split="train", streaming=True)
    kept = rows.filter(lambda row: len(row["text"]) >= 200)
    return shardmill.prepare(shardmill.Source(kept, name="long", version="1"), out)


if __name__ == "__main__":
    print(f"{prepare(*sys.argv[1:]).manifest['documents']:,} documents kept")
