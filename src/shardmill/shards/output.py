"""What the writer expects of an output, and the base of all outputs that write shards into a folder."""

# ruff: noqa: B027 - an output leaves out the methods that it has no use for

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.output_formats import SPLITS
from shardmill.shards.documents_table import TABLES
from shardmill.storage import PARTIAL, PartialFile, Written, writing_to

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from shardmill.shards.format import Format, OutputSettings


DATASET_FOLDERS = ("", *SPLITS, TABLES)
"""The folders in which a dataset has files."""
_OPEN = 8  # full shards; more of them are closed until they get their names


class GrowingFiles(ABC):  # noqa: B024 - nobody has to define all methods
    """Files that a run appends to, and syncs at its checkpoints.

    One thread appends and asks for positions. Another runs the functions that `prepare_sync` returns, at the same time.
    """

    @property
    def full(self) -> int:
        """How many files wait for their names."""
        return 0

    def matching_files(self, names: Iterable[str] | None = None) -> list[str]:
        """Return those of `names`, or of the files in the folder, that may be among these files."""
        return []

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Continue from a recorded position: truncate files to it and delete later ones. All zeros: start.

        The files that are `complete` need not be in the folder.
        """

    def position(self) -> dict[str, list[int]]:
        """Return the position in each split, as numbers for `restore`."""
        return {}

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        """Return a function that syncs what was written so far, and returns the completed files with their splits."""
        return list

    def recorded(self) -> None:
        """Remove what only an earlier position needed.

        Called by the syncing thread, after the journal's line for the synced position is on disk.
        """

    def close(self) -> None:
        """Close all files as they are."""


class Output(GrowingFiles):
    """All files of one format, for all splits. The first number of a position is the index of the open file."""

    format: str
    eot: str
    """Position of the end-of-text token: after, before or none."""
    dtype: np.dtype[Any]
    file_tokens: int = 0
    """Tokens after which a file ends; 0: there is one file per split."""

    shared: bool = False
    """Other processes write files of the same splits, so files with its names are not foreign, and what belongs to a
    whole split is not written: an index, or an empty file if the split has no tokens."""

    @abstractmethod
    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Append tokens to a split. `ends`: where documents end, counted from the start of `tokens`."""

    @abstractmethod
    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file. Each split in `wanted` gets a file even if it has no tokens. `prepare_sync` follows."""

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens at the end of each split that `--tail drop` left out of the files."""
        return {}

    def end_document(self) -> None:
        """End the document that is open in any split."""

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        """Return warnings about what the format's readers cannot handle; `splits` as in the manifest."""
        return []


@dataclass
class Shard:
    """A file of tokens that is being written. In some formats a second file holds the lengths of its documents."""

    split: str
    stem: str
    """The names of its files without their endings."""
    files: list[PartialFile]
    token_count: int = 0
    document_count: int = 0
    """Documents that have ended in it."""
    unfinished: int = 0
    """Tokens of the document that has not ended yet."""

    @property
    def tokens(self) -> PartialFile:
        return self.files[0]

    @property
    def lengths(self) -> PartialFile:
        return self.files[1]


