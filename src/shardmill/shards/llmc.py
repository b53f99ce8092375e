"""The `.bin` shards of llm.c and modded-nanogpt: a head of 256 int32, then tokens, EOT before each document."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from shardmill.errors import UsageError
from shardmill.shards.limits import short_tails
from shardmill.shards.streams import Layout

if TYPE_CHECKING:
    import numpy as np

HEAD = 1024
_LARGEST = (1 << 31) - 1  # the C loader seeks with a 32-bit int
# What modded-nanogpt reads of val when nothing else is said, and two more: it goes on to the next file, which val has
# not, when the last token but one of a file is reached.
_VAL_TOKENS = 10_485_760 + 2


def _head(tokens: int, dtype: np.dtype[Any]) -> bytes:
    magic, version = (20240520, 1) if dtype.itemsize == 2 else (20240801, 7)
    return struct.pack("<3i", magic, version, tokens).ljust(HEAD, b"\0")


def _check(most: int, dtype: np.dtype[Any]) -> None:
    if HEAD + most * dtype.itemsize > _LARGEST:
        raise UsageError(
            f"a shard of {most:,} tokens would be {HEAD + most * dtype.itemsize:,} bytes, and llm.c reads up to 2 GiB",
            hint="set `--shard-tokens` to 500M or less" if dtype.itemsize == 2 else "set `--shard-tokens 250M` or less",
        )


def _warnings(splits: dict[str, dict[str, Any]], dtype: np.dtype[Any], eot: str) -> list[str]:
    said = short_tails(splits, "llm.c's loader")
    if len(splits["train"]["files"]) < 2:
        said.append("modded-nanogpt needs at least two train shards, and there is one: see `--shard-tokens`")
    val = next((file["tokens"] for file in splits.get("val", {"files": []})["files"]), 0)
    if val < _VAL_TOKENS:
        said.append(
            f"modded-nanogpt needs {_VAL_TOKENS:,} tokens in the first val file, and there are {val:,}: see `--val` "
            "and `--shard-tokens`"
        )
    if eot != "before":
        said.append("llm.c and modded-nanogpt expect the end-of-text token before each document: see `--eot`")
    if dtype.itemsize != 2:
        said.append("modded-nanogpt reads 16-bit tokens only; these are 32-bit")
    return said


LLMC = Layout(
    "llmc",
    eot="before",
    file_name="{name}_{split}_{index}.bin",
    sharded=True,
    train_from=1,
    head=_head,
    check=_check,
    warnings=_warnings,
)
