"""The documents table: `documents/train.npy` and `documents/val.npy` beside the token files of every format.

A NumPy file of version 1.0 with one row for each document, in the order of the tokens. It is in a folder of its own
because trainers take every file whose name has `train` in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.output_formats import SPLITS
from shardmill.shards.borders import ShardLimit
from shardmill.shards.format import Format, OutputSettings, ShardLayout
from shardmill.storage import AnyPath, open_array, open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

DOCUMENT = np.dtype([("end", "<i8"), ("source", "<i4"), ("record", "<i8"), ("bytes", "<i8")])
"""A row: where the document ends in the split, in tokens, with its end-of-text token as in the first format of the
dataset; its source, as an index into the manifest's sources; where it begins there, in the source's unit, counted from
0; and the bytes of its text."""
TABLES = "documents"
"""The folder of the tables."""
TABLE_NAMES = re.compile(rf"{TABLES}/(?:{'|'.join(SPLITS)})\.(?:npy|rows)")
"""The tables, and those that will be written anew without the rows of dropped tokens."""
HEADER_BYTES = 192
_COPIED_ROWS = 1 << 16  # at a time


def table_name(split: str) -> str:
    """Return the name of a split's table in the folder of the dataset."""
    return f"{TABLES}/{split}.npy"


def table_header(rows: int) -> bytes:
    """Return the header of a table; its size is always the same."""
    described = f"{{'descr': {DOCUMENT.descr}, 'fortran_order': False, 'shape': ({rows},), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + described.ljust(HEADER_BYTES - len(start) - 1).encode() + b"\n"


class TableFormat(Format):
    """The tables as files that `ShardWriter` writes: a row takes the place of a token."""

    name, eot, sharded, stem = "documents table", "none", False, f"{TABLES}/{{split}}"

    def __init__(self, *, drops_tail: bool) -> None:
        """`drops_tail`: tokens at the end of a split may be left out, which is known only when all are written."""
        self.kept_tokens: dict[str, int] = {}
        """The tokens of a split that are in its files, if some were left out."""
        self._drops_tail = drops_tail
        self.endings = (".rows", ".npy") if drops_tail else (".npy",)

    def layout(self, settings: OutputSettings) -> ShardLayout:
        return ShardLayout(DOCUMENT, ShardLimit())

    def file_names(self, name: str | None = None) -> re.Pattern[str]:
        return TABLE_NAMES

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        return table_header(tokens)

    def complete(self, shard: Shard) -> list[Written]:
        """Write a table anew if its last documents may be missing from the token files."""
        if not self._drops_tail:
            return [shard.tokens.finish(0, table_header(shard.token_count), role="documents")]
        return [shard.write(".npy", self._kept(shard), role="documents")]

    def _kept(self, shard: Shard) -> Iterator[bytes | NDArray[Any]]:
        """Yield a table that ends at the last token that was kept. A document that is cut there ends there."""
        tokens, low, high = self.kept_tokens.get(shard.split), 0, shard.token_count
        while tokens is not None and low < high:  # the first row that ends at or after that token
            middle = (low + high) // 2
            low, high = (middle + 1, high) if _rows(shard, middle, 1)["end"][0] < tokens else (low, middle)
        kept = shard.token_count if tokens is None else min(low + 1, shard.token_count) if tokens else 0
        yield table_header(kept)
        for first in range(0, kept, _COPIED_ROWS):
            documents = _rows(shard, first, min(_COPIED_ROWS, kept - first))
            if tokens is not None:
                documents["end"] = np.minimum(documents["end"], tokens)
            yield documents


def _rows(shard: Shard, first: int, count: int) -> NDArray[Any]:
    data = shard.tokens.read(HEADER_BYTES + first * DOCUMENT.itemsize, count * DOCUMENT.itemsize)
    return np.frombuffer(data, DOCUMENT).copy()


