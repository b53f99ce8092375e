"""nanoGPT's `train.bin` and `val.bin`: raw tokens, one file a split."""

from __future__ import annotations

from shardmill.writing.limits import raw_tokens
from shardmill.writing.streams import Layout

NANOGPT = Layout("nanogpt", eot="after", file_name=lambda name, split, index: f"{split}.bin", warnings=raw_tokens)
