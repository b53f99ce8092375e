"""nanoGPT's openwebtext/prepare.py: datasets.map over tiktoken, then 1,024 batches into a memory map."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiktoken
from datasets import load_dataset
from way import OUT, SOURCE, WORKERS, Clock

encoding = tiktoken.get_encoding("gpt2")


def process(example: dict[str, Any]) -> dict[str, Any]:
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


def main() -> None:
    clock = Clock()
    loaded = load_dataset("json", data_files=str(SOURCE), cache_dir=str(OUT / "cache"), num_proc=WORKERS)
    splits = loaded["train"].train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    tokenized = splits.map(process, remove_columns=["id", "text"], num_proc=WORKERS)
    for name, split in tokenized.items():
        length = int(np.sum(split["len"], dtype=np.uint64))
        out = np.memmap(OUT / f"{name}.bin", dtype=np.uint16, mode="w+", shape=(length,))
        batches, written = min(1024, len(split)), 0
        for i in range(batches):
            batch = split.shard(num_shards=batches, index=i, contiguous=True).with_format("numpy")
            tokens = np.concatenate(batch["ids"])
            out[written : written + len(tokens)] = tokens
            written += len(tokens)
        out.flush()
    clock.stop()


if __name__ == "__main__":
    main()
