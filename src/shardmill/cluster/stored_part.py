"""A part that is published, read again: its rows in batches that the writer takes, each stretch checked before use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.cluster.checked_blocks import CheckedReader
from shardmill.cluster.place import Place, damaged_part, files_of, part_name
from shardmill.cluster.rows_output import ROW, ROWS, marked, tokens_name, unpacked
from shardmill.errors import DamageError
from shardmill.run import REJECTS, Batch, Rows, Stream
from shardmill.shards import SPLITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run import Writer

# Rows, and bytes of their tokens, that are moved at once. The system's allocator uses memory below 5 MB again
# (run/machine.py); larger arrays would have all their pages cleared, which takes longer than to copy them.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 16, 4 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class RowSettings:
    """What has to be known of a plan to make its rows into final files."""

    dtype: str
    spans: bool
    """The rows of one document may be in several splits."""
    first: int
    """Tokens that val takes before train gets any."""


class StoredPart:
    """The files of one part; OutputError where they are damaged."""

    def __init__(self, place: Place, number: int, manifest: dict[str, Any], settings: RowSettings) -> None:
        self._place, self._number, self._settings = place, number, settings
        self._folder = "/".join(filter(None, [part_name(number), manifest.get("made")]))
        self._sizes = {file["name"]: file["bytes"] for file in files_of(manifest)}
        self._readers: dict[str, CheckedReader] = {}
        self._rejects = manifest.get("rejects")
        self._dtype = np.dtype(settings.dtype)

    def batches(self, behind: dict[str, int], eots: tuple[str, ...], split: str | None = None) -> Iterator[Batch]:
        """From where a merge stands in this part on. A document that is cut across batches is alone in them.

        `split`: the tokens of that one only.
        """
        splits = SPLITS if split is None or self._settings.first else (split,)
        return _ahead(self._batches(behind, eots, splits, self._tokens))

    def measured(self, behind: dict[str, int], eots: tuple[str, ...]) -> Iterator[Batch]:
        """The same without the tokens: as many of them as there are, and all the same."""
        return _ahead(self._batches(behind, eots, SPLITS, self._nothing))

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

    def _batches(
        self,
        behind: dict[str, int],
        eots: tuple[str, ...],
        splits: tuple[str, ...],
        tokens: Callable[[str, int, int], NDArray[Any]],
    ) -> Iterator[Batch]:
        names = [(eot, split, tokens_name(split, eot)) for eot in eots for split in splits]
        at = {name: behind.get(name, 0) for name in ("rows", "open", *(name for _, _, name in names))}
        for rows, is_open in self._rows(at["rows"], at["open"]):
            streams = {eot: Stream(marked(rows, eot), {}) for eot in eots}
            for eot, split, name in names:
                mine = rows.val if split == "val" else ~rows.val
                start, at[name] = at[name], at[name] + int(streams[eot].rows.length[mine].sum())
                if start < at[name]:
                    streams[eot].tokens[split] = tokens(name, start, at[name])
            spans, was_open = self._settings.spans, at["open"]
            at["rows"], at["open"] = at["rows"] + len(rows), is_open
            after = partial(_note, dict(at))
            yield Batch([], [], streams, spans=spans, begins=not was_open, ends=not is_open, after=after)

    def _rows(self, row: int, is_open: int) -> Iterator[tuple[Rows, int]]:
        """The rows of each batch from a row on, and whether a document is open after them."""
        count = self._reader(ROWS).size // ROW.itemsize
        for first in range(row, count, _ROWS_AT_ONCE):
            table = unpacked(self._values(ROWS, ROW, first, min(first + _ROWS_AT_ONCE, count)))
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

    def _tokens(self, name: str, start: int, end: int) -> NDArray[Any]:
        return self._values(name, self._dtype.newbyteorder("<"), start, end).astype(self._dtype, copy=False)

    def _nothing(self, name: str, start: int, end: int) -> NDArray[Any]:
        return np.broadcast_to(np.zeros((), self._dtype), end - start)

    def _values(self, name: str, dtype: np.dtype[Any], start: int, end: int) -> NDArray[Any]:
        try:
            return self._reader(name).read(start * dtype.itemsize, end * dtype.itemsize).view(dtype)
        except DamageError as why:
            raise damaged_part(self._number, f"`{name}`: {why.message}", self._place.out) from None

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


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, of which the next is read in another thread while one is written."""
    with ThreadPoolExecutor(1, "shardmill-parts") as reader:
        coming = reader.submit(next, batches, None)
        while batch := coming.result():
            coming = reader.submit(next, batches, None)
            yield batch
