"""The bound: one cold gigatoken engine for each thread, over the same documents already in memory, nothing written."""

from __future__ import annotations

import itertools
import threading

import awkward as ak
import gigatoken
import numpy as np
import pyarrow.json
from way import SOURCE, VOCABULARY, WORKERS, Clock

BATCH = 4_000_000

column = pyarrow.json.read_json(SOURCE).column("text").cast("large_string").combine_chunks()
_, offsets_buffer, data_buffer = column.buffers()
offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
data = np.frombuffer(data_buffer, dtype=np.uint8)
cuts = np.unique(np.searchsorted(offsets, np.append(np.arange(offsets[0], offsets[-1], BATCH), offsets[-1])))
batches = list(itertools.pairwise(cuts.tolist()))
turn = itertools.count()
counts: list[int] = []


def work(engine: gigatoken.Tokenizer) -> None:
    while (i := next(turn)) < len(batches):
        start, end = batches[i]
        texts = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets[start : end + 1]),
            ak.contents.NumpyArray(data, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        counts.append(len(engine.encode_batch(ak.Array(texts), parallel=False).layout.content.data))


ranks = str(VOCABULARY / "gpt2.tiktoken")
engines = [gigatoken.Tokenizer.from_tiktoken(ranks, pretokenizer="gpt2") for _ in range(WORKERS)]
threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
clock = Clock()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
clock.stop(tokens=sum(counts))
