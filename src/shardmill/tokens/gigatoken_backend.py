"""gigatoken: text in memory to ids, a call at a time on the calling thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.byte_search import places
from shardmill.storage import as_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARK = "\x02\x03"
"""Stands behind each row, as a special token, so that all rows are one text. No end of it is a beginning of it: what
stands beside it cannot make another one together with a part of it."""


class GigatokenBackend:
    """A gigatoken tokenizer. Its caches grow with the text and go when it goes."""

    # Its thread pool is slower than one tokenizer in each of our threads: 130-270 MB/s against 390-550 with two. Its
    # way to take many rows leads through awkward arrays and costs a call 0.7 ms with the GIL held; one text costs 4 µs.
    def __init__(self, make: Callable[[dict[str, int]], Any], mark_id: int, separator: bytes = b"") -> None:
        """`make` gives a tokenizer that also finds these special tokens; from `mark_id` on, no token has that id.

        `separator`: what stands in the gaps between rows, when there are any.
        """
        self._make = make
        self._mark_id = mark_id
        self._marked = make({MARK: mark_id} | ({separator.decode(): mark_id + 1} if separator else {}))
        self._plain: Any = None

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all rows, one more after each that means nothing, and where each row begins.

        Row i is data[offsets[i] : offsets[i+1] - gap]. What would come after the last row may be missing.
        """
        count = len(offsets) - 1
        if count > 1 and not gap:
            text, expected = _joined(data, offsets), count
        else:
            last = min(int(offsets[-1]), len(data))
            text = _bytes(data, int(offsets[0]), last)
            expected = count if gap and last == offsets[-1] else count - 1
        ids = _ids(self._marked, text)
        marks = places(ids >= self._mark_id)
        if len(marks) != expected:
            return self._one_by_one(data, offsets, gap)
        ids[marks] = 0
        bounds = np.full(count + 1, len(ids) + 1, np.int64)
        bounds[0] = 0
        np.add(marks, 1, out=bounds[1 : expected + 1])
        return ids, bounds

    def _one_by_one(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The same for rows that hold the mark or the separator themselves, which must stay text."""
        if self._plain is None:
            self._plain = self._make({})
        ends = offsets.tolist()
        place = np.zeros(1, np.uint32)
        parts: list[NDArray[np.uint32]] = []
        bounds = np.zeros(len(offsets), np.int64)
        for row, (begin, end) in enumerate(itertools.pairwise(ends)):
            ids = _ids(self._plain, data[begin : end - gap].tobytes())
            parts += [ids, place]
            bounds[row + 1] = bounds[row] + len(ids) + 1
        return np.concatenate(parts), bounds


def _ids(tokenizer: Any, text: bytes) -> NDArray[np.uint32]:
    # A matrix of one row is never padded; and this is the call that gives an array and lets the GIL go. With a list in
    # place of a BytesSource it would import awkward, a quarter of a second.
    from gigatoken import BytesSource

    matrix, _ = tokenizer.encode_batch_padded(BytesSource(text), 0, parallel=False)
    ids: NDArray[np.uint32] = matrix[0]
    return ids


def _bytes(data: NDArray[np.uint8], first: int, last: int) -> bytes:
    """A part of the data; if it is all of the bytes that a file gave, these themselves."""
    whole: object = data.base
    if isinstance(whole, bytes) and len(whole) == len(data) == last - first:
        return whole
    return data[first:last].tobytes()


def _joined(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bytes:
    """All rows, with the mark after each."""
    # A tenth of a second, which text as it stands is spared.
    import pyarrow as pa
    import pyarrow.compute as pc

    mark, nothing = pa.scalar(MARK, pa.large_string()), pa.scalar("", pa.large_string())
    rows = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    joined: bytes = pc.binary_join_element_wise(rows, nothing, mark).buffers()[2].to_pybytes()
    return joined


def of_ranks(
    ranks: bytes, scheme: str, specials: dict[str, int], mark_id: int, separator: bytes = b""
) -> GigatokenBackend:
    """From a rank file's text, with the special tokens that it shall find in texts."""
    from gigatoken import Tokenizer

    def make(more: dict[str, int]) -> Any:
        # gigatoken wants a path, and has read it when it returns; a file for each call needs no clearing at exit.
        with as_file(ranks) as path:
            return Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens={**specials, **more})

    return GigatokenBackend(make, mark_id, separator)


def of_json(rules: Callable[[dict[str, int]], bytes], mark_id: int) -> GigatokenBackend:
    """From the text of a tokenizer.json, given the special tokens that it shall have besides.

    gigatoken raises what it likes if it does not know these rules.
    """
    from gigatoken import Tokenizer

    return GigatokenBackend(lambda more: Tokenizer.from_json(rules(more)), mark_id)
