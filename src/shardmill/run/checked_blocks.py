"""Files with the CRC-32 of each block of 64 KiB in a file beside them, so that any stretch can be checked by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from shardmill.errors import DamageError
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUMS = ".sums"
"""What the name of the file with the sums ends with."""
_BLOCK, _SUM = 1 << 16, np.dtype("<u4")


class CheckedFile:
    """A file that grows, and its sums. It goes on from any length that it had before."""

    def __init__(self, path: Path, keep: int) -> None:
        blocks, self._held = divmod(keep, _BLOCK)
        self._file = PartialFile(path, keep, hashed=False)
        self._sums = PartialFile(path.with_name(path.name + SUMS), blocks * _SUM.itemsize, hashed=False)
        self._crc = crc32(self._file.read(keep - self._held, self._held))

    @property
    def length(self) -> int:
        return self._file.length

    def append(self, data: NDArray[Any]) -> None:
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._file.append(view)
        sums, at = [], 0
        while at < len(view):
            block = view[at : at + _BLOCK - self._held]
            self._crc, self._held, at = crc32(block, self._crc), self._held + len(block), at + len(block)
            if self._held == _BLOCK:
                sums.append(self._crc)
                self._crc = self._held = 0
        self._sums.append(np.array(sums, _SUM))

    def end(self) -> None:
        """Nothing follows: the last block may be shorter than the others."""
        self._sums.append(np.array([self._crc] if self._held else [], _SUM))

    def settle(self) -> None:
        """Bring all to the disk."""
        self._file.settle(self._file.length)
        self._sums.settle(self._sums.length)

    def finish(self) -> list[Written]:
        """The same, and give both files their names."""
        return [self._file.finish(0), self._sums.finish(0)]

    def close(self) -> None:
        self._file.close()
        self._sums.close()


class CheckedReader:
    """Reads what a `CheckedFile` has written."""

    def __init__(self, section: Callable[[str, int, int], NDArray[np.uint8]], size: int) -> None:
        """`section` reads bytes of the file, which has so many, or with `SUMS` of its sums."""
        self._section, self.size = section, size

    def read(self, start: int, end: int) -> NDArray[np.uint8]:
        """The bytes from `start` to `end`, in an array of their own; DamageError where they are not as written."""
        if start >= end:
            return np.empty(0, np.uint8)
        first, last = start // _BLOCK, -(-end // _BLOCK)
        begin, stop = first * _BLOCK, min(last * _BLOCK, self.size)
        data = self._section("", begin, stop)
        stored = self._section(SUMS, first * _SUM.itemsize, last * _SUM.itemsize)
        if end > self.size or len(data) != stop - begin or len(stored) != (last - first) * _SUM.itemsize:
            raise DamageError("it is shorter than it was")
        for i, stored_sum in enumerate(stored.view(_SUM).tolist()):
            if crc32(data[i * _BLOCK : (i + 1) * _BLOCK]) != stored_sum:
                raise DamageError("it is not what was written")
        return data[start - begin : end - begin]
