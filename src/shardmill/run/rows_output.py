"""What a part holds until it is merged: its tokens, with room for EOT after every row, and the table of rows.

tokens.bin   the tokens of each row, and one more whose value does not matter
rows.bin     for each row its tokens, the bytes of its text, and flags: val, opens, closes

Each has the checksums of its blocks beside it, since a merge enters it anywhere (checked_blocks.py).

So the merge can place EOT, choose shards and count as the run on one machine would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.run.checked_blocks import CheckedFile
from shardmill.run.rows import STORED, Rows, Stream
from shardmill.shards import Output
from shardmill.storage import Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS, ROWS = "tokens.bin", "rows.bin"
ROW = np.dtype([("length", "<i8"), ("bytes", "<i8"), ("flags", "u1")])
_VAL, _OPENS, _CLOSES = 1, 2, 4


def packed(rows: Rows) -> NDArray[Any]:
    """The table of rows as it is stored."""
    table = np.empty(len(rows), ROW)
    table["length"], table["bytes"] = rows.length, rows.bytes
    table["flags"] = _VAL * rows.val + _OPENS * rows.opens + _CLOSES * rows.closes
    return table


def unpacked(table: NDArray[Any]) -> Rows:
    """The table of rows as it was."""
    flags = table["flags"]
    length, size = (table[name].astype(np.int64) for name in ("length", "bytes"))
    val, opens, closes = ((flags & bit) != 0 for bit in (_VAL, _OPENS, _CLOSES))
    return Rows(length, size, val & (length > 0), opens, closes)


class RowsOutput(Output):
    """Two files that grow together."""

    format, eot = "part", STORED

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self._folder, self.dtype = folder, dtype.newbyteorder("<")
        self._files: list[CheckedFile] = []
        self._in_hand: list[CheckedFile] = []
        self._lengths = [0, 0]
        self._finished = False

    def append_rows(self, stream: Stream) -> None:
        """Rows with their tokens, all in one split."""
        [tokens] = stream.tokens.values()
        self._files[0].append(tokens.astype(self.dtype, copy=False))
        self._files[1].append(packed(stream.rows))

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        lengths = position.get("train") or [0, 0]
        if complete:  # killed after the end of all, and before the manifest
            self._lengths = lengths
            return
        self._files = [
            CheckedFile(self._folder / name, keep) for name, keep in zip((TOKENS, ROWS), lengths, strict=True)
        ]

    def position(self) -> dict[str, list[int]]:
        return {"train": [file.length for file in self._files] or self._lengths}

    def finish(self, wanted: tuple[str, ...]) -> None:
        for file in self._files:
            file.end()
        self._finished = True

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        files, finished = self._files, self._finished
        if finished and files:  # they get their names once
            self._files, self._lengths, self._in_hand = [], [file.length for file in files], files

        def settle() -> list[tuple[str, Written]]:
            if finished and files:
                return [("train", written) for file in files for written in file.finish()]
            for file in files:
                file.settle()
            return []

        return settle

    def close(self) -> None:
        for file in (*self._files, *self._in_hand):
            file.close()
