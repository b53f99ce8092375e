"""Raw shards of equal size: `cat train_*.bin` gives nanoGPT's `train.bin`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.shards.format import Recognised
from shardmill.shards.nanogpt import Nanogpt
from shardmill.storage import AnyPath


class RawShards(Nanogpt):
    name, stem, sharded = "shards", "{split}_{index:06}", True

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        """None: such a file looks like one of nanoGPT's, and is read as one."""
        return None


FORMAT = RawShards()
