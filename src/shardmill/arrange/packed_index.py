"""Writes the rows of a packed dataset as an index, without its tokens, in seconds."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import __version__, arguments
from shardmill.arrange.ordered import sorting_memory
from shardmill.arrange.packed import PackedPieces, packed_splits
from shardmill.arrange.sorting import FACTS, Sorter
from shardmill.dataset import CACHE_SIZE, INDEX, index_folder, open_dataset, read_index
from shardmill.errors import MismatchError
from shardmill.options import Options
from shardmill.run import Budget, settle_allocator
from shardmill.storage import write_whole, writing_to
from shardmill.write import json_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RUNS = ".sorted"
_STEP = 1 << 16  # pieces that are looked at together


def pack_index(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    block_size: int,
    seed: int = 0,
    memory: int | str | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    notify: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write an index of the rows that `pack` would write, to `out`, or to a folder inside the dataset.

    Return its description. `batches(…, pack=True)`, or `pack=out`, reads the rows. MismatchError if another index is
    there. The same call again changes nothing.
    """
    row, data = arguments.number("block_size", block_size, 2), open_dataset(source, cache=cache, cache_size=cache_size)
    options = Options.of({"seed": seed, "memory": memory, "overwrite": overwrite})
    folder = index_folder(data.folder, row) if out is None else Path(arguments.path("out", out))
    splits = packed_splits(data, row, options.seed, notify)
    index: dict[str, Any] = {
        "shardmill": __version__,
        "from": data.manifest["fingerprint"],
        "format": data.format,
        "block_size": row,
        "seed": options.seed,
        "splits": {split: pieces.described() for split, pieces in splits.items()},
    }
    there = read_index(folder)
    if there is not None and not overwrite:
        if any(there.get(key) != index[key] for key in ("from", "format", "block_size", "seed")):
            raise MismatchError(
                "there is an index of another dataset, row size or seed", place=str(folder),
                hint="choose another `--out`, or start anew with `--overwrite`",
            )  # fmt: skip
        return there
    settle_allocator()
    room = sorting_memory(Budget(options.memory_bytes, 1), 64 * (row + 1), "pack")
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)
    index["files"] = {}
    for split, pieces in splits.items():
        sorter = Sorter(PieceEntries(pieces), folder / _RUNS / split, room)
        sorter.make_runs()
        rows = sorter.count + pieces.plan.padded_rows
        for name, column in ((f"{split}.ends.npy", _ends(sorter)), (f"{split}.starts.npy", _starts(sorter))):
            index["files"][name] = _write_column(folder / name, rows, column)
    shutil.rmtree(folder / _RUNS, ignore_errors=True)
    write_whole(folder / INDEX, json_line(index))
    return index


class PieceEntries:
    """The pieces of a split without their tokens: `record` is the size of each, and `bytes` where it begins."""

    def __init__(self, pieces: PackedPieces) -> None:
        self._pieces, self.dtype = pieces, np.dtype(np.uint16)
        self._at = (0, 0)
        """A piece, and the token at which it begins."""

    def __len__(self) -> int:
        return len(self._pieces)

    def facts(self, first: int, last: int) -> NDArray[Any]:
        sizes = self._pieces.facts(first, last)["length"]
        ends = self._token(first) + np.cumsum(sizes)
        self._at = (last, int(ends[-1])) if len(ends) else self._at
        found = np.zeros(len(sizes), FACTS)
        found["record"], found["bytes"] = sizes, ends - sizes
        return found

    def _token(self, piece: int) -> int:
        """Where a piece begins; the sorter asks for one after the other."""
        if self._at[0] != piece:
            self._at = (0, 0)
            while self._at[0] < piece:
                self.facts(self._at[0], min(piece, self._at[0] + _STEP))
        return self._at[1]

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        sized = np.zeros(len(facts), FACTS)
        sized["length"] = facts["record"]
        keys = self._pieces.keys(first, sized)
        facts["padding"] = sized["padding"]
        return keys

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """There are no tokens."""


def _write_column(path: Path, rows: int, blocks: Iterator[NDArray[np.int64]]) -> dict[str, Any]:
    """Write a NumPy file of so many numbers; return its size and checksum."""
    digest, size = hashlib.sha256(), 0

    def parts() -> Iterator[bytes]:
        nonlocal size
        header = io.BytesIO()
        shape = {"descr": "<i8", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(header, shape)  # type: ignore[no-untyped-call]
        for part in chain([header.getvalue()], (block.astype("<i8").tobytes() for block in blocks)):
            digest.update(part)
            size += len(part)
            yield part

    write_whole(path, parts())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _ends(sorter: Sorter) -> Iterator[NDArray[np.int64]]:
    """Where pieces end in the packed split, in their order; padding is a piece of its own."""
    before = 0
    for block in sorter.blocks():
        padding = block.facts["padding"]
        ends = before + np.cumsum(block.facts["record"] + padding)
        before, padded = int(ends[-1]), np.flatnonzero(padding)
        yield np.insert(ends - padding, padded + 1, ends[padded])


def _starts(sorter: Sorter) -> Iterator[NDArray[np.int64]]:
    """Where pieces begin in the dataset, in the same order; -1: padding."""
    for block in sorter.blocks():
        yield np.insert(block.facts["bytes"], np.flatnonzero(block.facts["padding"]) + 1, -1)
