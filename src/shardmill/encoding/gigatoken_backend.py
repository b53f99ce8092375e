"""gigatoken: text in memory to ids, a call at a time on the calling thread."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = 1 << 14
"""Bytes of one text below which the plain call is better: it spares 1 ms of awkward, but holds the GIL."""


class GigatokenBackend:
    """A gigatoken tokenizer. Its caches grow with the text and go when it goes."""

    # Its thread pool is slower than one tokenizer in each of our threads: 130-270 MB/s against 390-550 with two.
    def __init__(self, tokenizer: Any) -> None:
        import awkward

        self._tokenizer = tokenizer
        self._array = awkward.Array
        self._contents = awkward.contents
        self._index = awkward.index.Index64

    def rows(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all rows, and where each row's begin and end."""
        if len(offsets) == 2 and offsets[1] - offsets[0] < SMALL:
            ids = self._tokenizer.encode(data[offsets[0] : offsets[1]].tobytes())
            return ids, np.array([0, len(ids)], np.int64)
        characters = self._contents.NumpyArray(data, parameters={"__array__": "char"})
        text = self._contents.ListOffsetArray(self._index(offsets), characters, parameters={"__array__": "string"})
        layout = self._tokenizer.encode_batch(self._array(text), parallel=False).layout
        return np.asarray(layout.content.data), np.asarray(layout.offsets.data)


def of_ranks(ranks: bytes, scheme: str, specials: dict[str, int]) -> GigatokenBackend:
    """From a rank file's text, with the special tokens that it shall find in texts."""
    from gigatoken import Tokenizer

    # gigatoken wants a path, and has read it when it returns; a file for each call needs no clearing at exit.
    with tempfile.TemporaryDirectory(prefix="shardmill-") as folder:
        path = Path(folder) / "ranks.tiktoken"
        path.write_bytes(ranks)
        return GigatokenBackend(Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens=specials))


def of_json(rules: bytes) -> GigatokenBackend:
    """From the text of a tokenizer.json. gigatoken raises what it likes if it does not know these rules."""
    from gigatoken import Tokenizer

    return GigatokenBackend(Tokenizer.from_json(rules))
