"""One file or stream to be read, and long lists in a few bytes a row."""

from __future__ import annotations

import heapq
import marshal
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, overload

from shardmill.errors import SourceError
from shardmill.storage.names import scheme_of

T = TypeVar("T")

STDIN = "-"
# Sources up to this size are read whole when they are opened: one open, one read, and the worker gets the bytes. Of
# larger ones, this many bytes are read to detect the format.
SMALL = 1 << 16
# Rows that are packed together: a row then takes 5 to 15 bytes instead of 400.
BLOCK_ROWS = 1024
_BATCH = 1 << 16  # rows that are sorted at once: 12 MB


class Source(NamedTuple):
    """One file or stream to be read, as it was when it was found."""

    name: str
    """What users see: the path as it was given or found, or a URL without what may be a secret."""
    path: str
    """What is opened. A URL may contain a secret, so it is never written anywhere."""
    size: int | None
    """Bytes as stored; None: a stream of unknown length."""
    version: str
    """Nanoseconds of the last change, as text, or a server's ETag or hash; empty for a stream."""
    input_format: str = "auto"

    @property
    def remote(self) -> bool:
        return "://" in self.path and bool(scheme_of(self.path))


def changed_error(source: Source) -> SourceError:
    return SourceError(
        "the source changed while it was read",
        place=source.name,
        kept="",  # the run cannot be resumed without the source as it was
        hint="wait until nothing writes to it any more, then start anew with `--overwrite`",
    )


class PackedRows:
    """Tuples of text and numbers, kept compressed by the thousand."""

    def __init__(self, rows: Iterable[tuple[Any, ...]] = ()) -> None:
        self._blocks: list[bytes] = []
        self._open: list[tuple[Any, ...]] = []
        self.extend(rows)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        rows = iter(rows)
        while some := list(islice(rows, BLOCK_ROWS - len(self._open))):
            self._open += some
            if len(self._open) == BLOCK_ROWS:
                # By columns, because similar values compress better side by side.
                self._blocks.append(zlib.compress(marshal.dumps(tuple(zip(*self._open, strict=True))), 1))
                self._open = []

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + len(self._open)

    def block(self, number: int) -> list[tuple[Any, ...]]:
        """Return some consecutive rows, unpacked."""
        if number == len(self._blocks):
            return self._open
        return list(zip(*marshal.loads(zlib.decompress(self._blocks[number])), strict=True))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(map(self.block, range(len(self._blocks) + 1)))


def sorted_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Return the rows sorted; if there are many, they are kept packed while they are sorted."""
    rows = iter(rows)
    batch = sorted(islice(rows, _BATCH))
    runs = []
    while len(batch) == _BATCH:
        runs.append(PackedRows(batch))
        batch = sorted(islice(rows, _BATCH))
    return heapq.merge(*runs, batch) if runs else iter(batch)


class BlockSequence(Sequence[T]):
    """A long sequence that is kept packed; blocks of BLOCK_ROWS values are unpacked when they are used."""

    @abstractmethod
    def block(self, number: int) -> list[T]:
        """Return some consecutive values."""

    def __iter__(self) -> Iterator[T]:
        return self.iter_from(0)

    def iter_from(self, index: int) -> Iterator[T]:
        """Yield the values from this one on."""
        for number in range(index // BLOCK_ROWS, -(-len(self) // BLOCK_ROWS)):
            yield from islice(self.block(number), max(0, index - number * BLOCK_ROWS), None)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self):,} sources")
        number, row = divmod(index % len(self), BLOCK_ROWS)
        return self.block(number)[row]
