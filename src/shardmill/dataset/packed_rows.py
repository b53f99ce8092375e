"""The rows of a dataset that was packed by an index alone: `pack --index-only`.

An index is a folder:

    packing.json          the dataset it belongs to, the row size, the seed, and the files below with their checksums
    SPLIT.ends.npy        where each piece ends in the packed split, ascending; int64
    SPLIT.starts.npy      the token of the dataset at which it begins; -1: padding; int64

The tokens are those that `pack` would have written, so `batches` reads an index like a packed dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError, MismatchError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.dataset import Split
    from shardmill.storage import AnyPath

INDEX = "packing.json"
_AHEAD_TOKENS = 1 << 18
_STEP = 1 << 20  # pieces that are searched at once


def index_folder(dataset: AnyPath, row: int) -> Path:
    """Return where the index of a dataset is if nobody says otherwise. UsageError if it is not on this machine."""
    if not isinstance(dataset, Path):
        raise UsageError("the index of a dataset at a URL is in a folder of its own", hint="name that folder")
    return dataset / "packed" / str(row)


class PackedTokens:
    """The tokens of a packed split, by their place."""

    ahead_tokens = _AHEAD_TOKENS
    """Tokens of rows that a loader should ask for at once."""

    def __init__(self, split: Split, folder: Path, tokens: int) -> None:
        self._tokens, self._length = split.tokens, tokens
        self.dtype = split.tokens.dtype
        self._padding = split.dataset.eot_id
        self._ends, self._starts = (_column(folder / f"{split.name}.{name}.npy") for name in ("ends", "starts"))
        last = int(self._ends[-1]) if len(self._ends) else 0
        if len(self._ends) != len(self._starts) or last != tokens:
            raise DamageError(f"the index has {last:,} tokens, not {tokens:,}", place=str(folder))

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some tokens."""
        return self.read_rows(np.array([start]), max(0, stop - start)).reshape(-1)

    def pieces(self, start: int, size: int) -> NDArray[np.int64]:
        """Return the tokens of the dataset at which the pieces of a row begin."""
        first, last = np.searchsorted(self._ends, start, side="right"), np.searchsorted(self._ends, start + size) + 1
        found = self._starts[first:last]
        return np.asarray(found[found >= 0])

    def rows_with(self, start: int, end: int, size: int) -> NDArray[np.int64]:
        """Return the rows with pieces that begin between two tokens of the dataset; the index is read once."""
        found = [np.empty(0, np.int64)]
        for first in range(0, len(self._starts), _STEP):
            some = self._starts[first : first + _STEP]
            here = np.flatnonzero((some >= start) & (some < end)) + first
            found.append((self._ends[here] - 1) // size)
        return np.unique(np.concatenate(found))

    def expect_rows(self, starts: NDArray[np.int64], size: int) -> None:
        """Do nothing: the documents of rows are looked up when they are read."""

    def read_rows(self, starts: NDArray[np.int64], size: int) -> NDArray[Any]:
        """Return a copy of rows of `size` tokens that begin at these places."""
        out = np.full((len(starts), size), self._padding, self.dtype)
        if not size:
            return out
        first = np.searchsorted(self._ends, starts, side="right")
        counts = np.searchsorted(self._ends, starts + size) + 1 - first
        row = np.repeat(np.arange(len(starts)), counts)
        pieces = np.arange(len(row)) - (np.cumsum(counts) - counts - first)[row]
        begins = np.where(pieces > 0, self._ends[pieces - 1], 0)
        low, high = np.maximum(begins, starts[row]), np.minimum(self._ends[pieces], starts[row] + size)
        sources = self._starts[pieces]
        real = np.flatnonzero(sources >= 0)
        inside, places = (sources + low - begins)[real], (row * size + low - starts[row])[real]
        self._tokens.gather(inside, (high - low)[real], places, out.reshape(-1))
        return out


class PackedSplit:
    """A split in the rows of an index: what `batches` needs of a split."""

    def __init__(self, split: Split, row: int, folder: Path | None) -> None:
        """`folder`: of the index; None: the one inside the dataset. UsageError if there is none for rows of this size.

        MismatchError if the index belongs to another dataset.
        """
        data = split.dataset
        folder = index_folder(data.folder, row) if folder is None else folder
        index = read_index(folder)
        if index is None:
            raise UsageError(
                "there is no index of packed rows",
                place=str(folder),
                hint=f"`shardmill pack {data.folder} --block-size {row} --index-only` makes it",
            )
        if index["from"] != data.manifest["fingerprint"] or index["format"] != data.format:
            raise MismatchError("the index of packed rows belongs to another dataset", place=str(folder))
        if index["block_size"] != row:
            raise UsageError(
                f"the rows of the index have {index['block_size']:,} tokens, not {row:,}", place=str(folder),
                hint="`block_size` is the size of its rows",
            )  # fmt: skip
        self.name = split.name
        self.eot, self.eot_id = data.eot, data.eot_id
        self.tokens = PackedTokens(split, folder, index["splits"][split.name]["rows"] * row)
        self.manifest = {"fingerprint": hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()}

    @property
    def dataset(self) -> PackedSplit:
        """What `batches` asks a dataset for: its fingerprint and end-of-text token."""
        return self

    def __len__(self) -> int:
        return len(self.tokens)


def read_index(folder: Path) -> dict[str, Any] | None:
    """Return the description of an index; None if there is none. DamageError if it cannot be read."""
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamageError("the index of packed rows cannot be read", place=str(folder / INDEX)) from error
    return index


def index_path(pack: Any) -> Path | None:
    """Parse the loader's `pack`: True, or the folder of an index."""
    if pack is True:
        return None
    if isinstance(pack, (str, os.PathLike)):
        return Path(pack)
    raise UsageError("`pack` is True, or the folder of an index", hint="`shardmill pack --index-only` makes one")


def _column(path: Path) -> NDArray[np.int64]:
    try:
        found: NDArray[np.int64] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DamageError("the index of packed rows cannot be read", place=str(path)) from error
    if found.dtype != np.dtype("<i8") or found.ndim != 1:
        raise DamageError("this is no column of an index", place=str(path))
    return found
