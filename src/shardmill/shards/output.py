"""What the writer asks of an output: all files of one format, for all splits."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardmill.shards import SPLITS
from shardmill.storage import Written, writing_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Output(Protocol):
    """One thread appends and takes positions; another runs what `settling` gives, while the first goes on."""

    format: str
    eot: str
    """Where the end-of-text token stands: after, before or none."""
    dtype: np.dtype[Any]

    @property
    def file_tokens(self) -> int:
        """Tokens after which a file ends; 0: there is one file a split."""

    @property
    def full(self) -> int:
        """Files that wait for their names."""

    def foreign(self, names: Iterable[str] | None = None) -> list[str]:
        """Which of these names, or of those in the folder, this output would use."""

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Go on from a recorded position: cut files back to it, remove what came after. All zeros: start.

        The files that are `complete` need not be in the folder.
        """

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Put tokens at the end of a split. `ends`: where documents end, counted from the start of `tokens`."""

    def end_document(self) -> None:
        """A document that is open in any split ends here."""

    def position(self) -> dict[str, list[int]]:
        """Where each split stands, as numbers that `restore` understands."""

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        """What brings the present position to the disk and gives the files that became whole, each with its split."""

    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file; each split in `wanted` has one even when it has no tokens. `settling` follows."""

    def recorded(self) -> None:
        """All that was settled is in the journal: what only an earlier position needs is removed.

        The thread that settles calls it, after the journal's line is on disk.
        """

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens at the end of each split that `--tail drop` left out of the files."""

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        """What the format's readers will trip over, in sentences; `splits` as the manifest describes them."""

    def close(self) -> None:
        """Let go of all files as they are."""


def names_under(folder: Path) -> Iterator[str]:
    """The files of a folder, and those in a folder for each split, named from the first on."""
    for prefix in ("", *(f"{split}/" for split in SPLITS)):
        if not prefix or (folder / prefix).is_dir():
            yield from (prefix + entry.name for entry in os.scandir(folder / prefix) if not entry.is_dir())


def remove_strangers(output: Output, folder: Path, keep: set[str]) -> None:
    """Delete what bears one of the output's names and came after the position that it goes on from."""
    for name in output.foreign():
        if name not in keep:
            with writing_to(folder / name):
                os.unlink(folder / name)
