"""A part that is published, read again: its rows in batches that the writer takes, each stretch checked before use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardmill.cluster.checked_blocks import CheckedReader
from shardmill.cluster.place import Place, damaged_part, files_of, part_name
from shardmill.cluster.rows_output import ROW, ROWS, marked, tokens_name, unpacked
from shardmill.errors import DamageError
from shardmill.run import REJECTS, Batch, Rows, Stream
from shardmill.shards import SPLITS
from shardmill.storage import StoredBytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run import Writer

# Rows of a batch, and bytes of their tokens: after each batch a merge can be interrupted, and tells its progress.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 16, 16 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class RowSettings:
    """What has to be known of a plan to make its rows into final files."""

    dtype: str
    spans: bool
    """The rows of one document may be in several splits."""
    first: int
    """Tokens that val takes before train gets any."""


class PartTokens(StoredBytes):
    """Tokens of a part that are read when they are written: block by block, each while it is in the CPU's cache.

    An output treats them as an array that it never looks into.
    """

    def __init__(self, part: StoredPart, name: str, dtype: np.dtype[Any], start: int, end: int) -> None:
        self._part, self._name, self.dtype, self._start, self._end = part, name, dtype, start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, wanted: slice) -> PartTokens:
        first, last, _ = wanted.indices(len(self))
        return PartTokens(self._part, self._name, self.dtype, self._start + first, self._start + max(first, last))

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        return self._part.blocks(self._name, self._start * self.dtype.itemsize, self._end * self.dtype.itemsize)


class StoredPart:
    """The files of one part; OutputError where they are damaged."""

    def __init__(self, place: Place, number: int, manifest: dict[str, Any], settings: RowSettings) -> None:
        self._place, self._number, self._settings = place, number, settings
        self._folder = "/".join(filter(None, [part_name(number), manifest.get("made")]))
        self._sizes = {file["name"]: file["bytes"] for file in files_of(manifest)}
        self._readers: dict[str, CheckedReader] = {}
        self._rejects = manifest.get("rejects")
        self._dtype = np.dtype(settings.dtype).newbyteorder("<")

    def batches(self, behind: dict[str, int], eots: tuple[str, ...], split: str | None = None) -> Iterator[Batch]:
        """Yield batches from where a merge stands in this part. A document cut across batches is alone in them.

        Tokens are read when they are written. `split`: only the tokens of that split.
        """
        splits = SPLITS if split is None or self._settings.first else (split,)
        names = [(eot, split, tokens_name(split, eot)) for eot in eots for split in splits]
        at = {name: behind.get(name, 0) for name in ("rows", "open", *(name for _, _, name in names))}
        for rows, is_open in self._rows(at["rows"], at["open"]):
            streams = {eot: Stream(marked(rows, eot), {}) for eot in eots}
            for eot, split, name in names:
                mine = rows.val if split == "val" else ~rows.val
                start, at[name] = at[name], at[name] + int(streams[eot].rows.length[mine].sum())
                if start < at[name]:
                    tokens = PartTokens(self, name, self._dtype, start, at[name])
                    streams[eot].tokens[split] = cast("NDArray[Any]", tokens)
            spans, was_open = self._settings.spans, at["open"]
            at["rows"], at["open"] = at["rows"] + len(rows), is_open
            after = partial(_note, dict(at))
            yield Batch([], [], streams, spans=spans, begins=not was_open, ends=not is_open, after=after)

    def blocks(self, name: str, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        """Yield some bytes of a file block by block. Raise OutputError where they are damaged."""
        try:
            yield from self._reader(name).blocks(start, end, self._place.block)
        except DamageError as why:
            raise damaged_part(self._number, f"`{name}`: {why.message}", self._place.out) from None

    def rejects(self) -> Iterator[list[bytes]]:
        """The lines of its rejects, some at a time; OutputError at the end if they are not what was written."""
        if self._rejects is None:
            return
        found, rest = hashlib.sha256(), b""
        for start in range(0, self._rejects["bytes"], _BLOCK):
            block = self._read(REJECTS, start, min(start + _BLOCK, self._rejects["bytes"])).tobytes()
            found.update(block)
            *lines, rest = (rest + block).split(b"\n")
            yield [line + b"\n" for line in lines]
        if rest or found.hexdigest() != self._rejects["sha256"]:
            raise damaged_part(self._number, f"`{REJECTS}` is not what was written", self._place.out)

    def _rows(self, row: int, is_open: int) -> Iterator[tuple[Rows, int]]:
        """The rows of each batch from a row on, and whether a document is open after them."""
        count = self._reader(ROWS).size // ROW.itemsize
        for first in range(row, count, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, count)
            blocks = list(self.blocks(ROWS, first * ROW.itemsize, last * ROW.itemsize))
            table = unpacked(np.concatenate(blocks).view(ROW))
            stops = np.cumsum((table.length + 1) * self._dtype.itemsize)
            begin = 0
            while begin < len(table):
                full = _BYTES_AT_ONCE + (int(stops[begin - 1]) if begin else 0)
                end = max(begin + 1, int(np.searchsorted(stops, full, side="right")))
                closed = np.flatnonzero(table.closes[begin:end])
                end = begin + int(closed[0 if is_open else -1]) + 1 if len(closed) else end
                rows, begin = table[begin:end], end
                filled = np.flatnonzero(rows.length)
                is_open = int(not rows.closes[filled[-1]]) if len(filled) else is_open
                yield rows, is_open

    def _reader(self, name: str) -> CheckedReader:
        if name not in self._readers:
            self._readers[name] = CheckedReader(partial(self._read, name), self._sizes.get(name, 0))
        return self._readers[name]

    def _read(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        try:
            return self._place.section(f"{self._folder}/{name}", start, end)
        except FileNotFoundError:
            raise damaged_part(self._number, f"`{name}` is not there", self._place.out) from None


def _note(behind: dict[str, int], writer: Writer) -> None:
    writer.state.merge |= behind
