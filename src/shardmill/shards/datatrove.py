"""datatrove's and nanotron's `.ds` files, each with an index of document ends and a few words of metadata.

Each split has a folder of its own, since their readers take every `.ds` file under the folder that they are given.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards.documents import DocumentOutput, Pair
from shardmill.storage.files import PartialFile, Written


class DatatroveOutput(DocumentOutput):
    """The files of all splits."""

    format = "datatrove"
    longest = (1 << 63) - 1
    length_dtype = np.dtype("<u8")
    cumulative = True

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[Any], eot: str | None, limit: int, tokenizer: str
    ) -> None:
        super().__init__(folder, name, dtype, eot or "after")
        self.limit, self._tokenizer = limit, tokenizer

    def tokens_name(self, split: str, index: int) -> str:
        return f"{split}/{self.name}_{index:06}.ds"

    def lengths_name(self, split: str, index: int) -> str:
        return self.tokens_name(split, index) + ".index"

    def owns(self) -> re.Pattern[str]:
        """The tokens, the index and the metadata."""
        return re.compile(rf"(?:train|val)/{re.escape(self.name)}_\d{{6,}}\.ds(?:\.index|\.metadata)?")

    def complete(self, pair: Pair) -> list[Written]:
        """Both files are as they should be; the metadata are added."""
        name = pair.tokens.name + ".metadata"
        width, tokens = self.dtype.itemsize, pair.token_count
        with closing(PartialFile(self.folder / name, name=name)) as metadata:
            metadata.append(f"{self._tokenizer}|{width}\n{tokens}\n{_for_people(tokens)}".encode())
            return [
                pair.tokens.finish(tokens),
                pair.lengths.finish(0, role="index"),
                metadata.finish(0, role="metadata"),
            ]


def _for_people(tokens: int) -> str:
    """1234567 → `1.23 MT`, as datatrove's own writer says it."""
    power = len(str(tokens)) - 1
    unit = ("", "k", "M", "G", "T", "P", "E")[power // 3]
    return f"{tokens / 10 ** (power // 3 * 3):.{2 - power % 3}f} {unit}T"
