"""What readers of token files need, and say badly or not at all when it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_STEP = 524_288 + 1  # tokens of one step of GPT-2's training, over all processes, and one more
_BLOCK = 1_024


def short_tails(splits: dict[str, dict[str, Any]], reader: str) -> list[str]:
    """Shards that hold less than one step of a common training run; only the last of a split can."""
    said = []
    for split, described in splits.items():
        files = [file for file in described["files"] if not file.get("role")]
        if files and files[-1]["tokens"] < _STEP:
            way = ""
            if len(files) > 1:
                shorter = files[-1]["tokens"] < files[0]["tokens"]
                way = ": see `--tail merge` and `--tail drop`" if shorter else ": see `--shard-tokens`"
            said.append(
                f"the last {split} shard, {files[-1]['name']}, has {files[-1]['tokens']:,} tokens; {reader} needs more "
                f"than batch × block × processes in each{way}"
            )
    return said


def picked_by_name(splits: dict[str, dict[str, Any]]) -> list[str]:
    """build-nanogpt takes for a split every file that has the split's name anywhere in its own."""
    said = []
    for split, described in splits.items():
        others = [other for other in ("train", "val") if other != split]
        for file in described["files"][:1]:
            said += [
                f"build-nanogpt will take {file['name']} for {other}, since that word is in its name: see `--name`"
                for other in others
                if other in file["name"]
            ]
    return said


def foreseen(formats: Sequence[str]) -> list[str]:
    """What follows from the choice of formats alone, so that it can be said before a run."""
    said = []
    if "npy" in formats and len(formats) > 1:
        said.append(
            "build-nanogpt takes every file with `train` or `val` in its name, those of the other formats too: give "
            "npy a folder of its own"
        )
    if "npy" in formats:
        said.append("OLMo-core reads `.npy` files without a head: use `-f shards` for it")
    return said


def raw_tokens(splits: dict[str, dict[str, Any]], dtype: np.dtype[Any], eot: str) -> list[str]:
    """For files that say nothing of themselves: nanoGPT takes them as 16 bits, and draws windows of a block."""
    said = []
    if dtype.itemsize != 2:
        said.append(
            f"the tokens are {dtype.name}, since the vocabulary is large; nanoGPT reads uint16 unless you change it"
        )
    for split, described in splits.items():
        if 0 < described["tokens"] <= _BLOCK:
            said.append(
                f"{split} has {described['tokens']:,} tokens; nanoGPT needs more than its block size ({_BLOCK:,})"
            )
    return said
