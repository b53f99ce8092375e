"""Outputs that know their documents: tokens in one file, and the length of every document in another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import OutputError
from shardmill.output_formats import SPLITS
from shardmill.shards.borders import ShardLimit, take
from shardmill.shards.format import Format, OutputSettings
from shardmill.shards.output import FileOutput, Shard
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 16  # documents at a time


class DocumentOutput(FileOutput):
    """What all such outputs share. Each format says in `complete` what becomes of the two files.

    Lengths go to disk as documents end, so no memory grows with the number of documents. A document is never cut across
    files: a file ends with the first document that makes it at least as large as `file_tokens`.
    """

    per_document: int = 0
    """What a document adds to a file's size besides its tokens, counted in tokens."""
    longest: int = (1 << 63) - 1
    """Tokens that a document may have."""
    length_dtype: np.dtype[Any] = np.dtype("<u8")
    cumulative: bool = False
    """The second file says where documents end in the first, instead of their lengths."""

    def __init__(self, kind: Format, settings: OutputSettings) -> None:
        super().__init__(kind, settings)
        self._closed = dict.fromkeys(SPLITS, 0)
        """1 for a split to which nothing will be appended."""

    @property
    def limit(self) -> ShardLimit:
        return ShardLimit(self.file_tokens, cuts_documents=False, per_document=self.per_document)

    def length_blocks(self, shard: Shard) -> Iterator[NDArray[np.int64]]:
        """Yield what was written about the documents of a shard: their lengths, or where they end."""
        size = self.length_dtype.itemsize
        for first in range(0, shard.document_count, _BLOCK):
            count = min(_BLOCK, shard.document_count - first)
            yield np.frombuffer(shard.lengths.read(size * first, size * count), self.length_dtype).astype(np.int64)

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        for split, (index, tokens, documents, unfinished, closed) in position.items():
            self._index[split], self._closed[split] = index, closed
            if tokens:
                self._begin(split, tokens, documents).unfinished = unfinished
        self._remove_others(complete)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Append tokens to a split; OutputError for a document that is too long for the format."""
        if tokens.dtype != self.dtype:
            tokens = tokens.astype(self.dtype)
        while len(tokens):
            shard = self._open.get(split) or self._begin(split)
            taken = take(self.limit, shard.token_count, shard.document_count, len(tokens), ends)
            self._write(shard, tokens[: taken.tokens], ends[: taken.documents])
            if taken.full:
                self._end(split)
            tokens, ends = tokens[taken.tokens :], ends[taken.documents :] - taken.tokens

    def end_document(self) -> None:
        for split, shard in list(self._open.items()):
            if shard.unfinished:
                self._write(shard, np.empty(0, self.dtype), np.zeros(1, np.int64))
                size = shard.token_count + self.per_document * shard.document_count
                if self.file_tokens and size >= self.file_tokens:
                    self._end(split)

    def position(self) -> dict[str, list[int]]:
        """For each split: the index of its open file; the tokens, the ended documents and the tokens of the unfinished
        document in it; and whether the split is closed."""
        position = {}
        for split in SPLITS:
            shard = self._open.get(split)
            counts = [shard.token_count, shard.document_count, shard.unfinished] if shard else [0, 0, 0]
            position[split] = [self._index[split], *counts, self._closed[split]]
        return position

    def finish(self, wanted: tuple[str, ...]) -> None:
        self.end_document()
        for split in SPLITS:
            if split in wanted and not self._closed[split]:
                if split not in self._open and not self._index[split] and not self.shared:
                    self._begin(split)
                if split in self._open:
                    self._end(split)
                self._ended_splits.append(split)
                self._closed[split] = 1

    def _begin(self, split: str, tokens: int = 0, documents: int = 0) -> Shard:
        """Open a shard that has `tokens` tokens and `documents` documents already."""
        kept = tokens * self.dtype.itemsize, documents * self.length_dtype.itemsize
        shard = self._open[split] = self.open_shard(split, self._index[split], *kept)
        shard.token_count, shard.document_count = tokens, documents
        return shard

    def _write(self, shard: Shard, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        lengths = np.diff(ends, prepend=0)
        if len(ends):
            lengths[0] += shard.unfinished
        unfinished = len(tokens) - int(ends[-1]) if len(ends) else shard.unfinished + len(tokens)
        longest = max(unfinished, int(lengths.max(initial=0)))
        if longest > self.longest:
            raise OutputError(
                f"a document of {longest:,} tokens or more does not fit in a file of {self.format}, which takes "
                f"{self.longest:,}",
                place=shard.tokens.name,
                hint="choose another format, or cut the text into documents with `--separator`",
            )
        shard.tokens.append(tokens)
        if len(ends):
            shard.lengths.append((ends + shard.token_count if self.cumulative else lengths).astype(self.length_dtype))
        shard.token_count += len(tokens)
        shard.document_count += len(ends)
        shard.unfinished = unfinished

    def _end(self, split: str) -> None:
        self.end_shard(self._open.pop(split))
        self._index[split] += 1


class RepackedOutput(DocumentOutput):
    """Files whose header is known only when all their documents are, and a folder with an index for each split.

    Their offsets have 32 bits, so a file stays under 4 GiB whatever its documents are.
    """

    length_dtype = np.dtype("<u4")

    def __init__(self, kind: Format, settings: OutputSettings) -> None:
        super().__init__(kind, settings)
        self._files: list[Written] = []

    @abstractmethod
    def write_file(self, file: PartialFile, shard: Shard) -> None:
        """Write a file from its documents, block by block."""

    @abstractmethod
    def write_index(self, index: PartialFile, files: list[Written]) -> None:
        """Write `index.json`, which describes the files of a split."""

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        super().restore(position, complete)
        self._files = [written for written in complete if written.role != "index"]

    def complete(self, shard: Shard) -> list[Written]:
        written = []
        if shard.document_count:
            with closing(self.create(shard.stem + self._kind.endings[-1])) as file:
                self.write_file(file, shard)
                written.append(replace(file.finish(shard.token_count), documents=shard.document_count))
        self._files += written
        for file in shard.files:
            self.discard(file)
        return written

    def complete_split(self, split: str) -> list[Written]:
        """Write the index. The files themselves may have been moved elsewhere by now."""
        with closing(self.create(f"{split}/index.json")) as index:
            self.write_index(index, [file for file in self._files if file.name.startswith(f"{split}/")])
            return [index.finish(0, role="index")]
