"""Megatron's `.bin` and `.idx`: raw tokens of all documents, and an index that finds each of them.

There is one pair per split, `NAME-train_text_document` and `NAME-val_text_document`, since our splits are made already:
give them to Megatron as `--train-data-path` and `--valid-data-path`. Without a val split the pair is
`NAME_text_document`, as Megatron's own tool calls it, for `--data-path` and `--split`. The hyphen keeps them out of
`NAME_train_*.bin`, by which llm.c and modded-nanogpt find their shards when both are made in one folder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout, recognised
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath, open_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

HEAD = struct.Struct("<9sQBQQ")
MAGIC = b"MMIDIDX\0\0"
CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
_BLOCK = 1 << 17  # documents at a time
_OPEN = 4  # indexes that are mapped at a time


class Megatron(Format):
    name, eot, sharded, indexed, length_dtype = "megatron", "after", False, True, np.dtype("<i4")
    stem, endings = "{name}-{split}_text_document", (".bin", ".bin.lengths", ".idx")
    stem_of_one_split = "{name}_text_document"

    def layout(self, settings: OutputSettings) -> ShardLayout:
        dtype = _dtype(settings.vocab_size, settings.dtype.itemsize)
        return super().layout(settings)._replace(dtype=dtype, longest=(1 << 31) - 1)

    def complete(self, shard: Shard) -> list[Written]:
        index = shard.write(".idx", _index_blocks(shard), role="index")
        return [shard.tokens.finish(shard.token_count), index]

    def index(self, tokens: TokenFiles) -> EndsIndex:
        paths = [file.path.with_suffix(".idx") for file in tokens.files]
        counts = [_read_head(path)[2] for path in paths]
        return EndsIndex(tokens, counts, lru_cache(_OPEN)(lambda i: _DocumentEnds(paths[i], tokens.dtype.itemsize)))

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        index = path.with_suffix(".idx")
        if path.suffix != ".bin" or not index.exists():
            return None
        code = _read_head(index)[0]
        if code not in CODES:
            raise UsageError(f"Megatron's type {code} is not one for tokens here", hint=str(index))
        ends = _DocumentEnds(index, CODES[code].itemsize)
        return recognised(CODES[code], TokenFile(path, int(ends[len(ends) - 1]) if len(ends) else 0))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * _dtype(vocab_size, width).itemsize + 20 * documents + 2 * 42


def _index_blocks(shard: Shard) -> Iterator[bytes | NDArray[Any]]:
    """Yield the index; the lengths are read twice, and never held."""
    code = next(code for code, dtype in CODES.items() if dtype == shard.dtype)
    documents, offset = shard.document_count, 0
    yield HEAD.pack(MAGIC, 1, code, documents, documents + 1)
    for lengths in shard.length_blocks():
        yield lengths.astype("<i4")
    for lengths in shard.length_blocks():
        ends = np.cumsum(lengths, dtype="<i8") * shard.dtype.itemsize + offset
        yield np.concatenate([np.array([offset], "<i8"), ends[:-1]])
        offset = int(ends[-1])
    for first in range(0, documents + 1, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, documents + 1), dtype="<i8")


def _dtype(vocab_size: int, width: int) -> np.dtype[Any]:
    """Megatron's own choice; its readers take the type that the index names."""
    return CODES[8 if (vocab_size < 65500 if vocab_size else width == 2) else 4]


class _DocumentEnds:
    """Where documents end, in tokens; read from the index when needed. A document may have any number of sequences."""

    def __init__(self, path: AnyPath, width: int) -> None:
        _, sequences, documents = _read_head(path)
        self._path, self._width = path, width
        at = HEAD.size
        self._lengths = open_array(path, np.dtype("<i4"), at, sequences)
        self._offsets = open_array(path, np.dtype("<i8"), at + 4 * sequences, sequences)
        self._next_sequence = open_array(path, np.dtype("<i8"), at + 12 * sequences + 8, documents)
        """The number of the sequence after each document."""

    def __len__(self) -> int:
        return len(self._next_sequence)

    def __getitem__(self, which: int | slice) -> Any:
        """One end; or those of a slice of documents without repetition, none of which may be 0."""
        if isinstance(which, slice):
            following = self._next_sequence[which]
            self._check(following, least=1)
            return np.unique(self._end(following - 1))
        following = self._next_sequence[which]
        self._check(np.array([following]), least=0)
        return self._end(following - 1) if following else 0

    def _check(self, following: NDArray[np.int64], least: int) -> None:
        if len(following) and not least <= following.min() <= following.max() <= len(self._lengths):
            raise DamageError("Megatron's index is damaged", place=str(self._path))

    def _end(self, sequences: Any) -> Any:
        return self._offsets[sequences] // self._width + self._lengths[sequences]


def _read_head(path: AnyPath) -> tuple[int, int, int]:
    """Return the code of the type, the number of sequences and of documents. DamageError if it is no whole index."""
    with path.open("rb") as file:
        head = file.read(HEAD.size)
    if len(head) == HEAD.size:
        magic, version, code, sequences, entries = HEAD.unpack(head)
        size = HEAD.size + 12 * sequences + 8 * entries
        if (magic, version) == (MAGIC, 1) and entries and size <= path.stat().st_size:
            return code, sequences, entries - 1
    raise DamageError("the file is not a whole Megatron index", place=str(path))


FORMAT = Megatron()
