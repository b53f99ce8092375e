"""A sequence of tokens that lies in many files: read without opening more than a few of them at a time."""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPEN = 56  # handles at a time; with the maps 64, where macOS gives a process 256
_MAPS = 8


@dataclass(frozen=True)
class TokenFile:
    """A file that holds `tokens` tokens after a head of so many bytes."""

    path: Path
    tokens: int
    head: int = 0


class OpenFile:
    """A file that is read at any place by any number of threads; it is closed when the last of them lets go of it."""

    def __init__(self, path: Path) -> None:
        """DamageError when it is not there."""
        self._path, self._handle = path, -1
        self._lock = threading.Lock()  # only where the system has no call that reads at a place
        try:
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise DamageError("the file is gone", place=str(path)) from None

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Fill an array with the bytes from `at` on; DamageError when the file ends too early."""
        view = memoryview(out)  # type: ignore[arg-type,unused-ignore]
        while len(view):
            got = self._read(view, at)
            if not got:
                raise DamageError("the file ends too early", place=str(self._path))
            view, at = view[got:], at + got

    def _read(self, view: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [view], at)
        with self._lock:
            os.lseek(self._handle, at, os.SEEK_SET)
            data = os.read(self._handle, len(view))
        view[: len(data)] = data
        return len(data)


class TokenFiles:
    """Tokens across files, by their position in the whole."""

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        self.files, self.dtype = list(files), dtype.newbyteorder("<")
        self.starts = np.concatenate([[0], np.cumsum([file.tokens for file in files], dtype=np.int64)]).tolist()
        # Each is an LRU cache that threads may share. What it forgets stays open for those who still read it.
        self.opened = lru_cache(_OPEN)(partial(_open, self.files))
        self._map = lru_cache(_MAPS)(partial(_map, self.files, self.dtype))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> tuple[list[TokenFile], np.dtype[Any]]:
        return self.files, self.dtype  # another process opens its own

    def __setstate__(self, state: tuple[list[TokenFile], np.dtype[Any]]) -> None:
        TokenFiles.__init__(self, *state)

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill a contiguous array with the tokens from `start` on. Nothing stays in this process's memory."""
        i = bisect_right(self.starts, start) - 1
        done = 0
        while done < len(out):
            within = start + done - self.starts[i]
            count = min(len(out) - done, self.files[i].tokens - within)
            if count:
                self.fill(i, within, out[done : done + count])
            done += count
            i += 1

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of some tokens."""
        out = np.empty(max(0, stop - start), self.dtype)
        self.read_into(start, out)
        return out

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Some tokens, read-only: from the memory map when they lie in one file, else a copy."""
        i = bisect_right(self.starts, start) - 1
        if start >= stop or stop > self.starts[i + 1]:
            return frozen(self.read(start, stop))
        return self._map(i)[start - self.starts[i] : stop - self.starts[i]]

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one file."""
        file = self.files[i]
        if out.dtype != self.dtype:
            narrow = np.empty(len(out), self.dtype)
            self.fill(i, within, narrow)
            out[:] = narrow
            return
        self.opened(i).fill(file.head + within * self.dtype.itemsize, out.view(np.uint8))

    def read_bytes(self, i: int, at: int, size: int) -> NDArray[np.uint8]:
        """Bytes of one file; DamageError when it ends too early."""
        out = np.empty(size, np.uint8)
        self.opened(i).fill(at, out)
        return out


def _open(files: Sequence[TokenFile], i: int) -> OpenFile:
    return OpenFile(files[i].path)


def _map(files: Sequence[TokenFile], dtype: np.dtype[Any], i: int) -> NDArray[Any]:
    with open(files[i].path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, files[i].tokens, files[i].head)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The same, read-only."""
    array.flags.writeable = False
    return array
