"""What a run expects of the files that it appends to."""

# ruff: noqa: B027 - an output leaves out the methods that it has no use for

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardmill.output_formats import SPLITS
from shardmill.shards.documents_table import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from shardmill.storage import Written

DATASET_FOLDERS = ("", *SPLITS, TABLES)
"""The folders in which a dataset has files."""


class Output(ABC):
    """All files of one format, for all splits. `ShardWriter` writes them; `verify --source` compares instead.

    One thread appends and asks for positions. Another runs the functions that `prepare_sync` returns, at the same time.
    """

    format: str
    eot: str
    """Position of the end-of-text token: after, before or none."""
    dtype: np.dtype[Any]
    file_tokens: int = 0
    """Tokens after which a file ends; 0: there is one file per split."""
    drops_tail: bool = False
    """A last shard that is shorter than the others is left out."""
    shared: bool = False
    """Other processes write files of the same splits, so files with its names are not foreign, and what belongs to a
    whole split is not written: an index, or an empty file if the split has no tokens."""

    @abstractmethod
    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Append tokens to a split. `ends`: where documents end, counted from the start of `tokens`."""

    def end_document(self) -> None:
        """End the document that is open in any split."""

    @abstractmethod
    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file. Each split in `wanted` gets a file even if it has no tokens. `prepare_sync` follows."""

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens at the end of each split that `--tail drop` left out of the files."""
        return {}

    @property
    def full(self) -> int:
        """How many files wait for their names."""
        return 0

    def position(self) -> dict[str, list[int]]:
        """Return the position in each split, as numbers for `restore`. The first is the number of its open file."""
        return {}

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Continue from a recorded position: truncate files to it and delete later ones. All zeros: start.

        The files that are `complete` need not be in the folder.
        """

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        """Return a function that syncs what was written so far, and returns the completed files with their splits."""
        return list

    def recorded(self) -> None:
        """Remove what only an earlier position needed.

        Called by the syncing thread, after the journal's line for the synced position is on disk.
        """

    def matching_files(self, names: Iterable[str] | None = None) -> list[str]:
        """Return those of `names`, or of the files in the folder, that may be among these files."""
        return []

    def warnings(self, splits: Mapping[str, Any]) -> list[str]:
        """Return warnings about what the format's readers cannot handle; `splits` as in the manifest."""
        return []

    def close(self) -> None:
        """Close all files as they are."""


def names_in_folder(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a dataset's folder, and in the folders of splits and tables in it."""
    for prefix in DATASET_FOLDERS:
        if (folder / prefix).is_dir():
            slash = "/" if prefix else ""
            yield from (prefix + slash + entry.name for entry in os.scandir(folder / prefix) if not entry.is_dir())
