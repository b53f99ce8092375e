"""Token streams cut into files: what nanoGPT, build-nanogpt and llm.c read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.output_formats import SPLITS
from shardmill.shards.borders import ShardLimit, take
from shardmill.shards.format import Format, OutputSettings
from shardmill.shards.output import FileOutput, Shard
from shardmill.storage import Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_ENDS = np.empty(0, np.int64)
_STEP = 524_288 + 1  # tokens of one step of GPT-2's training, over all processes, and one more


class StreamOutput(FileOutput):
    """The files of a stream format.

    With `tail="drop"` a last shard that is shorter than the others is left out. A split's only shard stays.
    """

    _kind: StreamFormat

    def __init__(self, kind: Format, settings: OutputSettings) -> None:
        super().__init__(kind, settings)
        self.limit = ShardLimit(self.file_tokens)
        self._tail = settings.tail if kind.sharded else "keep"
        self._header_size = len(self._kind.header(1, settings.dtype))
        self._dropped = dict.fromkeys(SPLITS, 0)

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        for split, (index, tokens, dropped) in position.items():
            self._index[split], self._dropped[split] = index, dropped
            if tokens:
                self._open[split] = self._shard(split, index, tokens)
        self._remove_others(complete)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Append tokens to a split, over as many shards as needed. Where documents end does not matter."""
        if tokens.dtype != self.dtype:
            tokens = tokens.astype(self.dtype)
        while len(tokens):
            shard = self._open.get(split) or self._begin(split)
            taken = take(self.limit, shard.token_count, 0, len(tokens), _NO_ENDS)
            shard.tokens.append(tokens[: taken.tokens])
            shard.token_count += taken.tokens
            tokens = tokens[taken.tokens :]
            if taken.full:
                self._end(split)

    def position(self) -> dict[str, list[int]]:
        """For each split: the index of its open file, the tokens in it, and the tokens that were dropped."""
        tokens = {split: shard.token_count for split, shard in self._open.items()}
        return {split: [self._index[split], tokens.get(split, 0), self._dropped[split]] for split in SPLITS}

    @property
    def dropped(self) -> dict[str, int]:
        return {split: count for split, count in self._dropped.items() if count}

    def complete(self, shard: Shard) -> list[Written]:
        header = self._kind.header(shard.token_count, self.dtype) if self._header_size else b""
        return [shard.tokens.finish(shard.token_count, header)]

    def finish(self, wanted: tuple[str, ...]) -> None:
        for split in SPLITS:
            first = not self._index[split]
            if split in wanted and split not in self._open and first and not self.shared:
                self._begin(split)
            shard = self._open.get(split)
            if shard and not first and self._tail == "drop":
                self._dropped[split] += shard.token_count
                self._unneeded.append(self._open.pop(split))
            elif shard:
                self._end(split)

    def _shard(self, split: str, index: int, tokens: int = 0) -> Shard:
        """Open a shard that has `tokens` tokens already."""
        shard = self.open_shard(split, index, self._header_size + tokens * self.dtype.itemsize if tokens else 0)
        shard.token_count = tokens
        return shard

    def _begin(self, split: str) -> Shard:
        shard = self._open[split] = self._shard(split, self._index[split])
        if self._header_size:
            # Right for every shard but the last, so that the hash need not be computed twice.
            shard.tokens.append(self._kind.header(self.file_tokens or 1, self.dtype))
        return shard

    def _end(self, split: str) -> None:
        shard = self._open.pop(split)
        self._index[split] += 1
        self.end_shard(shard)


class StreamFormat(Format):
    """A format whose files hold a header and tokens, and nothing else."""

    writer = StreamOutput

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        """Return the header of a file with `tokens` tokens; its size is always the same."""
        return b""

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        shards = -(-tokens // shard_tokens) + 1  # and one of val
        return tokens * width + shards * len(self.header(1, np.dtype(f"<u{width}")))


def short_tails(splits: dict[str, dict[str, Any]], reader: str) -> list[str]:
    """Warn about shards with less than one step of a common training run: the last of a split, or of a part."""
    warnings = []
    for split, described in splits.items():
        files = [file for file in described["files"] if not file.get("role")]
        short = min(reversed(files), key=lambda file: file["tokens"], default=None)
        if short is not None and short["tokens"] < _STEP:
            which = f"the last {split} shard" if short is files[-1] else f"a {split} shard"
            hint = ""
            if len(files) > 1:
                shorter = short["tokens"] < files[0]["tokens"]
                hint = ": see `--tail drop`" if shorter else ": see `--shard-tokens`"
            warnings.append(
                f"{which}, {short['name']}, has {short['tokens']:,} tokens; {reader} needs more than batch × block × "
                f"processes in each{hint}"
            )
    return warnings
