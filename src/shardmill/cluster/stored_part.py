"""A part that is published, read again: its rows in batches that the writer takes, each stretch checked before use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.cluster.place import Place, damaged_part, files_of, part_name
from shardmill.errors import DamageError
from shardmill.run import REJECTS, ROW, ROWS, TOKENS, Batch, CheckedReader, Rows, Stream, eot_places, unpacked, with_eot
from shardmill.tokens import Encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run import Writer

_ROWS_AT_ONCE, _PLACES_AT_ONCE = 1 << 16, 1 << 22  # rows, and tokens with the places for EOT, that are moved at once
_SPARSE = 8  # a split with less than this share of the tokens is read row by row
_BLOCK = 1 << 20


@dataclass(frozen=True)
class RowSettings:
    """What has to be known of a plan to make its rows into final files."""

    dtype: str
    mark: int
    """The end-of-text token."""
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
        self._rejects = manifest.get("rejects")
        self._dtype = np.dtype(settings.dtype)

    def batches(self, behind: dict[str, int], eots: tuple[str, ...], split: str | None = None) -> Iterator[Batch]:
        """From where a merge stands in this part on. A document that is cut across batches is alone in them.

        `split`: the tokens of that one only.
        """
        return _ahead(self._batches(behind, eots, lambda rows, eot, at: self._stream(rows, eot, at, split)))

    def measured(self, behind: dict[str, int], eots: tuple[str, ...]) -> Iterator[Batch]:
        """The same without the tokens: as many of them as there are, and all the same."""
        return _ahead(self._batches(behind, eots, lambda rows, eot, at: _nothing(_marked(rows, eot), self._dtype)))

    def rejects(self) -> Iterator[list[bytes]]:
        """The lines of its rejects, some at a time; OutputError at the end if they are not what was written."""
        if self._rejects is None:
            return
        found, rest = hashlib.sha256(), b""
        for start in range(0, self._rejects["bytes"], _BLOCK):
            block = self._read(REJECTS, "", start, min(start + _BLOCK, self._rejects["bytes"])).tobytes()
            found.update(block)
            *lines, rest = (rest + block).split(b"\n")
            yield [line + b"\n" for line in lines]
        if rest or found.hexdigest() != self._rejects["sha256"]:
            raise damaged_part(self._number, f"`{REJECTS}` is not what was written", self._place.out)

    def _batches(
        self, behind: dict[str, int], eots: tuple[str, ...], make: Callable[[Rows, str, int], Stream]
    ) -> Iterator[Batch]:
        row, at, is_open = (behind.get(name, 0) for name in ("rows", "places", "open"))
        reader, spans = self._checked(ROWS), self._settings.spans
        count = reader.size // ROW.itemsize
        table = np.empty(0, ROW)
        while row < count:
            more = range(row + len(table), min(row + _ROWS_AT_ONCE, count))
            if more:
                table = np.concatenate([table, self._bytes(reader, ROWS, ROW, more.start, more.stop)])
            rows = unpacked(table)
            stops = np.cumsum(rows.length + 1)
            taken = max(1, int(np.searchsorted(stops, _PLACES_AT_ONCE, side="right")))
            closed = np.flatnonzero(rows.closes[:taken])
            taken = int(closed[0 if is_open else -1]) + 1 if len(closed) else taken
            rows, table = rows[:taken], table[taken:]
            streams = {eot: make(rows, eot, at) for eot in eots}
            row, at = row + taken, at + int(stops[taken - 1])
            filled = np.flatnonzero(rows.length)
            was_open, is_open = is_open, int(not rows.closes[filled[-1]]) if len(filled) else is_open
            after = partial(_note, {"rows": row, "places": at, "open": is_open})
            yield Batch([], [], streams, spans=spans, begins=not was_open, ends=not is_open, after=after)

    def _stream(self, rows: Rows, eot: str, at: int, split: str | None) -> Stream:
        """The rows with their tokens, which begin at a place; of one split only, if that is asked for."""
        mark, wanted = self._settings.mark, rows.val if split == "val" else ~rows.val
        stops = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.length + 1)])
        if split is None or self._settings.first or _SPARSE * stops[1:][wanted].size > len(rows):
            stream = with_eot(rows, Encoded(self._tokens(at, at + int(stops[-1])), stops), eot, mark)
            return stream if split is None or self._settings.first else _only(stream, split)
        borders = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2).tolist()
        found = [self._tokens(at + int(stops[begin]), at + int(stops[end])) for begin, end in borders]
        mine = rows[wanted]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(mine.length + 1)])
        tokens = np.concatenate([np.empty(0, self._dtype), *found])
        return Stream(_marked(rows, eot), with_eot(mine, Encoded(tokens, offsets), eot, mark).tokens)

    def _tokens(self, start: int, end: int) -> NDArray[Any]:
        return self._bytes(self._checked(TOKENS), TOKENS, self._dtype.newbyteorder("<"), start, end).astype(
            self._dtype, copy=False
        )

    def _checked(self, name: str) -> CheckedReader:
        return CheckedReader(partial(self._read, name), self._sizes[name])

    def _bytes(self, reader: CheckedReader, name: str, dtype: np.dtype[Any], start: int, end: int) -> NDArray[Any]:
        try:
            return reader.read(start * dtype.itemsize, end * dtype.itemsize).view(dtype)
        except DamageError as why:
            raise damaged_part(self._number, f"`{name}`: {why.message}", self._place.out) from None

    def _read(self, name: str, more: str, start: int, end: int) -> NDArray[np.uint8]:
        try:
            return self._place.section(f"{self._folder}/{name}{more}", start, end)
        except FileNotFoundError:
            raise damaged_part(self._number, f"`{name}{more}` is not there", self._place.out) from None


def _note(behind: dict[str, int], writer: Writer) -> None:
    writer.state.merge |= behind


def _marked(rows: Rows, eot: str) -> Rows:
    return replace(rows, length=rows.length + eot_places(rows, eot))


def _only(stream: Stream, split: str) -> Stream:
    return stream._replace(tokens={name: tokens for name, tokens in stream.tokens.items() if name == split})


def _nothing(rows: Rows, dtype: np.dtype[Any]) -> Stream:
    """Rows whose tokens are not known, only how many there are."""
    sizes = {"train": int(rows.length[~rows.val].sum()), "val": int(rows.length[rows.val].sum())}
    tokens = {name: np.broadcast_to(np.zeros((), dtype), size) for name, size in sizes.items() if size}
    return Stream(rows, tokens)


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, of which the next is read in another thread while one is written."""
    with ThreadPoolExecutor(1, "shardmill-parts") as reader:
        coming = reader.submit(next, batches, None)
        while batch := coming.result():
            coming = reader.submit(next, batches, None)
            yield batch
