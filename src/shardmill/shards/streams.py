"""Token streams cut into files: what nanoGPT, build-nanogpt and llm.c read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.shards import SPLITS
from shardmill.shards.format import Format, Order
from shardmill.shards.output import FileOutput
from shardmill.storage import PARTIAL, PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COPY = 1 << 22
_STEP = 524_288 + 1  # tokens of one step of GPT-2's training, over all processes, and one more


class StreamFormat(Format):
    """A format made of files that hold nothing but a head and tokens."""

    file_name: str
    """With `{name}`, `{split}` and `{index}`."""
    train_from: int = 0
    """The index of the first train shard."""

    def head(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        """What stands before the tokens; as long for any number of them."""
        return b""

    def check(self, most: int, dtype: np.dtype[Any]) -> None:
        """UsageError when the readers cannot take files of so many tokens."""

    def output(self, order: Order) -> StreamOutput:
        return StreamOutput(self, order)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        shards = -(-tokens // shard_tokens) + 1  # and one of val
        return tokens * width + shards * len(self.head(1, np.dtype(f"<u{width}")))


class StreamOutput(FileOutput):
    """The files of one such format, for all splits. One thread appends and takes snapshots; another may settle them.

    `tail` says what becomes of a last shard that is shorter than the others: `merge` appends it to the one before,
    which therefore waits for its name until the next one is full; `drop` leaves it out. A split's only shard stays.
    """

    def __init__(self, kind: StreamFormat, order: Order) -> None:
        """UsageError when the format's readers cannot take such files."""
        super().__init__(kind, order)
        self._kind: StreamFormat = kind
        self._shard_tokens = self.file_tokens = order.shard_tokens if kind.sharded else 0
        self._tail = order.tail if kind.sharded else "keep"
        if kind.sharded:
            kind.check(2 * order.shard_tokens - 1 if order.tail == "merge" else order.shard_tokens, order.dtype)
        self._head = len(kind.head(1, order.dtype))
        self._open: dict[str, PartialFile] = {}
        self._waiting: dict[str, PartialFile] = {}
        self._index = dict.fromkeys(SPLITS, 0)
        self._tokens = dict.fromkeys(SPLITS, 0)
        self._dropped = dict.fromkeys(SPLITS, 0)
        self._full: list[tuple[str, PartialFile, int]] = []
        self._in_hand: list[PartialFile] = []
        self._left: list[PartialFile] = []

    def owns(self) -> re.Pattern[str]:
        fields = {"{name}": re.escape(self.name), "{split}": "|".join(SPLITS), "{index}": r"\d{6,}"}
        parts = re.split(r"({\w+})", self._kind.file_name)
        return re.compile("".join(f"(?:{fields[part]})" if part in fields else re.escape(part) for part in parts))

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        keep = {written.name for written in complete}
        for split, (index, tokens, waits, dropped) in position.items():
            self._index[split], self._tokens[split], self._dropped[split] = index, tokens, dropped
            if waits:
                self._waiting[split] = self._reopen(split, index - 1, self._shard_tokens, keep)
            if tokens:
                self._open[split] = self._reopen(split, index, tokens, keep)
        self.remove_strangers(keep)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Put tokens at the end of a split, over as many shards as it takes; where documents end is of no interest."""
        if tokens.dtype != self.dtype:
            tokens = tokens.astype(self.dtype)
        while len(tokens):
            room = self._shard_tokens - self._tokens[split] if self._shard_tokens else len(tokens)
            file = self._open.get(split) or self._begin(split)
            file.append(tokens[:room])
            self._tokens[split] += min(room, len(tokens))
            tokens = tokens[room:]
            if self._shard_tokens and self._tokens[split] == self._shard_tokens:
                self._end(split)

    def position(self) -> dict[str, list[int]]:
        """Where each split stands: the index of its open file, the tokens in it, whether the one before it waits for
        its name, and the tokens that were dropped."""
        return {
            split: [self._index[split], self._tokens[split], int(split in self._waiting), self._dropped[split]]
            for split in SPLITS
        }

    @property
    def full(self) -> int:
        return len(self._full)

    @property
    def dropped(self) -> dict[str, int]:
        return {split: count for split, count in self._dropped.items() if count}

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        full, self._full = self._full, []
        self._in_hand = [file for _, file, _ in full]
        left, self._left = self._left, []
        lengths = [(file, file.length) for file in (*self._open.values(), *self._waiting.values())]

        def settle() -> list[tuple[str, Written]]:
            done = [
                (split, file.finish(tokens, self._kind.head(tokens, self.dtype) if self._head else b""))
                for split, file, tokens in full
                if file.written
            ]
            for file, length in lengths:
                file.settle(length)
            for file in left:  # closed here and not before: an earlier settling may still have been at work on it
                file.close()
            self._obsolete += left
            return done

        return settle

    def finish(self, wanted: tuple[str, ...]) -> None:
        for split in SPLITS:
            if split in wanted and split not in self._open and not self._index[split] and self.only is None:
                self._begin(split)
            short = split in self._open and self._index[split] > 0
            if short and self._tail == "drop":
                self._dropped[split] += self._tokens[split]
                self._leave(split)
            elif short and self._tail == "merge" and self._open[split].written:
                whole = self._waiting.pop(split)
                self._copy_tail(self._open[split], whole)
                self._full.append((split, whole, self._shard_tokens + self._tokens[split]))
                self._leave(split)
            elif split in self._open:
                self._end(split)
            if split in self._waiting:
                self._full.append((split, self._waiting.pop(split), self._shard_tokens))

    def close(self) -> None:
        files = (*self._open.values(), *self._waiting.values(), *[file for _, file, _ in self._full])
        for file in (*files, *self._in_hand, *self._left, *self._obsolete):
            file.close()

    def _path(self, split: str, index: int) -> Path:
        first = self.first + (self._kind.train_from if split == "train" else 0)
        return self.folder / self._kind.file_name.format(name=self.name, split=split, index=f"{first + index:06}")

    def _reopen(self, split: str, index: int, tokens: int, keep: set[str]) -> PartialFile:
        path = self._path(split, index)
        keep.add(path.name + PARTIAL)
        return self.open_file(split, index, path, self._head + tokens * self.dtype.itemsize)

    def _begin(self, split: str) -> PartialFile:
        index = self._index[split]
        file = self._open[split] = self.open_file(split, index, self._path(split, index))
        if self._head:
            # Right for every shard but the last, so that the hash need not be computed twice.
            file.append(self._kind.head(self._shard_tokens or 1, self.dtype))
        return file

    def _end(self, split: str) -> None:
        file = self._open.pop(split)
        if self._tail == "merge" and self._tokens[split] == self._shard_tokens:
            if split in self._waiting:
                self._full.append((split, self._waiting.pop(split), self._shard_tokens))
            self._waiting[split] = file
        else:
            self._full.append((split, file, self._tokens[split]))
        self._index[split] += 1
        self._tokens[split] = 0

    def _leave(self, split: str) -> None:
        """The open file is needed no more, once that is recorded."""
        self._left.append(self._open.pop(split))
        self._tokens[split] = 0

    def _copy_tail(self, tail: PartialFile, to: PartialFile) -> None:
        at = self._head
        while at < tail.length:
            block = tail.read(at, min(_COPY, tail.length - at))
            to.append(block)
            at += len(block)


def short_tails(splits: dict[str, dict[str, Any]], reader: str) -> list[str]:
    """Shards that hold less than one step of a common training run: the last of a split, or of a part that was kept."""
    said = []
    for split, described in splits.items():
        files = [file for file in described["files"] if not file.get("role")]
        short = min(reversed(files), key=lambda file: file["tokens"], default=None)
        if short is not None and short["tokens"] < _STEP:
            which = f"the last {split} shard" if short is files[-1] else f"a {split} shard"
            way = ""
            if len(files) > 1:
                shorter = short["tokens"] < files[0]["tokens"]
                way = ": see `--tail merge` and `--tail drop`" if shorter else ": see `--shard-tokens`"
            said.append(
                f"{which}, {short['name']}, has {short['tokens']:,} tokens; {reader} needs more than batch × block × "
                f"processes in each{way}"
            )
    return said
