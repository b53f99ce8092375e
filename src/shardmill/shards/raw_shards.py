"""Raw shards of equal size: `cat train_*.bin` gives nanoGPT's `train.bin`."""

from __future__ import annotations

from shardmill.shards.limits import raw_tokens
from shardmill.shards.streams import Layout

SHARDS = Layout(
    "shards",
    eot="after",
    file_name="{split}_{index}.bin",
    sharded=True,
    warnings=raw_tokens,
)
