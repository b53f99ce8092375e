"""The table of token formats: a new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from shardmill.shards.format import Format
    from shardmill.shards.output import Output

_FILES = {
    "nanogpt": "nanogpt",
    "shards": "raw_shards",
    "npy": "npy",
    "llmc": "llmc",
    "megatron": "megatron",
    "datatrove": "datatrove",
    "mds": "mds",
    "litdata": "litdata",
    "olmo": "olmo",
}
FORMATS = tuple(_FILES)
"""Their names; the first is the default. Their modules are imported later, since `--help` must answer at once."""


def format_named(name: str) -> Format:
    """Return the format of this name."""
    found: Format = import_module(f"shardmill.shards.{_FILES[name]}").FORMAT
    return found


def check_together(formats: Sequence[str]) -> None:
    """Raise UsageError if two formats would write files of one name into one folder."""
    claimed: dict[str, str] = {}
    for name in formats if len(formats) > 1 else ():
        for file in format_named(name).claims:
            if file in claimed:
                raise UsageError(
                    f"`{claimed[file]}` and `{name}` both write a file `{file}`", hint="give each a folder of its own"
                )
            claimed[file] = name


def open_output(
    format: str, folder: Path, *, name: str, dtype: np.dtype[Any], shard_tokens: int, **more: Any
) -> Output:
    """Return the output of a format; nothing is written yet. The keywords are the fields of `Order`.

    Raise UsageError if the format's readers could not take such files.
    """
    from shardmill.shards.format import Order

    return format_named(format).output(Order(folder, name, dtype, shard_tokens, **more))


def foreseen(formats: Sequence[str]) -> list[str]:
    """Return sentences about problems that follow from the choice of formats, if they are made in one folder."""
    return [sentence for name in formats for sentence in format_named(name).foreseen(alone=len(formats) == 1)]
