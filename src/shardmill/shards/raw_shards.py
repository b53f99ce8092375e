"""Raw shards of equal size: `cat train_*.bin` gives nanoGPT's `train.bin`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards.format import Recognised
from shardmill.shards.nanogpt import Nanogpt


class RawShards(Nanogpt):
    name, stem, sharded = "shards", "{split}_{index:06}", True

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        """None: these cannot be told from nanoGPT's files, and need not be."""
        return None


FORMAT = RawShards()
