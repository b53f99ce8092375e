"""Raw shards of equal size: `cat train_*.bin` gives nanoGPT's `train.bin`."""

from __future__ import annotations

from shardmill.shards.limits import raw_tokens
from shardmill.shards.streams import Layout

SHARDS = Layout(
    "shards",
    eot="after",
    file_name=lambda name, split, index: f"{split}_{index:06}.bin",
    sharded=True,
    warnings=raw_tokens,
)
