"""A sequence of tokens that lies in many files: read without opening more than a few of them at a time."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from shardmill.errors import DamageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPEN = 56  # handles at a time; with the maps 64, where macOS gives a process 256
_MAPS = 8

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class TokenFile:
    """A file that holds `tokens` tokens after a head of so many bytes."""

    path: Path
    tokens: int
    head: int = 0


class Few(Generic[Kept]):
    """The last few things that were opened; the one that was not used for longest is closed to open another."""

    def __init__(self, most: int, open_one: Callable[[int], Kept], close_one: Callable[[Kept], None]) -> None:
        self._most, self._open_one, self._close_one = most, open_one, close_one
        self._kept: OrderedDict[int, Kept] = OrderedDict()

    def __getitem__(self, i: int) -> Kept:
        if i in self._kept:
            self._kept.move_to_end(i)
            return self._kept[i]
        while len(self._kept) >= self._most:
            self._close_one(self._kept.popitem(last=False)[1])
        opened = self._kept[i] = self._open_one(i)
        return opened

    def close(self) -> None:
        while self._kept:
            self._close_one(self._kept.popitem()[1])


class TokenFiles:
    """Tokens across files, by their position in the whole."""

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        self.files, self.dtype = list(files), dtype.newbyteorder("<")
        self.starts = np.concatenate([[0], np.cumsum([file.tokens for file in files], dtype=np.int64)]).tolist()
        self._handles = Few(_OPEN, self._open, os.close)
        self._maps = Few(_MAPS, self._map, _forget)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> tuple[list[TokenFile], np.dtype[Any]]:
        return self.files, self.dtype  # another process opens its own

    def __setstate__(self, state: tuple[list[TokenFile], np.dtype[Any]]) -> None:
        TokenFiles.__init__(self, *state)

    def __del__(self) -> None:
        if hasattr(self, "_maps"):
            self.close()

    def close(self) -> None:
        """Close what is open; it is opened again when it is needed."""
        self._handles.close()
        self._maps.close()

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
            return _frozen(self.read(start, stop))
        return self._maps[i][start - self.starts[i] : stop - self.starts[i]]

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one file."""
        file = self.files[i]
        if out.dtype != self.dtype:
            narrow = np.empty(len(out), self.dtype)
            self.fill(i, within, narrow)
            out[:] = narrow
            return
        self.fill_bytes(i, file.head + within * self.dtype.itemsize, out.view(np.uint8))

    def fill_bytes(self, i: int, at: int, out: NDArray[np.uint8]) -> None:
        """Fill an array with bytes of one file; DamageError when it ends too early."""
        handle, view = self._handles[i], memoryview(out)  # type: ignore[arg-type,unused-ignore]
        while len(view):
            got = _read_at(handle, view, at)
            if not got:
                raise DamageError("the file ends too early", place=str(self.files[i].path))
            view, at = view[got:], at + got

    def _open(self, i: int) -> int:
        try:
            return os.open(self.files[i].path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise DamageError("the file is gone", place=str(self.files[i].path)) from None

    def _map(self, i: int) -> NDArray[Any]:
        file = self.files[i]
        with open(file.path, "rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, self.dtype, file.tokens, file.head)


class MdsFiles(TokenFiles):
    """Tokens across MosaicML's shards, where every document has a head of its own."""

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        super().__init__(files, dtype)
        self.ends = Few(2, self._ends, _forget)
        """For each shard where its documents end, in tokens; a shard has few enough of them to be held."""
        self._offsets = Few(2, self._read_offsets, _forget)

    def __setstate__(self, state: tuple[list[TokenFile], np.dtype[Any]]) -> None:
        MdsFiles.__init__(self, *state)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """A copy: the tokens do not lie side by side."""
        return _frozen(self.read(start, stop))

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one shard."""
        ends, offsets, width = self.ends[i], self._offsets[i], self.dtype.itemsize
        first = int(np.searchsorted(ends, within, side="right"))
        last = int(np.searchsorted(ends, within + len(out)))
        rows = np.arange(first, last + 1)
        begins = np.where(rows > 0, ends[rows - 1], 0)
        heads = offsets[rows + 1] - offsets[rows] - (ends[rows] - begins) * width
        start = int(offsets[first] + heads[0] + (within - begins[0]) * width)
        stop = int(offsets[last] + heads[-1] + (within + len(out) - begins[-1]) * width)
        data = np.empty(stop - start, np.uint8)
        self.fill_bytes(i, start, data)
        # The heads of all documents but the first stand between the tokens; they are cut out in one go.
        heads, at = heads[1:], offsets[rows[1:]] - start
        tokens = np.ones(len(data), np.bool_)
        tokens[np.repeat(at - (np.cumsum(heads) - heads), heads) + np.arange(int(heads.sum()))] = False
        out[:] = data[tokens].view(self.dtype)

    def _read_offsets(self, i: int) -> NDArray[np.int64]:
        count = np.empty(1, "<u4")
        self.fill_bytes(i, 0, count.view(np.uint8))
        offsets = np.empty(int(count[0]) + 1, "<u4")
        self.fill_bytes(i, 4, offsets.view(np.uint8))
        return offsets.astype(np.int64)

    def _ends(self, i: int) -> NDArray[np.int64]:
        offsets, width = self._offsets[i], self.dtype.itemsize
        sizes = np.diff(offsets) - 4 - 1
        # How wide a document's length is written depends on the length: 1, 2 or 4 bytes.
        lengths = np.where(
            (sizes - 1) // width < 1 << 8,
            (sizes - 1) // width,
            np.where((sizes - 2) // width < 1 << 16, (sizes - 2) // width, (sizes - 4) // width),
        )
        ends = np.cumsum(lengths)
        if not len(ends) or ends[-1] != self.files[i].tokens:
            raise DamageError("the shard's offsets do not fit its tokens", place=str(self.files[i].path))
        return ends

    def close(self) -> None:
        """Close what is open and forget what is cached."""
        super().close()
        if hasattr(self, "_offsets"):
            self.ends.close()
            self._offsets.close()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _forget(kept: object) -> None:
    """Nothing to close: the map goes when the last view of it does."""


if hasattr(os, "preadv"):

    def _read_at(handle: int, view: memoryview, at: int) -> int:
        return os.preadv(handle, [view], at)
else:

    def _read_at(handle: int, view: memoryview, at: int) -> int:
        os.lseek(handle, at, os.SEEK_SET)
        data = os.read(handle, len(view))
        view[: len(data)] = data
        return len(data)
