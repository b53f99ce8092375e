"""shardmill by its Python function. Loading the vocabulary and the engines is on the clock; imports are not."""

from __future__ import annotations

import sys

import awkward  # noqa: F401
import gigatoken  # noqa: F401
import numpy  # noqa: F401
import pyarrow.json
import pyarrow.parquet  # noqa: F401
from way import OUT, SOURCE, WORKERS, Clock

import shardmill.reading.jsonl
import shardmill.reading.parquet
import shardmill.reading.text  # noqa: F401
from shardmill.run import prepare

options = {"memory": sys.argv[4]} if len(sys.argv) > 4 else {}
if SOURCE.suffix == ".txt":
    options |= {"separator": sys.argv[5]} if len(sys.argv) > 5 else {"eot": "none"}
clock = Clock()
prepare(str(SOURCE), str(OUT), val="0", workers=WORKERS, **options)
clock.stop()
