"""What a part holds until it is merged: its tokens, with room for EOT after every row, and the table of rows.

tokens.bin   the tokens of each row, and one more whose value does not matter
rows.bin     for each row its tokens, the bytes of its text, and flags: val, opens, closes

With these the merge places EOT, chooses shards and counts as the run on one machine would have done. Both files are in
blocks of 64 KiB, each with its CRC-32 after it, so that any stretch can be read and checked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from shardmill.errors import DamageError
from shardmill.run.rows import STORED, Rows, Stream
from shardmill.shards import Output
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS, ROWS = "tokens.bin", "rows.bin"
ROW = np.dtype([("length", "<i8"), ("bytes", "<i8"), ("flags", "u1")])
_VAL, _OPENS, _CLOSES = 1, 2, 4
_BLOCK, _SUM = 1 << 16, np.dtype("<u4")
_STORED = _BLOCK + _SUM.itemsize


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
        self._files: list[PartialFile] = []
        self._blocks: list[CheckedWriter] = []
        self._in_hand: list[PartialFile] = []
        self._lengths = [0, 0]
        self._finished = False

    def append_rows(self, stream: Stream) -> None:
        """Rows with their tokens, all in one split."""
        [tokens] = stream.tokens.values()
        self._blocks[0].append(tokens.astype(self.dtype, copy=False))
        self._blocks[1].append(packed(stream.rows))

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        lengths = position.get("train") or [0, 0]
        if complete:  # killed after the end of all, and before the manifest
            self._lengths = lengths
            return
        self._files = [
            PartialFile(self._folder / name, keep, hashed=False)
            for name, keep in zip((TOKENS, ROWS), lengths, strict=True)
        ]
        self._blocks = [CheckedWriter(file) for file in self._files]

    def position(self) -> dict[str, list[int]]:
        return {"train": [file.length for file in self._files] or self._lengths}

    def finish(self, wanted: tuple[str, ...]) -> None:
        for blocks in self._blocks:
            blocks.end()
        self._finished = True

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        files, lengths, finished = self._files, [file.length for file in self._files], self._finished
        if finished and files:  # they get their names once
            self._files, self._lengths, self._in_hand = [], lengths, files

        def settle() -> list[tuple[str, Written]]:
            if finished and files:
                return [("train", files[0].finish(0)), ("train", files[1].finish(0, role="index"))]
            for file, length in zip(files, lengths, strict=True):
                file.settle(length)
            return []

        return settle

    def close(self) -> None:
        for file in (*self._files, *self._in_hand):
            file.close()


class CheckedWriter:
    """Appends to a file, with a sum after each block. It goes on from any length that the file had before."""

    def __init__(self, file: PartialFile) -> None:
        self._file = file
        self._held = file.length % _STORED
        self._crc = crc32(file.read(file.length - self._held, self._held))

    def append(self, data: NDArray[Any]) -> None:
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        first = min(len(view), -self._held % _BLOCK)
        blocks = (len(view) - first) // _BLOCK
        last = first + blocks * _BLOCK
        self._append_some(view[:first])
        if blocks:
            stored = np.empty((blocks, _STORED), np.uint8)
            stored[:, :_BLOCK] = view[first:last].reshape(blocks, _BLOCK)
            stored[:, _BLOCK:] = np.array([crc32(block[:_BLOCK]) for block in stored], _SUM)[:, None].view(np.uint8)
            self._file.append(stored)
        self._append_some(view[last:])

    def end(self) -> None:
        """The last block may be shorter than the others."""
        if self._held:
            self._file.append(np.array([self._crc], _SUM))
            self._held = self._crc = 0

    def _append_some(self, view: NDArray[np.uint8]) -> None:
        """Bytes that do not reach beyond the open block."""
        if len(view):
            self._file.append(view)
            self._held, self._crc = self._held + len(view), crc32(view, self._crc)
            if self._held == _BLOCK:
                self.end()


class CheckedReader:
    """Reads what a `CheckedWriter` has written."""

    def __init__(self, section: Callable[[int, int], bytes], stored: int) -> None:
        """`section` reads bytes of the stored file, which has so many."""
        self._section, self._stored = section, stored
        self.size = stored - _SUM.itemsize * -(-stored // _STORED)

    def read(self, start: int, end: int) -> NDArray[np.uint8]:
        """The bytes from `start` to `end`, in an array of their own; DamageError where they are not as written."""
        if start >= end:
            return np.empty(0, np.uint8)
        first = start // _BLOCK
        wanted = min(-(-end // _BLOCK) * _STORED, self._stored) - first * _STORED
        raw = np.frombuffer(self._section(first * _STORED, first * _STORED + wanted), np.uint8)
        if len(raw) != wanted or end > self.size:
            raise DamageError("it is shorter than it was")
        whole = wanted // _STORED
        table = raw[: whole * _STORED].reshape(whole, _STORED)
        last = raw[whole * _STORED :]
        for block in [*table, last] if len(last) else table:
            if crc32(block[: -_SUM.itemsize]) != int(block[-_SUM.itemsize :].view(_SUM)[0]):
                raise DamageError("it is not what was written")
        data: NDArray[np.uint8] = np.concatenate([table[:, :_BLOCK].reshape(-1), last[: -_SUM.itemsize]])
        return data[start - first * _BLOCK : end - first * _BLOCK]
