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
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.shards import SPLITS
from shardmill.shards.document_index import bounds_in, file_of, files_between
from shardmill.shards.documents import DocumentOutput, Pair
from shardmill.shards.format import Format, Order, Recognised, whole
from shardmill.shards.token_files import TokenFile, TokenFiles
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD = struct.Struct("<9sQBQQ")
MAGIC = b"MMIDIDX\0\0"
CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
_BLOCK = 1 << 17  # documents at a time


class Megatron(Format):
    name, eot, sharded, indexed = "megatron", "after", False, True

    def output(self, order: Order) -> MegatronOutput:
        return MegatronOutput(self, order)

    def index(self, tokens: TokenFiles) -> MegatronIndex:
        return MegatronIndex(tokens, [file.path.with_suffix(".idx") for file in tokens.files])

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        index = path.with_suffix(".idx")
        if path.suffix != ".bin" or not index.exists():
            return None
        code = _read_head(index)[0]
        if code not in CODES:
            raise UsageError(f"Megatron's type {code} is not one for tokens here", hint=str(index))
        all_of_it = TokenFile(path, path.stat().st_size // CODES[code].itemsize)
        documents = self.index(TokenFiles([all_of_it], CODES[code]))
        through = documents.bounds(len(documents) - 1)[1] if len(documents) else 0
        return whole(CODES[code], TokenFile(path, through))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * _dtype(vocab_size, width).itemsize + 20 * documents + 2 * 42


def _dtype(vocab_size: int, width: int) -> np.dtype[Any]:
    """Megatron's own choice; its readers take what the index says."""
    return CODES[8 if (vocab_size < 65500 if vocab_size else width == 2) else 4]


class MegatronOutput(DocumentOutput):
    """The pairs of all splits."""

    longest = (1 << 31) - 1
    length_dtype = np.dtype("<i4")

    def __init__(self, kind: Format, order: Order) -> None:
        super().__init__(kind, order)
        self.dtype = _dtype(order.vocab_size, order.dtype.itemsize)
        self._splits = order.splits

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
        for lengths in pair.blocks():
            index.append(lengths.astype("<i4"))
        offset = 0
        for lengths in pair.blocks():
            ends = np.cumsum(lengths, dtype="<i8") * self.dtype.itemsize + offset
            index.append(np.concatenate([np.array([offset], "<i8"), ends[:-1]]))
            offset = int(ends[-1])
        for first in range(0, documents + 1, _BLOCK):
            index.append(np.arange(first, min(first + _BLOCK, documents + 1), dtype="<i8"))

    def _prefix(self, split: str) -> str:
        return f"{self.name}-{split}_text_document" if len(self._splits) > 1 else f"{self.name}_text_document"


class MegatronIndex:
    """Documents by Megatron's index; a document may have been stored as several sequences, or as none."""

    def __init__(self, tokens: TokenFiles, indices: list[Path]) -> None:
        self._tokens, self._paths = tokens, indices
        self._map = lru_cache(4)(lambda i: np.memmap(indices[i], np.uint8, "r"))
        heads = [_read_head(path) for path in indices]
        self._sequences = [sequences for _, sequences, _ in heads]
        self._firsts = [0, *np.cumsum([documents for _, _, documents in heads], dtype=np.int64).tolist()]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def bounds(self, i: int) -> tuple[int, int]:
        file = file_of(self._firsts, i)
        ends, documents = self._arrays(file)
        first, last = documents[i - self._firsts[file] : i - self._firsts[file] + 2].tolist()
        if not 0 <= first <= last <= self._sequences[file]:
            raise DamageError("Megatron's index is damaged", place=str(self._paths[file]))
        return bounds_in(self._tokens, file, self._end(ends, first), self._end(ends, last))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        found = []
        for file, base in files_between(self._tokens, start, stop):
            (lengths, offsets), documents = self._arrays(file)
            width = self._tokens.dtype.itemsize
            # Documents end where sequences do: those that end within, then of these the last of a document.
            first = max(0, int(np.searchsorted(offsets, (start - base) * width, side="right")) - 1)
            last = int(np.searchsorted(offsets, (stop - base) * width))
            among = documents[np.searchsorted(documents, first + 1) : np.searchsorted(documents, last, side="right")]
            if len(among) and not 0 < among.min() <= among.max() <= self._sequences[file]:
                raise DamageError("Megatron's index is damaged", place=str(self._paths[file]))
            ends = np.unique(offsets[among - 1] // width + lengths[among - 1]) + base
            found.append(ends[(ends > start) & (ends <= stop)])
        return np.concatenate([np.empty(0, np.int64), *found])

    def _end(self, ends: tuple[NDArray[np.int32], NDArray[np.int64]], sequence: int) -> int:
        """Where the sequences before one end, in tokens of the file."""
        lengths, offsets = ends
        if not sequence:
            return 0
        return int(offsets[sequence - 1]) // self._tokens.dtype.itemsize + int(lengths[sequence - 1])

    def _arrays(self, file: int) -> tuple[tuple[NDArray[np.int32], NDArray[np.int64]], NDArray[np.int64]]:
        count, data = self._sequences[file], self._map(file)
        lengths = data[HEAD.size : HEAD.size + 4 * count].view("<i4")
        offsets = data[HEAD.size + 4 * count : HEAD.size + 12 * count].view("<i8")
        end = HEAD.size + 12 * count + 8 * (self._firsts[file + 1] - self._firsts[file] + 1)
        return (lengths, offsets), data[HEAD.size + 12 * count : end].view("<i8")


def _read_head(path: Path) -> tuple[int, int, int]:
    """(code of the type, sequences, documents) of an index; DamageError when it is none."""
    with open(path, "rb") as file:
        head = file.read(HEAD.size)
    if len(head) == HEAD.size:
        magic, version, code, sequences, entries = HEAD.unpack(head)
        size = HEAD.size + 12 * sequences + 8 * entries
        if (magic, version) == (MAGIC, 1) and entries and size <= path.stat().st_size:
            return code, sequences, entries - 1
    raise DamageError("the file is not a whole Megatron index", place=str(path))


FORMAT = Megatron()