class FileOutput(Output):
    """An output that writes shards into a folder."""

    def __init__(self, kind: Format, settings: OutputSettings) -> None:
        self._kind, self._settings, self.folder, self._stem = kind, settings, settings.folder, kind.stem
        self.dtype = settings.dtype.newbyteorder("<")
        self.format, self.eot = kind.name, settings.eot or kind.eot
        self.file_tokens = settings.shard_tokens if kind.sharded else 0
        self._index = dict.fromkeys(SPLITS, 0)
        self._open: dict[str, Shard] = {}
        self._full: list[Shard] = []
        self._syncing: list[Shard] = []
        self._growing_at_sync: list[Shard] = []
        """Shards that the syncing thread may be reading, because they were growing when `prepare_sync` was called."""
        self._unneeded: list[Shard] = []
        """Shards that are not needed any more."""
        self._ended_splits: list[str] = []
        self._obsolete: list[PartialFile] = []
        """Closed, and not needed once the present position is recorded. Until then a crash would continue from them."""

    @abstractmethod
    def complete(self, shard: Shard) -> list[Written]:
        """Turn a full shard into the files that the readers want; what is not one of them goes to `discard`."""

    def complete_split(self, split: str) -> list[Written]:
        """Write what comes after the last file of a split."""
        return []

    def discard(self, file: PartialFile) -> None:
        """Delete a file as soon as the present position is recorded. Called by the syncing thread."""
        file.close()
        self._obsolete.append(file)

    def create(self, name: str, keep: int = 0) -> PartialFile:
        """Create a file, or reopen it with its first `keep` bytes; its name may begin with the folder of a split."""
        path = self.folder / name
        if path.parent != self.folder:
            with writing_to(self.folder):
                path.parent.mkdir(exist_ok=True)
        return PartialFile(path, keep, name=name)

    def open_shard(self, split: str, index: int, *keep: int) -> Shard:
        """Create the files of a shard, or reopen each with its first bytes."""
        number = index + self._settings.first + (self._kind.train_from if split == "train" else 0)
        stem = self._stem.format(name=self._settings.name, split=split, index=number)
        names = (stem + ending for ending in self._kind.endings)
        files = [self.create(name, size) for name, size in zip(names, keep, strict=False)]
        return Shard(split, stem, files)

    @property
    def full(self) -> int:
        return len(self._full)

    def matching_files(self, names: Iterable[str] | None = None) -> list[str]:
        if self.shared:
            return []
        owned = self._kind.file_names(self._settings.name)
        names = names_in_folder(self.folder) if names is None else names
        return sorted(name for name in names if owned.fullmatch(name.removesuffix(PARTIAL)))

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        full, self._full = self._full, []
        self._syncing = full
        unneeded, self._unneeded = self._unneeded, []
        ended, self._ended_splits = self._ended_splits, []
        self._growing_at_sync = self._growing()
        lengths = [(file, file.length) for shard in self._growing_at_sync for file in shard.files]

        def sync() -> list[tuple[str, Written]]:
            done = [(shard.split, written) for shard in full for written in self.complete(shard)]
            if not self.shared:
                done += [(split, written) for split in ended for written in self.complete_split(split)]
            for file, length in lengths:
                file.sync(length)
            for file in (file for shard in unneeded for file in shard.files):
                self.discard(file)  # not earlier: an earlier function of this kind may have been using it
            return done

        return sync

    def end_shard(self, shard: Shard) -> None:
        """Nothing will be appended to a shard: it waits for its name."""
        self._full.append(shard)
        # One batch may fill thousands of tiny shards, and a process may have only some hundred files open.
        if len(self._full) > _OPEN and all(shard is not growing for growing in self._growing_at_sync):
            for file in shard.files:
                file.close()

    def recorded(self) -> None:
        while self._obsolete:
            self._obsolete.pop().remove()

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        return [] if self.shared else self._kind.warnings(splits, self.dtype, self.eot)

    def close(self) -> None:
        for shard in (*self._growing(), *self._full, *self._syncing, *self._unneeded):
            for file in shard.files:
                file.close()

    def _growing(self) -> list[Shard]:
        """The shards that may still be appended to."""
        return list(self._open.values())

    def _remove_others(self, complete: Collection[Written]) -> None:
        """Delete files with this output's names that came after the position from which it continues."""
        growing = {file.name + PARTIAL for shard in self._growing() for file in shard.files}
        for name in set(self.matching_files()) - growing - {written.name for written in complete}:
            with writing_to(self.folder / name):
                os.unlink(self.folder / name)


def names_in_folder(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a dataset's folder, and in the folders of splits and tables in it."""
    for prefix in DATASET_FOLDERS:
        if (folder / prefix).is_dir():
            slash = "/" if prefix else ""
            yield from (prefix + slash + entry.name for entry in os.scandir(folder / prefix) if not entry.is_dir())
