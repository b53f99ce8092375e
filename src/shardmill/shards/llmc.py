"""The `.bin` shards of llm.c and modded-nanogpt: a header of 256 int32, then tokens, EOT before each document."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout, recognised, short_tails
from shardmill.shards.token_files import TokenFile
from shardmill.storage import AnyPath

_HEAD = 1024
_KINDS = {2: (20240520, 1), 4: (20240801, 7)}
"""By the width of a token: the first number of the header, and its version."""
_LARGEST = (1 << 31) - 1  # the C loader seeks with a 32-bit int
# What modded-nanogpt reads of val by default, and two more: it goes on to the next file, which val does not have, when
# it reaches the last token but one of a file.
_VAL_TOKENS = 10_485_760 + 2


class Llmc(Format):
    name, eot = "llmc", "before"
    stem, endings, train_from = "{name}_{split}_{index:06}", (".bin",), 1

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        return struct.pack("<3i", *_KINDS[dtype.itemsize], tokens).ljust(_HEAD, b"\0")

    def layout(self, settings: OutputSettings) -> ShardLayout:
        size = _HEAD + settings.shard_tokens * settings.dtype.itemsize
        if size > _LARGEST:
            raise UsageError(
                f"a shard of {settings.shard_tokens:,} tokens would be {size:,} bytes, and llm.c reads up to 2 GiB",
                hint=f"set `--shard-tokens` to {1000 // settings.dtype.itemsize}M or less",
            )
        return super().layout(settings)

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".bin":
            return None
        with path.open("rb") as file:
            header = file.read(_HEAD)
        for width, kind in _KINDS.items():
            if len(header) == _HEAD and struct.unpack_from("<2i", header) == kind:
                (tokens,) = struct.unpack_from("<I", header, 8)
                return recognised(np.dtype(f"<u{width}"), TokenFile(path, tokens, _HEAD))
        return None

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        warnings = short_tails(splits, "llm.c's loader")
        if len(splits["train"]["files"]) < 2:
            warnings.append("modded-nanogpt needs at least two train shards, and there is one: see `--shard-tokens`")
        val = next((file["tokens"] for file in splits.get("val", {"files": []})["files"]), 0)
        if val < _VAL_TOKENS:
            warnings.append(
                f"modded-nanogpt needs {_VAL_TOKENS:,} tokens in the first val file, and there are {val:,}: see "
                "`--val` and `--shard-tokens`"
            )
        if eot != "before":
            warnings.append("llm.c and modded-nanogpt expect the end-of-text token before each document: see `--eot`")
        if dtype.itemsize != 2:
            warnings.append("modded-nanogpt reads 16-bit tokens only; these are 32-bit")
        return warnings


FORMAT = Llmc()
