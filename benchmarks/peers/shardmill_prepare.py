"""shardmill by its Python function. Loading the vocabulary and the engines is on the clock; imports are not."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from way import OUT, SOURCE, WORKERS, Clock

from shardmill.preparing import prepare

# A run imports the reader of what it reads, and no other: they take memory that its caches could have.
reader = {".txt": "text", ".parquet": "parquet"}.get(SOURCE.suffix, "jsonl")
import_module(f"shardmill.documents.{reader}")

options: dict[str, Any] = {"memory": sys.argv[4]} if len(sys.argv) > 4 else {}
if SOURCE.suffix == ".txt":
    options |= {"separator": sys.argv[5]} if len(sys.argv) > 5 else {"eot": "none"}
clock = Clock()
prepare(str(SOURCE), str(OUT), val="0", workers=WORKERS, **options)
clock.stop()
