"""What a part holds until it is merged: the tokens of each split as the final files have them, and the table of rows.

train-after.bin   the tokens of a split, with EOT where the formats want it; so for each such way
rows.bin          for each row its tokens without EOT, the bytes of its text, and flags: val, opens, closes

So the merge can choose shards and count as the run on one machine would have done, and a final file is a row of
stretches of these. Each has checksums, since a merge enters it anywhere (checked_blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.cluster.checked_blocks import CheckedFile
from shardmill.run import Rows, eot_places
from shardmill.shards import SPLITS, Output
from shardmill.storage import Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = "rows.bin"
ROW = np.dtype([("length", "<i8"), ("bytes", "<i8"), ("flags", "u1")])
_VAL, _OPENS, _CLOSES = 1, 2, 4


def tokens_name(split: str, eot: str) -> str:
    return f"{split}-{eot}.bin"


def unpacked(table: NDArray[Any]) -> Rows:
    """The table of rows as it was, without EOT."""
    flags = table["flags"]
    length, size = (table[name].astype(np.int64) for name in ("length", "bytes"))
    val, opens, closes = ((flags & bit) != 0 for bit in (_VAL, _OPENS, _CLOSES))
    return Rows(length, size, val, opens, closes)


def marked(rows: Rows, eot: str) -> Rows:
    """Rows with their EOT counted."""
    return replace(rows, length=rows.length + eot_places(rows, eot))


class RowsOutput(Output):
    """Files that grow together; each is there as soon as it has something."""

    format = "part"

    def __init__(self, folder: Path, dtype: np.dtype[Any], eot: str) -> None:
        self._folder, self.dtype, self.eot = folder, dtype.newbyteorder("<"), eot
        self._files: dict[str, CheckedFile] = {}
        self._in_hand: list[CheckedFile] = []
        self._lengths: dict[str, int] = {}
        self._finished = False

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        self._append(tokens_name(split, self.eot), tokens.astype(self.dtype, copy=False))

    def append_rows(self, rows: Rows) -> None:
        """Rows whose tokens were appended, with their EOT counted."""
        table = np.empty(len(rows), ROW)
        table["length"], table["bytes"] = rows.length - eot_places(rows, self.eot), rows.bytes
        table["flags"] = _VAL * rows.val + _OPENS * rows.opens + _CLOSES * rows.closes
        self._append(ROWS, table)

    def _append(self, name: str, data: NDArray[Any]) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = CheckedFile(self._folder / name)
        file.append(data)
        self._lengths[name] = file.length

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        self._lengths = {name: length for name, (length,) in position.items()}
        if not complete:  # else it was killed after the end of all, and before the manifest
            self._files = {name: CheckedFile(self._folder / name, keep) for name, keep in self._lengths.items()}

    def position(self) -> dict[str, list[int]]:
        return {name: [length] for name, length in self._lengths.items()}

    def finish(self, wanted: tuple[str, ...]) -> None:
        self._finished = True

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        files, finished = dict(self._files), self._finished
        if finished:  # they get their names once
            self._files, self._in_hand = {}, list(files.values())

        def settle() -> list[tuple[str, Written]]:
            if finished:
                return [(_split_of(name), file.finish("index" if name == ROWS else "")) for name, file in files.items()]
            for file in files.values():
                file.settle()
            return []

        return settle

    def close(self) -> None:
        for file in (*self._files.values(), *self._in_hand):
            file.close()


def _split_of(name: str) -> str:
    """In whose list the manifest has a file."""
    return next((split for split in SPLITS if name.startswith(f"{split}-")), SPLITS[0])
