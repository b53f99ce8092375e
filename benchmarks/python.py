"""Text from Python against the same text in a parquet file; the tokenizer by itself against its bare engine; and the
memory of a run whose producer is much faster than the tokenizer.
"""

from __future__ import annotations

import shutil
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shardmill
from benchmarks import results
from benchmarks.containers import CACHE
from benchmarks.corpus import Corpus
from benchmarks.environment import ours
from benchmarks.measure import run
from shardmill.tokens import load_tokenizer
from shardmill.tokens.engines import CALL_BYTES

DOCUMENTS = 10_000
_WAY = """
import resource, sys, time
import pyarrow as pa
import pyarrow.parquet as pq
import shardmill

way, path, out, workers = sys.argv[1:]
file = pq.ParquetFile(path)

def batches():
    # From memory, so that only what comes after is on the clock.
    yield from held

def texts():
    for batch in held:
        yield from batch

ways = {"parquet": path, "arrow": batches, "texts": texts}
if way == "arrow":
    held = pq.read_table(path, columns=["text"]).to_batches(max_chunksize=1000)
elif way == "texts":
    held = [batch["text"].to_pylist() for batch in file.iter_batches(1000, columns=["text"])]
shardmill.tokenizer("gpt2")
busy, began = time.process_time(), time.perf_counter()
# With the default of memory, to which is added what the program holds already.
made = shardmill.prepare(ways[way], out, workers=int(workers), name="data")
print('{"seconds": %f, "cpu": %f}' % (time.perf_counter() - began, time.process_time() - busy))
"""
_FAST = """
import sys, pyarrow as pa, shardmill
kind, out, memory, workers = sys.argv[1:]
text = "so many words that nobody reads them, and 12345 numbers. " * 100

def texts():
    for i in range(160_000):
        yield text

def batches():
    batch = pa.record_batch({"text": [text] * 1000})
    for i in range(160):
        yield pa.record_batch({"text": pa.concat_arrays([batch["text"]])})

shardmill.prepare({"texts": texts, "batches": batches}[kind], out, memory=memory, workers=int(workers), val=0)
"""


def measure(corpus: Corpus, *, workers: int, memory: str, repeat: int, timeout: float) -> dict[str, Any]:
    """All of it, in turns, so that a busy machine is as bad for one as for the other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"python-{corpus.key}.parquet"
    texts = list(corpus.documents())
    size = sum(len(text.encode()) for text in texts)
    if not path.exists():
        pq.write_table(pa.table({"text": texts}), path, row_group_size=1000, compression="snappy")
    batch = _encode_batch(texts[:DOCUMENTS], repeat)
    del texts
    made: dict[str, dict[str, Any]] = {
        way: {"way": way, "bytes": size, "seconds": [], "cpu": [], "others": []}
        for way in ("parquet", "arrow", "texts")
    }
    for _ in range(repeat):
        for way, row in made.items():
            done = _run([_WAY, way, str(path), "OUT", str(workers)], timeout)
            row["seconds"].append(done.said["seconds"])
            row["cpu"].append(done.said["cpu"])
            row["others"].append(round(done.others, 2))
    fast = []
    for kind in ("texts", "batches"):
        done = _run([_FAST, kind, "OUT", memory, str(workers)], timeout)
        fast.append({"kind": kind, "memory": memory, "peak": done.peak, "seconds": done.seconds})
    return results.frame(
        "python",
        versions={"shardmill": ours()},
        text={"description": corpus.describe(size), "bytes": size},
        workers=workers,
        memory=memory,
        rows=list(made.values()),
        batch=batch,
        fast=fast,
    )


def _run(arguments: list[str], timeout: float) -> Any:
    out = CACHE / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-c", *[str(out) if one == "OUT" else one for one in arguments]]
    done = run(command, timeout=timeout, cwd=str(Path(__file__).parent.parent))
    shutil.rmtree(out, ignore_errors=True)
    if done.failure:
        raise SystemExit(f"error: {arguments[1]}: {done.failure}")
    return done


def _encode_batch(texts: list[str], repeat: int) -> dict[str, Any]:
    """CPU seconds of the engine for the documents as it takes them, and of `encode_batch` for a list of them."""
    tokenizer = load_tokenizer("gpt2")
    raw = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in raw])]).astype(np.int64)
    data = np.frombuffer(b"".join(raw), np.uint8)
    calls = np.searchsorted(offsets, np.arange(CALL_BYTES, offsets[-1] + CALL_BYTES, CALL_BYTES), side="right") - 1
    bounds = [0, *calls.tolist()]
    column = pa.array(texts)
    engine, itself, arrow = [], [], []
    for _ in range(max(5, repeat)):
        bare, whole, other = tokenizer.engine(), shardmill.tokenizer("gpt2"), shardmill.tokenizer("gpt2")
        # Each knows the words of the first thousand documents, and no others.
        bare.encode(data, offsets[:1000])
        whole.encode_batch(texts[:1000])
        other.encode_batch(texts[:1000])
        began = time.process_time()
        kept = [bare.encode(data, offsets[a : b + 1]) for a, b in pairwise(bounds) if b > a]
        engine.append(time.process_time() - began)
        del kept
        began = time.process_time()
        found = whole.encode_batch(texts)
        itself.append(time.process_time() - began)
        del found
        began = time.process_time()
        found = other.encode_batch(column)
        arrow.append(time.process_time() - began)
        del found
    size = int(offsets[-1])
    return {"documents": len(texts), "bytes": size, "engine": engine, "encode_batch": itself, "arrow": arrow}


def table(result: dict[str, Any]) -> str:
    """Markdown: each way with its speed and its share of the parquet file's."""
    rows = {row["way"]: row for row in result["rows"]}
    names = {"parquet": "the parquet file", "arrow": "Arrow batches of 1,000 rows", "texts": "an iterator of `str`"}
    parts = [
        results.heading(result),
        "",
        "| source | time | MB/s | MB/s of CPU time | of the file's CPU time |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, row in rows.items():
        seconds, cpu = min(row["seconds"]), min(row["cpu"])
        mb = row["bytes"] / 1e6
        parts.append(
            f"| {names[way]} | {seconds:.2f} s | {mb / seconds:,.0f} | {mb / cpu:,.0f} "
            f"| {min(rows['parquet']['cpu']) / cpu:.2f} |"
        )
    batch = result["batch"]
    engine, itself, arrow = (min(batch[way]) for way in ("engine", "encode_batch", "arrow"))
    parts += [
        "",
        f"`encode_batch` of {batch['documents']:,} documents ({batch['bytes'] / 1e6:.0f} MB): "
        f"{batch['bytes'] / 1e6 / itself:,.0f} MB/s of CPU time, the bare engine {batch['bytes'] / 1e6 / engine:,.0f}: "
        f"{engine / itself:.2f} of it, and {engine / arrow:.2f} with an Arrow column.",
        "",
        *(
            f"A producer of {row['kind']} that is much faster than the tokenizer: {row['peak'] / 1e6:,.0f} MB of "
            f"{row['memory']}."
            for row in result["fast"]
        ),
    ]
    return "\n".join(parts)
