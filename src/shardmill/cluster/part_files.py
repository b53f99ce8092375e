"""The files of a part that waits for its merge: written by a run, read by the merge.

train-after.bin   the tokens of a split, with EOT where an output wants it; one file for each such choice
rows.bin          for each row its tokens without EOT, the bytes of its text, its source and record, and flags: val,
                  opens, closes

With these a merge chooses shards and counts as a run on one machine does. A merge enters a file anywhere, so each ends
with the CRC-32 of its blocks, and every block is checked before it is used.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from shardmill.cluster.place import Place, damaged_part, files_of, part_name
from shardmill.run import REJECTS, Rows, Stream, eot_places
from shardmill.shards import SPLITS, Output
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW = np.dtype([("length", "<i8"), ("bytes", "<i8"), ("source", "<i4"), ("record", "<i8"), ("flags", "u1")])
_ROWS = "rows.bin"
_VAL, _OPENS, _CLOSES = 1, 2, 4
_BLOCK, _SUM = 1 << 18, np.dtype("<u4")  # bytes of a block, and its checksum
# Rows of a batch, and bytes of their tokens: after each batch a merge can be interrupted, and reports its progress.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 16, 8 << 20
_REJECTS_BLOCK = 1 << 20


def _tokens_name(split: str, eot: str) -> str:
    return f"{split}-{eot}.bin"


class RowsOutput(Output):
    """Writes the files of a part. They grow together, and each is created when its first bytes come."""

    format = "part"

    def __init__(self, folder: Path, dtype: np.dtype[Any], eot: str) -> None:
        self._folder, self.dtype, self.eot = folder, dtype.newbyteorder("<"), eot
        self._files: dict[str, _CheckedFile] = {}
        self._finishing: list[_CheckedFile] = []
        self._lengths: dict[str, int] = {}
        self._finished = False

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        self._append(_tokens_name(split, self.eot), tokens.astype(self.dtype, copy=False))

    def append_rows(self, rows: Rows) -> None:
        """Append rows whose tokens were appended. Their lengths include EOT."""
        table = np.empty(len(rows), ROW)
        table["length"], table["bytes"] = rows.length - eot_places(rows, self.eot), rows.bytes
        table["source"], table["record"] = rows.source, rows.record
        table["flags"] = _VAL * rows.val + _OPENS * rows.opens + _CLOSES * rows.closes
        self._append(_ROWS, table)

    def _append(self, name: str, data: NDArray[Any]) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _CheckedFile(self._folder / name)
        file.append(data)
        self._lengths[name] = file.length

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        self._lengths = {name: length for name, (length,) in position.items()}
        if not complete:  # else the run was killed after the last file and before the manifest
            self._files = {name: _CheckedFile(self._folder / name, keep) for name, keep in self._lengths.items()}

    def position(self) -> dict[str, list[int]]:
        return {name: [length] for name, length in self._lengths.items()}

    def finish(self, wanted: tuple[str, ...]) -> None:
        self._finished = True

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        files, finished = dict(self._files), self._finished
        if finished:  # they get their names once
            self._files, self._finishing = {}, list(files.values())

        def sync() -> list[tuple[str, Written]]:
            if finished:
                return [
                    (_split_of(name), file.finish("index" if name == _ROWS else "")) for name, file in files.items()
                ]
            for file in files.values():
                file.sync()
            return []

        return sync

    def close(self) -> None:
        for file in (*self._files.values(), *self._finishing):
            file.close()


def _split_of(name: str) -> str:
    """The split in whose list the manifest has a file."""
    return next((split for split in SPLITS if name.startswith(f"{split}-")), SPLITS[0])


class _CheckedFile:
    """A file that grows, and ends with the checksums of its blocks. It can continue from any length that it had."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._file = PartialFile(path, keep, hashed=False)
        self._sums = array("I")
        self._crc = self._held = 0
        for at in range(0, keep, _BLOCK):
            self._add(np.frombuffer(self._file.read(at, min(_BLOCK, keep - at)), np.uint8))

    @property
    def length(self) -> int:
        return self._file.length

    def append(self, data: NDArray[Any]) -> None:
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._file.append(view)
        self._add(view)

    def _add(self, view: NDArray[np.uint8]) -> None:
        while len(view):
            block = view[: _BLOCK - self._held]
            self._crc, self._held = crc32(block, self._crc), self._held + len(block)
            if self._held == _BLOCK:
                self._sums.append(self._crc)
                self._crc = self._held = 0
            view = view[len(block) :]

    def sync(self) -> None:
        """Sync all to the disk."""
        self._file.sync(self._file.length)

    def finish(self, role: str = "") -> Written:
        """Append the checksums, sync, and give the file its name."""
        last = [self._crc] if self._held else []  # the last block may be shorter than the others
        self._file.append(np.array([*self._sums, *last], _SUM))
        return self._file.finish(0, role=role)

    def close(self) -> None:
        self._file.close()


