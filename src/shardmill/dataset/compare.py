"""Read the sources again, and compare their tokens with the files of a dataset."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmill.dataset.dataset import Dataset, open_dataset, tokenizer_of
from shardmill.errors import DamageError
from shardmill.options import Options
from shardmill.run import EncodedText, Plan, open_outputs
from shardmill.shards import SPLITS
from shardmill.sources import find_sources
from shardmill.write import (
    BatchTokens,
    Destination,
    FoundInSource,
    FoundSources,
    Manifest,
    Stream,
    each_output,
    shares,
)

if TYPE_CHECKING:
    from shardmill.write import Batch


def compare_sources(out: Path, manifest: Manifest) -> None:
    """Raise DamageError when the sources, read and encoded again, give other tokens than the dataset holds."""
    # With `keep_parts` there are other files, and the same tokens.
    options = Options.of({name: value for name, value in manifest["options"].items() if name != "keep_parts"})
    sources = find_sources((source["name"] for source in manifest["sources"]), options.input_format)
    plan = Plan(sources, tokenizer_of(manifest), options, source_count=_planned(out, len(sources)))
    text = EncodedText(plan, open_outputs(plan, out))  # which say where EOT goes, and write nothing
    compared = [_Comparison(open_dataset(out, one["format"]), text.first) for one in each_output(manifest)]
    counted = dict.fromkeys(("documents", "empty", "rejected", "replaced"), 0)
    with text.batches(None) as batches:
        for batch in batches:
            if isinstance(batch.tokens, BatchTokens):
                for one in compared:
                    one.compare(batch.tokens.streams[one.eot])
            _count(batch, counted)
    for one in compared:
        one.finish()
    for key, count in counted.items():
        if count != (said := manifest[key]):  # type: ignore[literal-required]
            raise DamageError(f"the sources give {count:,} {key}, not {said:,}", place="manifest.json")


def _planned(out: Path, read: int) -> int:
    """The sources of the plan: with `--limit` the manifest has only those that were read."""
    plan = Destination(out).recorded_plan()
    return read if plan is None else sum(1 for _ in plan["sources"])


def _count(batch: Batch, counted: dict[str, int]) -> None:
    for found in batch.found:
        if isinstance(found, FoundSources):
            counted["documents"] += int(np.count_nonzero(found.lengths))
            counted["empty"] += int(np.count_nonzero(found.lengths == 0))
        elif isinstance(found, FoundInSource):
            counted["documents"] += found.documents
            counted["empty"] += found.empty
            counted["rejected"] += len(found.rejects)
            counted["replaced"] += found.replaced


class _Comparison:
    """Compares tokens, in order, with those of a dataset."""

    def __init__(self, dataset: Dataset, first: int) -> None:
        """`first`: tokens that val takes before train gets any."""
        self.eot, self._dataset, self._first = dataset.eot, dataset, first
        self._at = dict.fromkeys(SPLITS, 0)

    def compare(self, stream: Stream) -> None:
        """Raise DamageError if the next tokens are other ones."""
        for share in shares(stream, first=max(0, self._first - self._at["val"])):
            split, tokens, at = share.split, share.tokens, self._at[share.split]
            if not len(tokens):
                continue
            if split not in self._dataset:
                raise DamageError("the sources give tokens for a split that is not there", place=split)
            self._at[split] += len(tokens)
            there, left = self._dataset[split].tokens, max(0, len(self._dataset[split]) - at)
            if len(tokens) > left:
                if not self._dataset[split].described.get("dropped"):
                    raise DamageError("the sources give more tokens than there are", place=split)
                tokens = tokens[:left]
            wrong = np.flatnonzero(there.read(at, at + len(tokens)) != tokens)
            if len(wrong):
                file = bisect_right(there.starts, at + int(wrong[0])) - 1
                place = at + int(wrong[0]) - there.starts[file]
                raise DamageError(f"the sources give another token at {place:,}", place=there.files[file].path.name)

    def finish(self) -> None:
        """Raise DamageError if the dataset has more tokens."""
        for split in self._dataset:
            if self._at[split] < len(self._dataset[split]):
                raise DamageError("the sources give fewer tokens than there are", place=split)
