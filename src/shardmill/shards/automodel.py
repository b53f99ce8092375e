"""NeMo Automodel's `.bin` shards: llm.c's layout for tokens of any width, and beside each a list of its documents.

Automodel's `NanogptDataset` looks up in `.bos.idx` the first token at which a document begins, counted in tokens. (Its
own tool counts bytes there, so such a list is not taken for one of documents.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout, recognised, short_tails
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_HEAD = 1024
_MAGIC, _VERSION = 278895051, 1
_LARGEST = (1 << 31) - 1  # tokens of a shard: places have 32 bits
_FILES = 2  # whose places are kept in memory


class Automodel(Format):
    name, eot, indexed, cumulative = "automodel", "before", True, True
    stem, endings = "{name}-{split}_{index:06}", (".bin", ".bin.ends", ".bos.idx")

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        return struct.pack("<4i", _MAGIC, _VERSION, tokens, dtype.itemsize).ljust(_HEAD, b"\0")

    def layout(self, settings: OutputSettings) -> ShardLayout:
        if settings.shard_tokens > _LARGEST // 2:
            raise UsageError(
                f"a shard of {settings.shard_tokens:,} tokens is too long for Automodel, which counts them in 32 bits",
                hint="set `--shard-tokens` to 1B or less",
            )
        return super().layout(settings)._replace(longest=_LARGEST // 2)

    def complete(self, shard: Shard) -> list[Written]:
        places = shard.write(".bos.idx", _places(shard), role="index")
        return [shard.tokens.finish(shard.token_count, self.header(shard.token_count, shard.dtype)), places]

    def index(self, tokens: TokenFiles) -> EndsIndex | None:
        files = tokens.files
        if not all(_has_places(file) for file in files):
            return None
        counts = [_list_of(file.path).stat().st_size // 4 for file in files]
        return EndsIndex(tokens, counts, lru_cache(_FILES)(lambda i: _ends(files[i])))

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".bin":
            return None
        with path.open("rb") as file:
            header = file.read(_HEAD)
        if len(header) < _HEAD or struct.unpack_from("<2i", header) != (_MAGIC, _VERSION):
            return None
        tokens, width = struct.unpack_from("<2I", header, 8)
        if width not in (2, 4):
            raise DamageError(f"its header says that a token has {width} bytes", place=str(path))
        return recognised(np.dtype(f"<u{width}"), TokenFile(path, tokens, _HEAD))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * width + 4 * documents + _HEAD * (-(-tokens // shard_tokens) + 1)

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        warnings = short_tails(splits, "Automodel's loader")
        if eot != "before":
            warnings.append("Automodel looks for the token before each document: see `--eot`")
        return warnings


def _places(shard: Shard) -> Iterator[NDArray[Any]]:
    """Yield where documents begin, from where they end."""
    begin = 0
    for ends in shard.length_blocks():
        yield np.concatenate([[begin], ends[:-1]]).astype("<i4")
        begin = int(ends[-1])


def _list_of(path: AnyPath) -> AnyPath:
    return path.with_suffix(".bos.idx")


def _has_places(file: TokenFile) -> bool:
    """Whether there is a list that counts tokens: its first document begins with the file."""
    listed = _list_of(file.path)
    if not listed.exists() or listed.stat().st_size % 4:
        return False
    if not listed.stat().st_size:
        return file.tokens == 0
    with listed.open("rb") as places:
        return places.read(4) == b"\0\0\0\0"


def _ends(file: TokenFile) -> NDArray[np.int64]:
    """Return where the documents of a file end, in tokens."""
    starts = np.frombuffer(_list_of(file.path).read_bytes(), "<i4").astype(np.int64)
    return np.append(starts[1:], file.tokens) if len(starts) else starts


FORMAT = Automodel()