def open_table(path: AnyPath) -> Any:
    """Return a table as an array: mapped into memory, or read when it is needed. DamageError if it is not one."""
    try:
        size = path.stat().st_size
        header = np.empty(min(size, HEADER_BYTES), np.uint8)
        open_file(path).fill(0, header)
    except OSError as error:
        raise DamageError("the documents table cannot be read", place=str(path)) from error
    rows = (size - HEADER_BYTES) // DOCUMENT.itemsize
    if size != HEADER_BYTES + rows * DOCUMENT.itemsize or header.tobytes() != table_header(rows):
        raise DamageError("the file is not a documents table", place=str(path))
    return open_array(path, DOCUMENT, HEADER_BYTES, rows)


class TableIndex:
    """The documents of a split by its table."""

    def __init__(self, path: AnyPath, tokens: int, added: int = 0) -> None:
        """`tokens`: those of the split; where `--tail drop` has left some out, the last document is cut.

        `added`: what each document is longer than in the table, which has the lengths of the first format: 1, 0 or -1.
        """
        self._path, self.tokens, self._added = path, tokens, added
        self.table = open_table(path)
        self._count = len(self.table)
        if self._count and self._end(self._count - 1) > tokens:
            self._count = self._ended_by(tokens - 1) + 1 if tokens else 0
        elif (self._end(self._count - 1) if self._count else 0) < tokens:
            raise self._damage()

    def __reduce__(self) -> Any:
        return TableIndex, (self._path, self.tokens, self._added)

    def __len__(self) -> int:
        return self._count

    def bounds(self, i: int) -> tuple[int, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"there is no document {i:,}")
        start, end = self._end(i - 1) if i else 0, min(self._end(i), self.tokens)
        if not 0 <= start <= end:
            raise self._damage()
        return start, end

    def bounds_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where documents begin and end, by their numbers. Read, not mapped: mapped pages count as memory."""
        found = np.zeros((len(numbers), 2), DOCUMENT)
        before, size = np.minimum(numbers, 1), DOCUMENT.itemsize  # the first document has none before it
        places = (2 * np.arange(len(numbers)) + 1 - before) * size
        starts, lengths = HEADER_BYTES + (numbers - before) * size, (1 + before) * size
        order = np.argsort(numbers, kind="stable")
        open_file(self._path).fill_parts(starts[order], lengths[order], places[order], found.reshape(-1).view(np.uint8))
        ends = found["end"] + self._added * (numbers[:, None] + np.arange(2))
        return ends[:, 0] * before, np.minimum(ends[:, 1], self.tokens)

    def rows(self, first: int, last: int) -> NDArray[Any]:
        """Return a copy of some rows, with the ends of this format. Read, not mapped: mapped pages count as memory."""
        found = np.empty(last - first, DOCUMENT)
        open_file(self._path).fill(HEADER_BYTES + first * DOCUMENT.itemsize, found.view(np.uint8))
        found["end"] = np.minimum(found["end"] + self._added * np.arange(first + 1, last + 1), self.tokens)
        return found

    def holding(self, token: int) -> int:
        """Return the number of the document that contains a token."""
        return self._ended_by(token)

    def overlapping(self, start: int, stop: int, most: int) -> tuple[int, NDArray[Any]]:
        """Return a copy of the rows of the documents with tokens from `start` to `stop`, and where the first begins.

        `most`: rows at most.
        """
        mapped = TableIndex(self._path, self.tokens, self._added)  # for this call only: mapped pages count as memory
        first, last = mapped.holding(start), mapped.holding(stop - 1) + 1
        return mapped.bounds(first)[0], self.rows(first, min(last, first + most))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        first, last = self._ended_by(start), min(self._ended_by(stop), len(self))
        found: NDArray[np.int64] = self.table[first:last]["end"] + self._added * np.arange(first + 1, last + 1)
        if stop == self.tokens and last < len(self):
            found = np.append(found, self.tokens)
        if len(found) and not (start < found[0] and found[-1] <= stop and (found[1:] > found[:-1]).all()):
            raise self._damage()
        return found

    def _ended_by(self, token: int) -> int:
        """How many documents end before or at a place; read in a few steps, since the table may be large."""
        low, high = 0, len(self.table)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._end(middle) <= token else (low, middle)
        return low

    def _end(self, i: int) -> int:
        return int(self.table[i]["end"]) + self._added * (i + 1)

    def _damage(self) -> DamageError:
        return DamageError("the documents table does not fit the tokens", place=str(self._path))
