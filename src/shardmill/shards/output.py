"""What the writer asks of an output: all files of one format, for all splits."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.shards import SPLITS
from shardmill.storage import PARTIAL, PartialFile, UnwrittenFile, Written, writing_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shardmill.shards.format import Format, Order


class Output:
    """One thread appends and takes positions; another runs what `settling` gives, while the first goes on."""

    format: str
    eot: str
    """Where the end-of-text token stands: after, before or none."""
    dtype: np.dtype[Any]
    file_tokens: int = 0
    """Tokens after which a file ends; 0: there is one file a split."""

    only: dict[str, range] | None = None
    """Of each split the files to write, by their index; others are counted and not written. None: all are written, with
    what a split has besides: an index, or an empty file if it has no tokens."""

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Put tokens at the end of a split. `ends`: where documents end, counted from the start of `tokens`."""
        raise NotImplementedError

    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file; each split in `wanted` has one even when it has no tokens. `settling` follows."""
        raise NotImplementedError

    @property
    def full(self) -> int:
        """Files that wait for their names."""
        return 0

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens at the end of each split that `--tail drop` left out of the files."""
        return {}

    def foreign(self, names: Iterable[str] | None = None) -> list[str]:
        """Which of these names, or of those in the folder, this output would use."""
        return []

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Go on from a recorded position: cut files back to it, remove what came after. All zeros: start.

        The files that are `complete` need not be in the folder.
        """

    def end_document(self) -> None:
        """A document that is open in any split ends here."""

    def position(self) -> dict[str, list[int]]:
        """Where each split stands, as numbers that `restore` understands; the first is the index of the open file."""
        return {}

    def adopt(self, files: Collection[Written]) -> None:
        """These files of the output, which are complete, were written by others."""

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        """What brings the present position to the disk and gives the files that became whole, each with its split."""
        return list

    def recorded(self) -> None:
        """All that was settled is in the journal: what only an earlier position needs is removed.

        The thread that settles calls it, after the journal's line is on disk.
        """

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        """What the format's readers will trip over, in sentences; `splits` as the manifest describes them."""
        return []

    def close(self) -> None:
        """Let go of all files as they are."""


class FileOutput(Output, ABC):
    """What all outputs have in common that write files into a folder."""

    def __init__(self, kind: Format, order: Order) -> None:
        self._kind, self.folder, self.name = kind, order.folder, order.name
        self.dtype = order.dtype.newbyteorder("<")
        self.format, self.eot = kind.name, order.eot or kind.eot
        self.first = order.first
        self._obsolete: list[PartialFile] = []
        """Closed, and needed no more when the present position is recorded: until then a crash goes on from them."""

    def open_file(self, split: str, index: int, path: Path, keep: int = 0, name: str | None = None) -> PartialFile:
        """A file of a split, new or with its first `keep` bytes."""
        mine = self.only is None or index in self.only.get(split, ())
        return (PartialFile if mine else UnwrittenFile)(path, keep, name=name, hash_now=self.only is not None)

    @abstractmethod
    def owns(self) -> re.Pattern[str]:
        """Matches every file name that this output can make."""

    def foreign(self, names: Iterable[str] | None = None) -> list[str]:
        if self.only is not None:  # what bears its names was written by others
            return []
        owned = self.owns()
        names = _names_under(self.folder) if names is None else names
        return sorted(name for name in names if owned.fullmatch(name.removesuffix(PARTIAL)))

    def recorded(self) -> None:
        while self._obsolete:
            self._obsolete.pop().remove()

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        return [] if self.only is not None else self._kind.warnings(splits, self.dtype, self.eot)

    def remove_strangers(self, keep: set[str]) -> None:
        """Delete what bears one of the output's names and came after the position that it goes on from."""
        for name in self.foreign():
            if name not in keep:
                with writing_to(self.folder / name):
                    os.unlink(self.folder / name)


def _names_under(folder: Path) -> Iterator[str]:
    """The files of a folder, and those in a folder for each split, named from the first on."""
    for prefix in ("", *(f"{split}/" for split in SPLITS)):
        if not prefix or (folder / prefix).is_dir():
            yield from (prefix + entry.name for entry in os.scandir(folder / prefix) if not entry.is_dir())
