"""Where documents begin and end in a split: from the format's own index, or from the end-of-text tokens."""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill.dataset.token_files import MdsFiles, TokenFiles
from shardmill.errors import DamageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 20  # tokens looked at in one go
_ENTRIES = 1 << 16  # positions held; when there are more, every second one goes
_HEAD = struct.Struct("<9sQBQQ")


class DocumentIndex(Protocol):
    """Finds documents by their number."""

    def __len__(self) -> int:
        """How many there are; where that is not written down, all tokens are looked at once."""

    def bounds(self, i: int) -> tuple[int, int]:
        """Where document `i` begins and ends, with its end-of-text token if the format keeps it there. IndexError."""

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Where documents end from `start` to `stop`; `tokens` are those between them."""


class EndOfText:
    """Documents between end-of-text tokens. A piece before the first or after the last counts when it is not empty.

    Positions of end-of-text tokens are held for every so many of them, never for all: what lies between is looked at
    again. They are found as far as somebody has asked.
    """

    def __init__(self, tokens: TokenFiles, eot: int, where: str) -> None:
        self._tokens, self._eot, self._where = tokens, eot, where
        self._every = 64
        self._held: list[int] = []
        self._seen = 0
        self._count = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return EndOfText, (self._tokens, self._eot, self._where)

    def __len__(self) -> int:
        with self._lock:
            self._look(len(self._tokens) + 1, -1)
            if not self._count:
                return int(len(self._tokens) > 0)
            last = self._mark(self._count - 1)
            return self._count + 1 - self._skipped - int(last == len(self._tokens) - 1)

    def bounds(self, i: int) -> tuple[int, int]:
        piece = i + self._skipped
        with self._lock:
            self._look(-1, piece + 1)
            start = 0 if piece == 0 else self._mark(piece - 1) + 1 if piece <= self._count else len(self._tokens)
            if start >= len(self._tokens):
                raise IndexError(f"there is no document {i:,}")
            return start, self._mark(piece) if piece < self._count else len(self._tokens)

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        marks = np.flatnonzero(tokens == self._eot) + start
        return marks + 1 if self._where == "after" else marks[marks > 0]

    @property
    def _skipped(self) -> int:
        """1 when nothing stands before the first end-of-text token."""
        return int(len(self._tokens) > 0 and int(self._tokens.read(0, 1)[0]) == self._eot)

    def _look(self, position: int, count: int) -> None:
        """Find marks up to a position, or until there are so many."""
        while self._seen < len(self._tokens) and (self._seen < position or self._count < count):
            stop = min(self._seen + _BLOCK, len(self._tokens))
            marks = np.flatnonzero(self._tokens.read(self._seen, stop) == self._eot) + self._seen
            self._held += marks[-self._count % self._every :: self._every].tolist()
            self._count += len(marks)
            self._seen = stop
            while len(self._held) > _ENTRIES:
                self._held = self._held[::2]
                self._every *= 2

    def _mark(self, n: int) -> int:
        """The position of the n-th end-of-text token, which has been looked at."""
        at, left = self._held[n // self._every], n % self._every
        size = 4096
        while left:
            stop = min(at + 1 + size, len(self._tokens))
            marks = np.flatnonzero(self._tokens.read(at + 1, stop) == self._eot)
            if len(marks) >= left:
                return at + 1 + int(marks[left - 1])
            left -= len(marks)
            at, size = stop - 1, min(2 * size, _BLOCK)
        return at


class Megatron:
    """Documents by Megatron's index; a document may have been stored as several sequences, or as none."""

    def __init__(self, tokens: TokenFiles, indices: list[Path]) -> None:
        self._tokens, self._paths = tokens, indices
        self._map = lru_cache(4)(lambda i: np.memmap(indices[i], np.uint8, "r"))
        heads = [megatron_head(path) for path in indices]
        self._sequences = [sequences for _, sequences, _ in heads]
        self._firsts = [0, *np.cumsum([documents for _, _, documents in heads], dtype=np.int64).tolist()]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def bounds(self, i: int) -> tuple[int, int]:
        file = _file_of(self._firsts, i)
        ends, documents = self._arrays(file)
        first, last = documents[i - self._firsts[file] : i - self._firsts[file] + 2].tolist()
        if not 0 <= first <= last <= self._sequences[file]:
            raise DamageError("Megatron's index is damaged", place=str(self._paths[file]))
        return _bounds(self._tokens, file, self._end(ends, first), self._end(ends, last))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        found = []
        for file, base in _files_between(self._tokens, start, stop):
            (lengths, offsets), documents = self._arrays(file)
            width = self._tokens.dtype.itemsize
            # Documents end where sequences do: those that end within, then of these the last of a document.
            first = max(0, int(np.searchsorted(offsets, (start - base) * width, side="right")) - 1)
            last = int(np.searchsorted(offsets, (stop - base) * width))
            among = documents[np.searchsorted(documents, first + 1) : np.searchsorted(documents, last, side="right")]
            if len(among) and not 0 < among.min() <= among.max() <= self._sequences[file]:
                raise DamageError("Megatron's index is damaged", place=str(self._paths[file]))
            ends = np.unique(offsets[among - 1] // width + lengths[among - 1]) + base
            found.append(ends[(ends > start) & (ends <= stop)])
        return np.concatenate([np.empty(0, np.int64), *found])

    def _end(self, ends: tuple[NDArray[np.int32], NDArray[np.int64]], sequence: int) -> int:
        """Where the sequences before one end, in tokens of the file."""
        lengths, offsets = ends
        if not sequence:
            return 0
        return int(offsets[sequence - 1]) // self._tokens.dtype.itemsize + int(lengths[sequence - 1])

    def _arrays(self, file: int) -> tuple[tuple[NDArray[np.int32], NDArray[np.int64]], NDArray[np.int64]]:
        count, data = self._sequences[file], self._map(file)
        lengths = data[_HEAD.size : _HEAD.size + 4 * count].view("<i4")
        offsets = data[_HEAD.size + 4 * count : _HEAD.size + 12 * count].view("<i8")
        end = _HEAD.size + 12 * count + 8 * (self._firsts[file + 1] - self._firsts[file] + 1)
        return (lengths, offsets), data[_HEAD.size + 12 * count : end].view("<i8")


def megatron_head(path: Path) -> tuple[int, int, int]:
    """(code of the type, sequences, documents) of an index; DamageError when it is none."""
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        magic, version, code, sequences, entries = _HEAD.unpack(head)
        size = _HEAD.size + 12 * sequences + 8 * entries
        if (magic, version) == (b"MMIDIDX\0\0", 1) and entries and size <= path.stat().st_size:
            return code, sequences, entries - 1
    raise DamageError("the file is not a whole Megatron index", place=str(path))


class Ends:
    """Documents by where they end in each file: datatrove's index, or MosaicML's shards."""

    def __init__(self, tokens: TokenFiles, counts: list[int], ends: Any) -> None:
        self._tokens, self._ends = tokens, ends
        self._firsts = [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    @classmethod
    def datatrove(cls, tokens: TokenFiles, indices: list[Path]) -> Ends:
        counts = [path.stat().st_size // 8 for path in indices]

        def read(i: int) -> NDArray[Any]:
            return np.memmap(indices[i], "<u8", "r", shape=(counts[i],)) if counts[i] else np.empty(0, "<u8")

        return cls(tokens, counts, lru_cache(4)(read))

    @classmethod
    def mds(cls, tokens: MdsFiles) -> Ends:
        counts = []
        for i in range(len(tokens.files)):
            head = np.empty(4, np.uint8)
            tokens.fill_bytes(i, 0, head)
            counts.append(int(head.view("<u4")[0]))
        return cls(tokens, counts, tokens.ends)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def bounds(self, i: int) -> tuple[int, int]:
        file = _file_of(self._firsts, i)
        n, ends = i - self._firsts[file], self._ends(file)
        return _bounds(self._tokens, file, int(ends[n - 1]) if n else 0, int(ends[n]))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        found = []
        for file, base in _files_between(self._tokens, start, stop):
            ends = self._ends(file)
            first, last = np.searchsorted(ends, [max(0, start - base), stop - base], side="right")
            among = np.asarray(ends[first:last], np.int64) + base
            if len(among) and not (start < among[0] and among[-1] <= stop and (among[1:] > among[:-1]).all()):
                raise DamageError("the index of the documents is damaged", place=str(self._tokens.files[file].path))
            found.append(among)
        return np.concatenate([np.empty(0, np.int64), *found])


def _bounds(tokens: TokenFiles, file: int, start: int, end: int) -> tuple[int, int]:
    """Positions in a file as positions in the whole; DamageError when they cannot be."""
    if not 0 <= start <= end <= tokens.files[file].tokens:
        raise DamageError("the index of the documents is damaged", place=str(tokens.files[file].path))
    return tokens.starts[file] + start, tokens.starts[file] + end


def _file_of(firsts: list[int], i: int) -> int:
    if not 0 <= i < firsts[-1]:
        raise IndexError(f"there is no document {i:,}")
    return bisect_right(firsts, i) - 1


def _files_between(tokens: TokenFiles, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The files that hold these tokens, each with the position of its first."""
    for file in range(max(0, bisect_right(tokens.starts, start) - 1), bisect_left(tokens.starts, stop)):
        yield file, tokens.starts[file]
