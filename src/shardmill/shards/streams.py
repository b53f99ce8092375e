"""Token streams cut into files: what nanoGPT, build-nanogpt and llm.c read, each described by a small layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.shards.output import SPLITS, names_under, remove_strangers
from shardmill.storage.files import PARTIAL, PartialFile, Written

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TAILS = ("keep", "merge", "drop")
_COPY = 1 << 22

Warn = Callable[[dict[str, dict[str, Any]], "np.dtype[Any]", str], list[str]]


@dataclass(frozen=True)
class Layout:
    """A format made of files that hold nothing but a head and tokens."""

    format: str
    eot: str
    """Where its readers expect the end-of-text token."""
    file_name: str
    """With `{name}`, `{split}` and `{index}`."""
    sharded: bool = False
    train_from: int = 0
    """The index of the first train shard."""
    head: Callable[[int, np.dtype[Any]], bytes] = field(default=lambda tokens, dtype: b"")
    check: Callable[[int, np.dtype[Any]], None] = field(default=lambda most, dtype: None)
    """UsageError when the readers cannot take files of so many tokens."""
    warnings: Warn = field(default=lambda splits, dtype, eot: [])

    def owns(self, name: str) -> re.Pattern[str]:
        """Matches every file name that this layout can make."""
        fields = {"{name}": re.escape(name), "{split}": "|".join(SPLITS), "{index}": r"\d{6,}"}
        parts = re.split(r"({\w+})", self.file_name)
        return re.compile("".join(f"(?:{fields[part]})" if part in fields else re.escape(part) for part in parts))


class StreamOutput:
    """The files of one layout, for all splits. One thread appends and takes snapshots; another may settle them.

    `tail` says what becomes of a last shard that is shorter than the others: `merge` appends it to the one before,
    which therefore waits for its name until the next one is full; `drop` leaves it out. A split's only shard stays.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        name: str,
        dtype: np.dtype[Any],
        shard_tokens: int,
        eot: str | None = None,
        tail: str = "keep",
    ) -> None:
        """UsageError when the format's readers cannot take such files."""
        self.folder, self.layout, self.name, self.dtype = folder, layout, name, dtype.newbyteorder("<")
        self.format, self.eot = layout.format, eot or layout.eot
        self._shard_tokens = self.file_tokens = shard_tokens if layout.sharded else 0
        self._tail = tail if layout.sharded else "keep"
        if layout.sharded:
            layout.check(2 * shard_tokens - 1 if tail == "merge" else shard_tokens, dtype)
        self._head = len(layout.head(1, dtype))
        self._open: dict[str, PartialFile] = {}
        self._waiting: dict[str, PartialFile] = {}
        self._index = dict.fromkeys(SPLITS, 0)
        self._tokens = dict.fromkeys(SPLITS, 0)
        self._dropped = dict.fromkeys(SPLITS, 0)
        self._full: list[tuple[str, PartialFile, int]] = []
        self._in_hand: list[PartialFile] = []
        self._left: list[PartialFile] = []
        self._obsolete: list[PartialFile] = []

    def foreign(self, names: Iterable[str] | None = None) -> list[str]:
        """Which of these names, or of those in the folder, this output would use."""
        owned = self.layout.owns(self.name)
        names = names_under(self.folder) if names is None else names
        return sorted(name for name in names if owned.fullmatch(name.removesuffix(PARTIAL)))

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Go on from a recorded position: files are cut back to it, and what came after is removed."""
        keep = {written.name for written in complete}
        for split, (index, tokens, waits, dropped) in position.items():
            self._index[split], self._tokens[split], self._dropped[split] = index, tokens, dropped
            if waits:
                self._waiting[split] = self._reopen(split, index - 1, self._shard_tokens, keep)
            if tokens:
                self._open[split] = self._reopen(split, index, tokens, keep)
        remove_strangers(self, self.folder, keep)

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

    def end_document(self) -> None:
        """The document that is open in any split ends here; of no interest to a stream."""

    def position(self) -> dict[str, list[int]]:
        """Where each split stands: the index of its open file, the tokens in it, whether the one before it waits for
        its name, and the tokens that were dropped."""
        return {
            split: [self._index[split], self._tokens[split], int(split in self._waiting), self._dropped[split]]
            for split in SPLITS
        }

    @property
    def full(self) -> int:
        """Files that wait to be settled."""
        return len(self._full)

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens that `--tail drop` left out."""
        return {split: count for split, count in self._dropped.items() if count}

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        """What brings the present position to the disk; run it in another thread while this one appends.

        It gives the files that became whole, each with its split.
        """
        full, self._full = self._full, []
        self._in_hand = [file for _, file, _ in full]
        left, self._left = self._left, []
        lengths = [(file, file.length) for file in (*self._open.values(), *self._waiting.values())]

        def settle() -> list[tuple[str, Written]]:
            done = [
                (split, file.finish(tokens, self.layout.head(tokens, self.dtype) if self._head else b""))
                for split, file, tokens in full
            ]
            for file, length in lengths:
                file.settle(length)
            for file in left:  # closed here and not before: an earlier settling may still have been at work on it
                file.close()
            self._obsolete += left
            return done

        return settle

    def recorded(self) -> None:
        """Remove the tails that were merged or dropped: nothing goes on from before that any more."""
        while self._obsolete:
            self._obsolete.pop().remove()

    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file; the splits in `wanted` have a file even when they have no tokens."""
        for split in SPLITS:
            if split in wanted and split not in self._open and not self._index[split]:
                self._begin(split)
            short = split in self._open and self._index[split] > 0
            if short and self._tail == "drop":
                self._dropped[split] += self._tokens[split]
                self._leave(split)
            elif short and self._tail == "merge":
                whole = self._waiting.pop(split)
                self._copy_tail(self._open[split], whole)
                self._full.append((split, whole, self._shard_tokens + self._tokens[split]))
                self._leave(split)
            elif split in self._open:
                self._end(split)
            if split in self._waiting:
                self._full.append((split, self._waiting.pop(split), self._shard_tokens))

    def warnings(self, splits: dict[str, dict[str, Any]]) -> list[str]:
        """What the format's readers will trip over."""
        return self.layout.warnings(splits, self.dtype, self.eot)

    def close(self) -> None:
        """Let go of all files without finishing them."""
        files = (*self._open.values(), *self._waiting.values(), *[file for _, file, _ in self._full])
        for file in (*files, *self._in_hand, *self._left, *self._obsolete):
            file.close()

    def _path(self, split: str, index: int) -> Path:
        first = self.layout.train_from if split == "train" else 0
        return self.folder / self.layout.file_name.format(name=self.name, split=split, index=f"{first + index:06}")

    def _reopen(self, split: str, index: int, tokens: int, keep: set[str]) -> PartialFile:
        path = self._path(split, index)
        keep.add(path.name + PARTIAL)
        return PartialFile(path, self._head + tokens * self.dtype.itemsize)

    def _begin(self, split: str) -> PartialFile:
        file = self._open[split] = PartialFile(self._path(split, self._index[split]))
        if self._head:
            # Right for every shard but the last, so that the hash need not be computed twice.
            file.append(self.layout.head(self._shard_tokens or 1, self.dtype))
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
