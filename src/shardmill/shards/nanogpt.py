"""nanoGPT's `train.bin` and `val.bin`: raw tokens, one file a split."""

from __future__ import annotations

from shardmill.shards.limits import raw_tokens
from shardmill.shards.streams import Layout

NANOGPT = Layout("nanogpt", eot="after", file_name="{split}.bin", warnings=raw_tokens)
