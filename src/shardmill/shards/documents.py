"""Files that know their documents: tokens in one file, and the length of every document in another beside it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import OutputError
from shardmill.shards import SPLITS
from shardmill.shards.format import Format, Order
from shardmill.shards.output import FileOutput
from shardmill.storage import PARTIAL, PartialFile, Written, writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 16  # documents at a time


@dataclass
class Stand:
    """How far a split has come."""

    index: int = 0
    """Of the open file."""
    tokens: int = 0
    documents: int = 0
    """That have ended in the open file."""
    open: int = 0
    """Tokens of the document that has not ended yet."""
    closed: int = 0
    """1 when nothing will follow."""


@dataclass
class Pair:
    """A file of tokens, and the lengths of its documents beside it."""

    split: str
    index: int
    tokens: PartialFile
    lengths: PartialFile
    lengths_dtype: np.dtype[Any]
    token_count: int = 0
    document_count: int = 0

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """What was written of the documents, some at a time: their lengths, or where they end."""
        dtype, size = self.lengths_dtype, self.lengths_dtype.itemsize
        for first in range(0, self.document_count, _BLOCK):
            count = min(_BLOCK, self.document_count - first)
            yield np.frombuffer(self.lengths.read(size * first, size * count), dtype).astype(np.int64)


class DocumentOutput(FileOutput):
    """What all such files have in common; each format says in `complete` what becomes of a pair.

    Lengths go to disk as documents end, so nothing here grows with the number of documents. A document is never
    cut across files: a file ends with the first document that makes it at least as large as the limit.
    """

    limit: int
    """Tokens in a file; 0: one file a split."""
    per_document: int = 0
    """What a document adds to a file's size beside its tokens, counted in tokens."""
    longest: int = (1 << 63) - 1
    """Tokens that a document may have."""
    length_dtype: np.dtype[Any] = np.dtype("<u8")
    cumulative: bool = False
    """Where documents end in the file, instead of their lengths."""

    def __init__(self, kind: Format, order: Order) -> None:
        super().__init__(kind, order)
        self.limit = order.shard_tokens if kind.sharded else 0
        self._stands = {split: Stand() for split in SPLITS}
        self._open: dict[str, Pair] = {}
        self._full: list[Pair] = []
        self._in_hand: list[Pair] = []
        self._ending: list[str] = []

    @abstractmethod
    def tokens_name(self, split: str, index: int) -> str:
        """What the file of a split's tokens is called."""

    def lengths_name(self, split: str, index: int) -> str:
        return self.tokens_name(split, index) + ".lengths"

    @abstractmethod
    def complete(self, pair: Pair) -> list[Written]:
        """Turn a pair into the files that the readers want; what is not needed any more goes to `obsolete`."""

    def complete_split(self, split: str) -> list[Written]:
        """What comes after the last file of a split."""
        return []

    def obsolete(self, file: PartialFile) -> None:
        """It may go as soon as the present position is recorded, and not before: a crash goes on from it."""
        file.close()
        self._obsolete.append(file)

    @property
    def full(self) -> int:
        return len(self._full)

    @property
    def file_tokens(self) -> int:  # type: ignore[override]
        return self.limit

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        keep = {written.name for written in complete}
        for split, numbers in position.items():
            stand = self._stands[split] = Stand(*numbers)
            if stand.tokens:
                pair = self._begin(split, stand.tokens, stand.documents)
                keep |= {pair.tokens.name + PARTIAL, pair.lengths.name + PARTIAL}
        self.remove_strangers(keep)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Put tokens at the end of a split; OutputError for a document that is too long for the format."""
        if tokens.dtype != self.dtype:
            tokens = tokens.astype(self.dtype)
        stand = self._stands[split]
        while len(tokens):
            last = len(ends)
            if self.limit and last:
                sizes = stand.tokens + ends + self.per_document * (stand.documents + np.arange(1, last + 1))
                last = int(np.searchsorted(sizes, self.limit))
            full = last < len(ends)
            size = int(ends[last]) if full else len(tokens)
            self._write(split, tokens[:size], ends[: last + 1])
            if full:
                self._end(split)
            tokens, ends = tokens[size:], ends[last + 1 :] - size

    def end_document(self) -> None:
        for split, stand in self._stands.items():
            if stand.open:
                self._write(split, np.empty(0, self.dtype), np.zeros(1, np.int64))
                if self.limit and stand.tokens + self.per_document * stand.documents >= self.limit:
                    self._end(split)

    def position(self) -> dict[str, list[int]]:
        """Where each split stands, as the fields of a `Stand`."""
        return {split: list(vars(stand).values()) for split, stand in self._stands.items()}

    def settling(self) -> Callable[[], list[tuple[str, Written]]]:
        full, self._full = self._full, []
        self._in_hand = full
        ending, self._ending = self._ending, []
        lengths = [(file, file.length) for pair in self._open.values() for file in (pair.tokens, pair.lengths)]

        def settle() -> list[tuple[str, Written]]:
            mine = [pair for pair in full if pair.tokens.written]
            done = [(pair.split, written) for pair in mine for written in self.complete(pair)]
            if self.only is None:
                done += [(split, written) for split in ending for written in self.complete_split(split)]
            for file, length in lengths:
                file.settle(length)
            return done

        return settle

    def finish(self, wanted: tuple[str, ...]) -> None:
        self.end_document()
        for split, stand in self._stands.items():
            if split in wanted and not stand.closed:
                if split not in self._open and not stand.index and self.only is None:
                    self._begin(split)
                if split in self._open:
                    self._end(split)
                self._ending.append(split)
                stand.closed = 1

    def close(self) -> None:
        for pair in (*self._open.values(), *self._full, *self._in_hand):
            pair.tokens.close()
            pair.lengths.close()

    def _begin(self, split: str, tokens: int = 0, documents: int = 0) -> Pair:
        index = self._stands[split].index
        names = (self.tokens_name(split, index), self.lengths_name(split, index))
        keeps = (tokens * self.dtype.itemsize, documents * self.length_dtype.itemsize)
        with writing_to(self.folder):
            (self.folder / names[0]).parent.mkdir(exist_ok=True)
        files = [
            self.open_file(split, index, self.folder / name, keep, name)
            for name, keep in zip(names, keeps, strict=True)
        ]
        pair = self._open[split] = Pair(split, index, files[0], files[1], self.length_dtype)
        return pair

    def _write(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        stand = self._stands[split]
        pair = self._open.get(split) or self._begin(split)
        lengths = np.diff(ends, prepend=0)
        if len(ends):
            lengths[0] += stand.open
        open_now = len(tokens) - int(ends[-1]) if len(ends) else stand.open + len(tokens)
        longest = max(open_now, int(lengths.max(initial=0)))
        if longest > self.longest:
            raise OutputError(
                f"a document of {longest:,} tokens or more does not fit in a file of {self.format}, which takes "
                f"{self.longest:,}",
                place=pair.tokens.name,
                hint="choose another format, or cut the text into documents with `--separator`",
            )
        pair.tokens.append(tokens)
        if len(ends):
            pair.lengths.append((ends + stand.tokens if self.cumulative else lengths).astype(self.length_dtype))
        stand.tokens += len(tokens)
        stand.documents += len(ends)
        stand.open = open_now

    def _end(self, split: str) -> None:
        stand, pair = self._stands[split], self._open.pop(split)
        pair.token_count, pair.document_count = stand.tokens, stand.documents
        self._full.append(pair)
        stand.index, stand.tokens, stand.documents, stand.open = stand.index + 1, 0, 0, 0


class RepackedOutput(DocumentOutput):
    """Files whose head is known only when all their documents are, and a folder with an index for each split.

    Their offsets have 32 bits, so a file stays under 4 GiB whatever its documents are.
    """

    length_dtype = np.dtype("<u4")
    stem: str
    """What a file's name begins with, with `{index}`."""
    ending: str

    def __init__(self, kind: Format, order: Order) -> None:
        super().__init__(kind, order)
        self._files: list[Written] = []

    @abstractmethod
    def write_file(self, file: PartialFile, pair: Pair) -> None:
        """Write a file from its documents, streamed."""

    @abstractmethod
    def write_index(self, index: PartialFile, files: list[Written]) -> None:
        """Write `index.json`, from what was said of a split's files when they became whole."""

    def tokens_name(self, split: str, index: int) -> str:
        return f"{split}/{self.stem.format(index=self.first + index)}.tokens"

    def owns(self) -> re.Pattern[str]:
        """The files, what they are made of, and the index."""
        stem = r"\d+".join(map(re.escape, re.split(r"{.*?}", self.stem)))
        endings = rf"(?:{re.escape(self.ending)}|\.tokens|\.tokens\.lengths)"
        return re.compile(rf"(?:{'|'.join(SPLITS)})/(?:{stem}{endings}|index\.json)")

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """The same, and what is known of the files that are complete."""
        super().restore(position, complete)
        self._files = [written for written in complete if written.role != "index"]

    def adopt(self, files: Collection[Written]) -> None:
        self._files += [written for written in files if written.role != "index"]

    def complete(self, pair: Pair) -> list[Written]:
        """A file takes the place of the pair."""
        written = []
        if pair.document_count:
            name = pair.tokens.name.removesuffix(".tokens") + self.ending
            with closing(PartialFile(self.folder / name, name=name)) as file:
                self.write_file(file, pair)
                written.append(replace(file.finish(pair.token_count), documents=pair.document_count))
        self._files += written
        self.obsolete(pair.tokens)
        self.obsolete(pair.lengths)
        return written

    def complete_split(self, split: str) -> list[Written]:
        """The index; the files themselves may be elsewhere by now."""
        name = f"{split}/index.json"
        with writing_to(self.folder):
            (self.folder / split).mkdir(exist_ok=True)
        with closing(PartialFile(self.folder / name, name=name)) as index:
            self.write_index(index, [file for file in self._files if file.name.startswith(f"{split}/")])
            return [index.finish(0, role="index")]
