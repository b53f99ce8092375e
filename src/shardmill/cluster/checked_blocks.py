"""Files that end with the CRC-32 of each of their blocks, so that any stretch of one can be checked by itself."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from shardmill.errors import DamageError
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK, _SUM = 1 << 18, np.dtype("<u4")


class CheckedFile:
    """A file that grows. It goes on from any length that it had before."""

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

    def settle(self) -> None:
        """Bring all to the disk."""
        self._file.settle(self._file.length)

    def finish(self, role: str = "") -> Written:
        """Nothing follows but the sums: the same, and give the file its name."""
        last = [self._crc] if self._held else []  # the last block may be shorter than the others
        self._file.append(np.array([*self._sums, *last], _SUM))
        return self._file.finish(0, role=role)

    def close(self) -> None:
        self._file.close()


class CheckedReader:
    """Reads what a `CheckedFile` has written."""

    def __init__(self, section: Callable[[int, int], NDArray[np.uint8]], size: int) -> None:
        """`section` reads bytes of the file, which has `size` with its sums."""
        self._section = section
        self.size = size - -(-size // (_BLOCK + _SUM.itemsize)) * _SUM.itemsize
        self._end, self._sums = size, np.empty(0, _SUM)

    def read(self, start: int, end: int) -> NDArray[np.uint8]:
        """The bytes from `start` to `end`; DamageError where they are not as written."""
        if start >= end:
            return np.empty(0, np.uint8)
        if end > self.size:
            raise DamageError("it is shorter than it was")
        if not len(self._sums):
            self._sums = self._whole(self.size, self._end).view(_SUM)
        first, last = start // _BLOCK, -(-end // _BLOCK)
        begin = first * _BLOCK
        data = self._whole(begin, min(last * _BLOCK, self.size))
        for i, stored_sum in enumerate(self._sums[first:last].tolist()):
            if crc32(data[i * _BLOCK : (i + 1) * _BLOCK]) != stored_sum:
                raise DamageError("it is not what was written")
        return data[start - begin : end - begin]

    def blocks(self, start: int, end: int, size: int) -> Iterator[NDArray[np.uint8]]:
        """The same in blocks of `size` bytes, a multiple of what a checksum covers."""
        while start < end:
            stop = min(end, (start // size + 1) * size)
            yield self.read(start, stop)
            start = stop

    def _whole(self, start: int, end: int) -> NDArray[np.uint8]:
        data = self._section(start, end)
        if len(data) != end - start:
            raise DamageError("it is shorter than it was")
        return data
