"""Megatron's `.bin` and `.idx`: raw tokens of all documents, and an index that finds each of them.

There is one pair a split, `NAME-train_text_document` and `NAME-val_text_document`, since our splits are made
already: give them to Megatron as `--train-data-path` and `--valid-data-path`. Without a val split the pair is
`NAME_text_document`, as Megatron's own tool calls it, for `--data-path` and `--split`. The hyphen keeps them out of
`NAME_train_*.bin`, which is how llm.c and modded-nanogpt find their shards when both are made in one folder.
"""

from __future__ import annotations

import re
import struct
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.shards.documents import DocumentOutput, Pair
from shardmill.shards.output import SPLITS
from shardmill.storage.files import PartialFile, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

HEAD = struct.Struct("<9sQBQQ")
MAGIC = b"MMIDIDX\0\0"
CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
_BLOCK = 1 << 17  # documents at a time


class MegatronOutput(DocumentOutput):
    """The pairs of all splits."""

    format = "megatron"
    longest = (1 << 31) - 1
    length_dtype = np.dtype("<i4")

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[Any], eot: str | None, vocab_size: int, splits: tuple[str, ...]
    ) -> None:
        # Megatron's own choice of the width; its readers take what the index says.
        narrow = vocab_size < 65500 if vocab_size else dtype.itemsize == 2
        super().__init__(folder, name, CODES[8 if narrow else 4], eot or "after")
        self._splits = splits

    def tokens_name(self, split: str, index: int) -> str:
        return f"{self._prefix(split)}.bin"

    def owns(self) -> re.Pattern[str]:
        """The tokens, the index, and the lengths that the index is made of."""
        prefixes = "|".join(re.escape(self._prefix(split)) for split in SPLITS)
        return re.compile(rf"(?:{prefixes})\.(?:bin|bin\.lengths|idx)")

    def complete(self, pair: Pair) -> list[Written]:
        """The index is made from the lengths."""
        name = self._prefix(pair.split) + ".idx"
        with closing(PartialFile(self.folder / name, name=name)) as index:
            self._write_index(index, pair)
            self.obsolete(pair.lengths)
            return [pair.tokens.finish(pair.token_count), index.finish(0, role="index")]

    def _write_index(self, index: PartialFile, pair: Pair) -> None:
        """Streamed, block by block: the lengths are read twice, and never held."""
        code = next(code for code, dtype in CODES.items() if dtype == self.dtype)
        documents = pair.document_count
        index.append(HEAD.pack(MAGIC, 1, code, documents, documents + 1))
        for lengths in _blocks(pair):
            index.append(lengths)
        offset = 0
        for lengths in _blocks(pair):
            ends = np.cumsum(lengths, dtype="<i8") * self.dtype.itemsize + offset
            index.append(np.concatenate([np.array([offset], "<i8"), ends[:-1]]))
            offset = int(ends[-1])
        for first in range(0, documents + 1, _BLOCK):
            index.append(np.arange(first, min(first + _BLOCK, documents + 1), dtype="<i8"))

    def _prefix(self, split: str) -> str:
        return f"{self.name}-{split}_text_document" if len(self._splits) > 1 else f"{self.name}_text_document"


def _blocks(pair: Pair) -> Iterator[NDArray[np.int32]]:
    for first in range(0, pair.document_count, _BLOCK):
        yield np.frombuffer(pair.lengths.read(4 * first, 4 * min(_BLOCK, pair.document_count - first)), "<i4")
