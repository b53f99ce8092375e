"""litData's chunks, as litgpt reads them: the offsets of the documents, their tokens, and an index for each split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.borders import ShardLimit
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout, recognised
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_CODES: dict[int, np.dtype[Any]] = {16: np.dtype("<i4"), 20: np.dtype("<u2")}
"""By litData's number for a type of torch. Its readers have no other that fits tokens."""
_LARGEST = 1 << 31  # bytes of tokens after which a chunk ends: offsets have 32 bits, and a document may follow
_CHUNKS = 2  # whose offsets are kept in memory


class Litdata(Format):
    name, eot, indexed, length_dtype = "litdata", "after", True, np.dtype("<u4")
    stem, endings = "{split}/chunk-0-{index}", (".tokens", ".tokens.lengths", ".bin")
    split_file = "{split}/index.json"

    def layout(self, settings: OutputSettings) -> ShardLayout:
        dtype = np.dtype("<u2" if settings.dtype.itemsize == 2 else "<i4")
        width = dtype.itemsize
        limit = ShardLimit(min(settings.shard_tokens, _LARGEST // width), cuts_documents=False, per_document=4 // width)
        return ShardLayout(dtype, limit, (_LARGEST - (1 << 29)) // width)

    def complete(self, shard: Shard) -> list[Written]:
        return [shard.write(".bin", _chunk_blocks(shard))] if shard.document_count else []

    def describe(self, files: list[Written], dtype: np.dtype[Any]) -> Iterator[bytes]:
        chunks = [
            {"chunk_bytes": file.bytes, "chunk_size": file.documents, "dim": file.tokens,
             "filename": file.name.partition("/")[2]}
            for file in files
        ]  # fmt: skip
        code = next(code for code, known in _CODES.items() if known == dtype)
        config = {
            "chunk_bytes": None,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_tensor:{code}"],
            "data_spec": json.dumps([1, {"type": None, "context": None, "children_spec": []}]),
            "encryption": None,
            "item_loader": "TokensLoader",
        }
        yield json.dumps({"chunks": chunks, "config": config}, sort_keys=True).encode()

    def index(self, tokens: TokenFiles) -> EndsIndex:
        counts = [int(tokens.read_bytes(i, 0, 4).view("<u4")[0]) for i in range(len(tokens.files))]
        for file, count in zip(tokens.files, counts, strict=True):
            if file.header_bytes != 4 * (count + 2):
                raise DamageError("the chunk's offsets do not fit its size", place=str(file.path))
        return EndsIndex(tokens, counts, lru_cache(_CHUNKS)(lambda i: _ends(tokens, i)))

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        listed = path.with_name("index.json")
        if path.suffix != ".bin" or not path.name.startswith("chunk-") or not listed.exists():
            return None
        try:
            index = json.loads(listed.read_bytes())
            code = index["config"]["data_format"][0].rpartition(":")[2]
            entry = next(chunk for chunk in index["chunks"] if chunk["filename"] == path.name)
            tokens, items, dtype = int(entry["dim"]), int(entry["chunk_size"]), _CODES[int(code)]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration):
            raise DamageError(f"litData's index says nothing of tokens in `{path.name}`", place=str(listed)) from None
        return recognised(dtype, TokenFile(path, tokens, 4 * (items + 2)))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * width + 4 * documents + 200 * (tokens // shard_tokens + 3)


def _chunk_blocks(shard: Shard) -> Iterator[bytes | NDArray[Any]]:
    """Yield how many documents there are, where each begins and the last ends, and the tokens."""
    offset = 4 * (shard.document_count + 2)
    yield np.array([shard.document_count, offset], "<u4")
    for lengths in shard.length_blocks():
        ends = offset + np.cumsum(lengths) * shard.dtype.itemsize
        yield ends.astype("<u4")
        offset = int(ends[-1])
    yield from shard.token_blocks()


def _ends(tokens: TokenFiles, i: int) -> NDArray[np.int64]:
    """Return where the documents of a chunk end, in tokens; DamageError if its offsets do not fit."""
    file, width = tokens.files[i], tokens.dtype.itemsize
    offsets = tokens.read_bytes(i, 4, file.header_bytes - 4).view("<u4").astype(np.int64) - file.header_bytes
    lengths = np.diff(offsets)
    if offsets[0] or offsets[-1] != file.tokens * width or (lengths < 0).any() or (lengths % width).any():
        raise DamageError("the chunk's offsets do not fit its tokens", place=str(file.path))
    return offsets[1:] // width


FORMAT = Litdata()
