"""OLMo-core's files: raw tokens that are called `.npy`, and beside each a list of its documents, as dolma writes it."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from shardmill.errors import DamageError
from shardmill.shards.format import Format, Recognised, recognised_raw
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_FILES = 2  # whose ends of documents are kept in memory
_STORED = 65535  # bytes of a block that is not compressed


class Olmo(Format):
    name, eot, indexed, cumulative = "olmo", "after", True, True
    stem, endings = "{split}/part-0-{index:05}", (".npy", ".npy.lengths", ".csv.gz")

    def complete(self, shard: Shard) -> list[Written]:
        listed = shard.write(".csv.gz", _list_blocks(shard), role="index")
        return [shard.tokens.finish(shard.token_count), listed]

    def index(self, tokens: TokenFiles) -> EndsIndex | None:
        # A file without a list was made by another tool: then the end-of-text tokens tell.
        if not all(_list_of(file.path).exists() for file in tokens.files):
            return None
        files = tokens.files
        counts = [sum(block.count(b"\n") for block in _read_blocks(file.path)) for file in files]
        return EndsIndex(tokens, counts, lru_cache(_FILES)(lambda i: _ends(files[i])))

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        """A `.npy` that is not one of NumPy's."""
        if path.suffix != ".npy":
            return None
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                return None
        return recognised_raw(raw, path)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        within = max(1, min(tokens, shard_tokens))  # positions are counted in a file; most have as many digits as it
        most = len(str(within))
        digits = most - (int("1" * most) - 1) / within  # 10 + 100 + … numbers have a digit less than the next
        return tokens * width + round(documents * (2 * digits + 2)) + 28 * (tokens // shard_tokens + 2)

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        return [] if eot == "after" else ["OLMo-core expects the end-of-text token after each document: see `--eot`"]


def _list_blocks(shard: Shard) -> Iterator[bytes]:
    """Yield a line `start,end` for each document, in gzip's blocks that are not compressed.

    How well a library compresses depends on its version, and the bytes of a dataset must not.
    """
    yield b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    crc = size = begin = 0
    for ends in shard.length_blocks():
        starts = np.concatenate([[begin], ends[:-1]])
        sink = io.BytesIO()
        pa_csv.write_csv(pa.table({"start": starts, "end": ends}), sink, pa_csv.WriteOptions(include_header=False))
        text = sink.getvalue()
        for at in range(0, len(text), _STORED):
            block = text[at : at + _STORED]
            yield struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF) + block
        crc, size = zlib.crc32(text, crc), size + len(text)
        begin = int(ends[-1])
    yield struct.pack("<BHHII", 1, 0, 0xFFFF, crc, size & 0xFFFFFFFF)


def _list_of(path: AnyPath) -> AnyPath:
    return path.with_suffix(".csv.gz")


def _read_blocks(path: AnyPath) -> Iterator[bytes]:
    """Yield the text of the list beside a file, a megabyte at a time; DamageError if it cannot be read."""
    try:
        with _list_of(path).open("rb") as stored, gzip.open(stored) as file:
            yield from iter(lambda: file.read(1 << 20), b"")
    except (OSError, EOFError, zlib.error) as error:
        raise DamageError(f"the list of documents cannot be read: {error}", place=str(_list_of(path))) from None


def _ends(file: TokenFile) -> NDArray[np.int64]:
    """Return where the documents of a file end, in tokens; DamageError if the list does not fit."""
    text, place = b"".join(_read_blocks(file.path)), str(_list_of(file.path))
    if not text:
        return np.empty(0, np.int64)
    try:
        # dolma's own lists have more columns.
        wanted = pa_csv.ConvertOptions(column_types={"f1": pa.int64()}, include_columns=["f1"])
        columns = pa_csv.ReadOptions(autogenerate_column_names=True)
        ends: NDArray[Any] = pa_csv.read_csv(pa.BufferReader(text), columns, convert_options=wanted)["f1"].to_numpy()
    except (pa.ArrowInvalid, ValueError) as error:
        raise DamageError(f"the list of documents cannot be read: {error}", place=place) from None
    if np.isnan(ends).any() or (np.diff(ends) < 0).any() or ends[-1] != file.tokens:
        raise DamageError("the list of documents does not fit the tokens", place=place)
    return np.asarray(ends, np.int64)


FORMAT = Olmo()
