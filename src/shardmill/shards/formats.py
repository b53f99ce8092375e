"""The output formats there are: a new one is a file of its own and a line here (and its name in `options.FORMATS`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.shards.datatrove import DatatroveOutput
from shardmill.shards.llmc import LLMC
from shardmill.shards.mds import MdsOutput
from shardmill.shards.megatron import MegatronOutput
from shardmill.shards.nanogpt import NANOGPT
from shardmill.shards.npy import NPY
from shardmill.shards.output import SPLITS, Output
from shardmill.shards.raw_shards import SHARDS
from shardmill.shards.streams import Layout, StreamOutput

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Order:
    """All that an output may want to know before it begins."""

    folder: Path
    name: str
    """Prefix of file names, where the format has one."""
    dtype: np.dtype[Any]
    shard_tokens: int
    eot: str | None = None
    """None: as the format's readers expect it."""
    tail: str = "keep"
    tokenizer: str = "unknown"
    vocab_size: int = 0
    """0: as large as the type of the tokens allows."""
    splits: tuple[str, ...] = SPLITS


def _stream(layout: Layout) -> Callable[[Order], Output]:
    return lambda o: StreamOutput(o.folder, layout, o.name, o.dtype, o.shard_tokens, o.eot, o.tail)


OUTPUTS: dict[str, Callable[[Order], Output]] = {
    "nanogpt": _stream(NANOGPT),
    "shards": _stream(SHARDS),
    "npy": _stream(NPY),
    "llmc": _stream(LLMC),
    "megatron": lambda o: MegatronOutput(o.folder, o.name, o.dtype, o.eot, o.vocab_size, o.splits),
    "datatrove": lambda o: DatatroveOutput(o.folder, o.name, o.dtype, o.eot, o.shard_tokens, o.tokenizer),
    "mds": lambda o: MdsOutput(o.folder, o.name, o.dtype, o.eot, o.shard_tokens),
}


def open_output(
    format: str, folder: Path, *, name: str, dtype: np.dtype[Any], shard_tokens: int, **more: Any
) -> Output:
    """The output of a format; nothing is written yet. The keywords are the fields of `Order`.

    UsageError when the format's readers could not take such files.
    """
    return OUTPUTS[format](Order(folder, name, dtype, shard_tokens, **more))
