"""The sources read again, and their tokens compared with the files of a dataset instead of being written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.encoding import load_tokenizer
from shardmill.errors import DamageError
from shardmill.journal import Journal
from shardmill.options import Options
from shardmill.plan import Plan
from shardmill.progress import Progress
from shardmill.reading import find_sources
from shardmill.run import Run
from shardmill.writing import SPLITS, Output, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray


def compare_sources(out: Path, manifest: dict[str, Any], progress: Progress | None = None) -> None:
    """DamageError when the sources, read and encoded again, give other tokens than the dataset holds."""
    options = Options.of(manifest["options"])
    sources = find_sources([source["name"] for source in manifest["sources"]], options.input_format)
    tokenizer = load_tokenizer(options.tokenizer, pattern=options.pattern, specials=options.specials)
    outputs: list[Output] = [Comparison(out, described) for described in (manifest, *manifest.get("also", ()))]
    with tempfile.TemporaryDirectory(prefix="shardmill-") as folder:
        journal = Journal(Path(folder))
        try:
            made = Run(Plan(sources, tokenizer, options), Path(folder), outputs, progress or Progress()).go(journal)
        finally:
            journal.close()
    for key in ("documents", "empty", "rejected"):
        if made.manifest[key] != manifest[key]:
            raise DamageError(
                f"the sources give {made.manifest[key]:,} {key}, not {manifest[key]:,}", place="manifest.json"
            )


class Comparison:
    """Stands where an output would, and compares what comes with the files that are there."""

    full = 0

    def __init__(self, out: Path, described: dict[str, Any]) -> None:
        self.format, self.eot, self.dtype = described["format"], described["eot"], np.dtype(described["dtype"])
        self._out = out
        self._files = {name: [f for f in split["files"] if f["tokens"]] for name, split in described["splits"].items()}
        self._at = {split: [0, 0] for split in SPLITS}

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        tokens = tokens.astype(self.dtype, copy=False)
        at = self._at[split]
        while len(tokens):
            if at[0] >= len(self._files.get(split, ())):
                raise DamageError("the sources give more tokens than there are", place=split)
            entry = self._files[split][at[0]]
            head = entry["bytes"] - entry["tokens"] * self.dtype.itemsize
            count = min(len(tokens), entry["tokens"] - at[1])
            path = self._out / entry["name"]
            there = np.fromfile(path, self.dtype, count, offset=head + at[1] * self.dtype.itemsize)
            if not np.array_equal(there, tokens[:count]):
                wrong = int(np.argmax(there != tokens[:count])) if len(there) == count else len(there)
                raise DamageError(f"the sources give another token at {at[1] + wrong:,}", place=entry["name"])
            tokens = tokens[count:]
            at[1] += count
            if at[1] == entry["tokens"]:
                at[0], at[1] = at[0] + 1, 0

    def finish(self, wanted: tuple[str, ...]) -> None:
        for split, files in self._files.items():
            if self._at[split][0] < len(files):
                raise DamageError(
                    "the sources give fewer tokens than there are", place=files[self._at[split][0]]["name"]
                )

    def foreign(self) -> list[str]:
        return []

    def restore(self, position: dict[str, list[int]], complete: set[str]) -> None: ...

    def end_document(self) -> None: ...

    def position(self) -> dict[str, list[int]]:
        return {}

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        return list

    def recorded(self) -> None: ...

    @property
    def dropped(self) -> dict[str, int]:
        return {}

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        return []

    def close(self) -> None: ...
