"""nanoGPT's `train.bin` and `val.bin`: raw tokens, one file per split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardmill.shards.format import Format, Recognised, recognised_raw
from shardmill.storage import AnyPath

_BLOCK = 1_024


class Nanogpt(Format):
    name, eot, stem, endings, sharded = "nanogpt", "after", "{split}", (".bin",), False

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        """Any `.bin` that no other format knows: it has no header."""
        return recognised_raw(raw, path) if path.suffix == ".bin" else None

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        """nanoGPT reads all files as 16 bits, and draws windows of a block."""
        warnings = []
        if dtype.itemsize != 2:
            warnings.append(
                f"the tokens are {dtype.name}, since the vocabulary is large; nanoGPT reads uint16 unless you change it"
            )
        for split, described in splits.items():
            if 0 < described["tokens"] <= _BLOCK:
                warnings.append(
                    f"{split} has {described['tokens']:,} tokens; nanoGPT needs more than its block size ({_BLOCK:,})"
                )
        return warnings


FORMAT = Nanogpt()
