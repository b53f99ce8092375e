"""torchtitan's token files: for each split a folder with all tokens as uint32, and where each document begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout, recognised_raw
from shardmill.shards.token_files import EndsIndex, TokenFiles
from shardmill.storage import AnyPath, open_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_OFFSETS = "document_offsets.npy"
_HEAD_SIZE = 128
_MAGIC = b"\x93NUMPY\x01\x00"
_ARRAY = re.compile(rb"\{'descr': '<[iu]8', 'fortran_order': (?:False|True), 'shape': \((\d{1,18}),\), *\}\s*")


class Torchtitan(Format):
    name, eot, sharded, indexed, cumulative = "torchtitan", "after", False, True, True
    always_wide, stem, endings = True, "{split}/", ("tokens.bin", "tokens.bin.ends", _OFFSETS)

    def layout(self, settings: OutputSettings) -> ShardLayout:
        return super().layout(settings)._replace(dtype=np.dtype("<u4"))

    def complete(self, shard: Shard) -> list[Written]:
        offsets = shard.write(_OFFSETS, _offset_blocks(shard), role="index")
        return [shard.tokens.finish(shard.token_count), offsets]

    def index(self, tokens: TokenFiles) -> EndsIndex:
        found = [_read_offsets(file.path.with_name(_OFFSETS)) for file in tokens.files]
        return EndsIndex(tokens, [len(offsets) for offsets in found], lambda i: found[i])

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.name != "tokens.bin" or not path.with_name(_OFFSETS).exists():
            return None
        return recognised_raw(np.dtype("<u4"), path)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * 4 + 8 * documents + 2 * (_HEAD_SIZE + 8)


def _header(count: int) -> bytes:
    """Return the header of a NumPy file of `count` int64, as NumPy writes it."""
    described = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({count},), }}"
    return _MAGIC + b"\x76\x00" + described.ljust(_HEAD_SIZE - 11).encode() + b"\n"


def _offset_blocks(shard: Shard) -> Iterator[bytes | NDArray[Any]]:
    """Yield where each document begins, and the end."""
    yield _header(shard.document_count + 1)
    yield np.zeros(1, "<i8")
    for ends in shard.length_blocks():
        yield ends.astype("<i8")


def _read_offsets(path: AnyPath) -> Any:
    """Return where documents end; DamageError if it is not a list of offsets."""
    with path.open("rb") as file:
        start = file.read(10)
        array = _ARRAY.fullmatch(file.read(int.from_bytes(start[8:], "little")))
    begin = 10 + int.from_bytes(start[8:], "little")
    if start[:8] != _MAGIC or array is None or begin + 8 * int(array[1]) != path.stat().st_size or not int(array[1]):
        raise DamageError("the file is not a list of offsets as NumPy writes it", place=str(path))
    return open_array(path, np.dtype("<i8"), begin + 8, int(array[1]) - 1)


FORMAT = Torchtitan()
