"""Read the sources again, and compare their tokens with the files of a dataset instead of writing them."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.dataset.dataset import Dataset, open_dataset, tokenizer_of
from shardmill.errors import DamageError
from shardmill.options import Options
from shardmill.run import EncodedText, Plan
from shardmill.shards import SPLITS, Output
from shardmill.sources import find_sources
from shardmill.storage import writing_temporary_files
from shardmill.write import Destination, Manifest, Progress, Run, each_output

if TYPE_CHECKING:
    from numpy.typing import NDArray


def compare_sources(out: Path, manifest: Manifest) -> None:
    """Raise DamageError when the sources, read and encoded again, give other tokens than the dataset holds."""
    # With `keep_parts` there are other files, and the same tokens.
    options = Options.of({name: value for name, value in manifest["options"].items() if name != "keep_parts"})
    sources = find_sources((source["name"] for source in manifest["sources"]), options.input_format)
    tokenizer = tokenizer_of(manifest)
    outputs: list[Output] = [Comparison(open_dataset(out, one["format"])) for one in each_output(manifest)]
    with writing_temporary_files():
        temporary = tempfile.TemporaryDirectory(prefix="shardmill-")
    with temporary as folder:
        plan = Plan(sources, tokenizer, options, source_count=_planned(out, len(sources)))
        text = EncodedText(plan, outputs)
        made = Run(text, Destination(Path(folder)), outputs, Progress()).go()
    for key in ("documents", "empty", "rejected", "replaced"):
        if made.manifest[key] != manifest[key]:
            raise DamageError(
                f"the sources give {made.manifest[key]:,} {key}, not {manifest[key]:,}", place="manifest.json"
            )


def _planned(out: Path, read: int) -> int:
    """The sources of the plan: with `--limit` the manifest has only those that were read."""
    plan = Destination(out).recorded_plan()
    return read if plan is None else sum(1 for _ in plan["sources"])


class Comparison(Output):
    """An output that compares tokens with those of a dataset, and writes nothing."""

    def __init__(self, dataset: Dataset) -> None:
        self.format, self.eot, self.dtype = dataset.format, dataset.eot, dataset.dtype
        self._dataset = dataset
        self._at = dict.fromkeys(SPLITS, 0)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        at = self._at[split]
        if split not in self._dataset:
            raise DamageError("the sources give tokens for a split that is not there", place=split)
        there, left = self._dataset[split].tokens, len(self._dataset[split]) - at
        if len(tokens) > left:
            if not self._dataset[split].described.get("dropped"):
                raise DamageError("the sources give more tokens than there are", place=split)
            tokens = tokens[:left]
        wrong = np.flatnonzero(there.read(at, at + len(tokens)) != tokens)
        if len(wrong):
            file = bisect_right(there.starts, at + int(wrong[0])) - 1
            place = at + int(wrong[0]) - there.starts[file]
            raise DamageError(f"the sources give another token at {place:,}", place=there.files[file].path.name)
        self._at[split] = at + len(tokens)

    def finish(self, wanted: tuple[str, ...]) -> None:
        for split in self._dataset:
            if self._at[split] < len(self._dataset[split]):
                raise DamageError("the sources give fewer tokens than there are", place=split)
