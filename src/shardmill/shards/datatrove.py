"""datatrove's and nanotron's `.ds` files, each with an index of document ends and a few words of metadata.

Each split has a folder of its own, since their readers take every `.ds` file under the folder that they are given.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.format import Format, Recognised, recognised
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath, open_array

if TYPE_CHECKING:
    from shardmill.shards.writer import Shard
    from shardmill.storage import Written


class Datatrove(Format):
    name, eot, indexed, cumulative = "datatrove", "after", True, True
    stem, endings = "{split}/{name}_{index:06}", (".ds", ".ds.index", ".ds.metadata")

    def complete(self, shard: Shard) -> list[Written]:
        """Both files are as they should be; the metadata are added."""
        tokens, width = shard.token_count, shard.dtype.itemsize
        metadata = f"{shard.settings.tokenizer}|{width}\n{tokens}\n{_abbreviated(tokens)}".encode()
        return [
            shard.tokens.finish(tokens),
            shard.lengths.finish(0, role="index"),
            shard.write(".ds.metadata", [metadata], role="metadata"),
        ]

    def index(self, tokens: TokenFiles) -> EndsIndex:
        paths = [_beside(file.path, ".index") for file in tokens.files]
        counts = [path.stat().st_size // 8 for path in paths]

        @lru_cache(4)
        def ends(i: int) -> Any:
            return open_array(paths[i], np.dtype("<u8"), 0, counts[i])

        return EndsIndex(tokens, counts, ends)

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".ds":
            return None
        metadata = _beside(path, ".metadata")
        lines = metadata.read_bytes()[:4096].split(b"\n") if metadata.exists() else []
        if len(lines) < 2 or lines[0][-2:] not in (b"|2", b"|4") or not lines[1].isdigit():
            raise DamageError("the file's metadata are missing or damaged", place=str(metadata))
        return recognised(np.dtype(f"<u{lines[0][-1:].decode()}"), TokenFile(path, int(lines[1])))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * width + 8 * documents + 30 * (tokens // shard_tokens + 2)


def _beside(path: AnyPath, ending: str) -> AnyPath:
    return path.with_name(path.name + ending)


def _abbreviated(tokens: int) -> str:
    """1234567 → `1.23 MT`, as datatrove's own writer has it."""
    power = len(str(tokens)) - 1
    unit = ("", "k", "M", "G", "T", "P", "E")[power // 3]
    return f"{tokens / 10 ** (power // 3 * 3):.{2 - power % 3}f} {unit}T"


FORMAT = Datatrove()
