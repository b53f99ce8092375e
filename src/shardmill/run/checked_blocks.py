"""Files in blocks of 64 KiB, each with its CRC-32 after it, so that any stretch can be read and checked by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from shardmill.errors import DamageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.storage import PartialFile

_BLOCK, _SUM = 1 << 16, np.dtype("<u4")
_STORED = _BLOCK + _SUM.itemsize


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
