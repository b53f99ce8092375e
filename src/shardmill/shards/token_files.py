"""A sequence of tokens in many files, of which only a few are open at a time."""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPEN = 56  # files at a time; with the memory maps 64, and macOS allows a process 256
_MAPS = 8


@dataclass(frozen=True)
class TokenFile:
    """A file that holds `tokens` tokens after a header of `head` bytes."""

    path: Path
    tokens: int
    head: int = 0


class OpenFile:
    """A file that any number of threads read at any offset; it is closed when nobody refers to it any more."""

    def __init__(self, path: Path) -> None:
        """Raise DamageError if it does not exist."""
        self._path, self._handle = path, -1
        self._lock = threading.Lock()  # only where the system cannot read at an offset
        try:
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise DamageError("the file is gone", place=str(path)) from None

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Fill an array with the bytes from `at` on; DamageError if the file ends too early."""
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
    """Tokens across files, by their position in the whole. Threads may share it."""

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        self.files, self.dtype = list(files), dtype.newbyteorder("<")
        self.starts = np.concatenate([[0], np.cumsum([file.tokens for file in files], dtype=np.int64)]).tolist()
        # A file that leaves a cache stays open for those who still read it.
        known, stored = self.files, self.dtype  # no reference to self, so that files are closed when it is deleted
        self.opened = lru_cache(_OPEN)(lambda i: OpenFile(known[i].path))
        self._map = lru_cache(_MAPS)(lambda i: _map(known[i], stored))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self) -> Any:
        return type(self), (self.files, self.dtype)  # another process opens its own

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill a contiguous array with the tokens from `start` on; nothing else stays in memory."""
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
        """Return a copy of some tokens."""
        out = np.empty(max(0, stop - start), self.dtype)
        self.read_into(start, out)
        return out

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return some tokens, read-only: a view of the memory map if they are in one file, else a copy."""
        i = bisect_right(self.starts, start) - 1
        if start >= stop or stop > self.starts[i + 1]:
            return frozen(self.read(start, stop))
        return self._map(i)[start - self.starts[i] : stop - self.starts[i]]

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one file."""
        stored = out if out.dtype == self.dtype else np.empty(len(out), self.dtype)
        self.opened(i).fill(self.files[i].head + within * self.dtype.itemsize, stored.view(np.uint8))
        if stored is not out:
            out[:] = stored

    def read_bytes(self, i: int, at: int, size: int) -> NDArray[np.uint8]:
        """Return bytes of one file; DamageError if it ends too early."""
        out = np.empty(size, np.uint8)
        self.opened(i).fill(at, out)
        return out


def _map(file: TokenFile, dtype: np.dtype[Any]) -> NDArray[Any]:
    with open(file.path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, file.tokens, file.head)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array