class StoredPart:
    """Reads the files of one part. Raises OutputError where they are damaged."""

    def __init__(self, place: Place, number: int, manifest: dict[str, Any], dtype: np.dtype[Any]) -> None:
        """`dtype`: of its tokens."""
        self._place, self._number = place, number
        self._folder = "/".join(filter(None, [part_name(number), manifest.get("made")]))
        self._sizes = {file["name"]: file["bytes"] for file in files_of(manifest)}
        self._sums: dict[str, NDArray[np.uint32]] = {}
        self._rejects = manifest.get("rejects")
        self._first_source = int(manifest["part"]["bounds"][0])
        self._dtype = dtype.newbyteorder("<")

    def streams(
        self, position: dict[str, int], earlier_records: int, eots: tuple[str, ...]
    ) -> Iterator[tuple[dict[str, Stream], dict[str, int]]]:
        """Yield streams by EOT policy from a position in this part on, and the position after each.

        Their sources and records are those of the whole plan: `earlier_records` of the first source are in other parts.
        """
        names = [(eot, split, _tokens_name(split, eot)) for eot in eots for split in SPLITS]
        at = {name: position.get(name, 0) for name in ("rows", *(name for _, _, name in names))}
        for rows in self._rows(at["rows"]):
            rows.record[rows.source == 0] += earlier_records
            rows.source[:] += self._first_source
            marked = {eot: replace(rows, length=rows.length + eot_places(rows, eot)) for eot in eots}
            streams = {eot: Stream(marked[eot], {}) for eot in eots}
            for eot, split, name in names:
                mine = rows.val if split == "val" else ~rows.val
                start, at[name] = at[name], at[name] + int(marked[eot].length[mine].sum())
                if start < at[name]:
                    size = self._dtype.itemsize
                    streams[eot].tokens[split] = self._checked(name, start * size, at[name] * size).view(self._dtype)
            at["rows"] += len(rows)
            yield streams, dict(at)

    def delete(self) -> None:
        """Delete its files. The manifest stays, so the part is not missing."""
        self._place.delete(self._folder)

    def rejects(self) -> Iterator[list[bytes]]:
        """Yield the lines of its rejects, some at a time. Raise OutputError at the end if they are damaged."""
        if self._rejects is None:
            return
        found, rest = hashlib.sha256(), b""
        for start in range(0, self._rejects["bytes"], _REJECTS_BLOCK):
            block = self._read(REJECTS, start, min(start + _REJECTS_BLOCK, self._rejects["bytes"])).tobytes()
            found.update(block)
            *lines, rest = (rest + block).split(b"\n")
            yield [line + b"\n" for line in lines]
        if rest or found.hexdigest() != self._rejects["sha256"]:
            raise self._damaged(REJECTS)

    def _rows(self, row: int) -> Iterator[Rows]:
        """Yield the rows of each batch."""
        count = self._size(_ROWS) // ROW.itemsize
        for first in range(row, count, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, count)
            table = _unpacked(self._checked(_ROWS, first * ROW.itemsize, last * ROW.itemsize).view(ROW))
            stops = np.cumsum((table.length + 1) * self._dtype.itemsize)
            begin = 0
            while begin < len(table):
                full = _BYTES_AT_ONCE + (int(stops[begin - 1]) if begin else 0)
                end = max(begin + 1, int(np.searchsorted(stops, full, side="right")))
                yield table[begin:end]
                begin = end

    def _checked(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes of a file from `start` to `end`, after checking the blocks that hold them."""
        if end > self._size(name):
            raise damaged_part(self._number, f"`{name}` is shorter than it was", self._place.out)
        first, last = start // _BLOCK, -(-end // _BLOCK)
        data = self._read(name, first * _BLOCK, min(last * _BLOCK, self._size(name)))
        for i, stored_sum in enumerate(self._sums_of(name)[first:last].tolist()):
            if crc32(data[i * _BLOCK : (i + 1) * _BLOCK]) != stored_sum:
                raise self._damaged(name)
        return data[start - first * _BLOCK : end - first * _BLOCK]

    def _size(self, name: str) -> int:
        """Bytes of a file without its checksums."""
        size = int(self._sizes.get(name, 0))
        return size - -(-size // (_BLOCK + _SUM.itemsize)) * _SUM.itemsize

    def _sums_of(self, name: str) -> NDArray[np.uint32]:
        if name not in self._sums:
            self._sums[name] = self._read(name, self._size(name), self._sizes.get(name, 0)).view(_SUM)
        return self._sums[name]

    def _read(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        try:
            data = self._place.section(f"{self._folder}/{name}", start, end)
        except FileNotFoundError:
            raise damaged_part(self._number, f"`{name}` is not there", self._place.out) from None
        if len(data) < end - start:
            raise damaged_part(self._number, f"`{name}` is shorter than it was", self._place.out)
        return data

    def _damaged(self, name: str) -> Exception:
        return damaged_part(self._number, f"`{name}` is not what was written", self._place.out)


def _unpacked(table: NDArray[Any]) -> Rows:
    """The rows as they were, without EOT."""
    flags = table["flags"]
    length, size = (table[name].astype(np.int64) for name in ("length", "bytes"))
    val, opens, closes = ((flags & bit) != 0 for bit in (_VAL, _OPENS, _CLOSES))
    return Rows(length, size, val, opens, closes, table["source"].copy(), table["record"].copy())
