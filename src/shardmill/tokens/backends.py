"""The libraries that encode rows of text: the compiled core, gigatoken, and the tokenizer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill import core
from shardmill.byte_search import places
from shardmill.core import CACHE, SCHEMES, Encoder, Model, room
from shardmill.storage import as_file
from shardmill.tokens.found_tokens import TokenNames, normalized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens.schemes import Scheme

CORE_BYTES = -(-CACHE // (2 << 20)) * (2 << 20)
"""What an encoder of the core takes: its cache, in whole huge pages."""
BATCH = 1 << 17
"""Bytes of rows in one call of a tokenizer's own library, which takes a hundred times that in memory."""
MARK = "\x02\x03"
"""Stands behind each row that gigatoken gets, as a special token, so that all rows are one text. No end of it is a
beginning of it: what stands beside it cannot make another one together with a part of it."""


class Backend(Protocol):
    """A library that encodes rows; it may raise anything, PanicException too."""

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all rows, one more after each that means nothing, and where each row begins.

        Row i is data[offsets[i] : offsets[i+1] - gap]. What would come after the last row may be missing.
        """


class ReferenceBackend:
    """The tokenizer's own library. Its calls take many documents, so that threads seldom wait for the GIL."""

    def __init__(self, encode_batch: Callable[[list[str]], Iterable[Sequence[int]]]) -> None:
        self._encode_batch = encode_batch

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ends = (offsets[1:] - gap).tolist()
        begins = offsets[:-1].tolist()
        ids = [np.empty(0, np.uint32)]
        first = 0
        while first < len(begins):
            last = first + 1
            while last < len(ends) and ends[last] - begins[first] <= BATCH:
                last += 1
            texts = [data[begins[i] : ends[i]].tobytes().decode() for i in range(first, last)]
            ids += [np.array([*row, 0], np.uint32) for row in self._encode_batch(texts)]
            first = last
        bounds = np.zeros(len(offsets), np.int64)
        np.cumsum([len(row) for row in ids[1:]], out=bounds[1:])
        return np.concatenate(ids), bounds


def core_knows(scheme: Scheme | None) -> bool:
    """Whether the core is there and splits text by this scheme."""
    return scheme is not None and scheme.name in SCHEMES and core.available()


class CoreBackend:
    """An encoder of the core. All encoders of a tokenizer share its model."""

    def __init__(
        self,
        model: Model,
        dtype: np.dtype[Any],
        names: TokenNames | None = None,
        normalize: Callable[[str], str] | None = None,
    ) -> None:
        """`names`: of tokens that are looked for in texts. `normalize`: brings a text into the normal form C."""
        self._encoder = Encoder(model, dtype=dtype)
        self._room = np.empty(0, dtype)
        self._names, self._normalize = names, normalize

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        split = self._names and self._names.split(data, offsets, gap)
        if split:
            data, offsets = split.data, split.offsets
        if self._normalize:
            data, offsets = normalized(data, offsets, gap, self._normalize)
        ids, bounds = self._encode(data, offsets, gap)
        if split:
            # The place that is free behind each row is that of the token which stands there.
            inside = np.flatnonzero(split.ids >= 0)
            ids[bounds[inside + 1] - 1] = split.ids[inside]
            bounds = np.delete(bounds, inside + 1)
        return ids, bounds

    def _encode(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        # One buffer for all calls: what is handed on is as large as its tokens, not as large as its text.
        if len(self._room) < room(offsets):
            self._room = np.empty(room(offsets), self._encoder.dtype)
        ids, counts = self._encoder.encode(data, offsets, gap, eot=0, where="after", out=self._room)
        bounds = np.zeros(len(offsets), np.int64)
        np.cumsum(counts, out=bounds[1:])
        return ids.copy(), bounds


class GigatokenBackend:
    """A gigatoken tokenizer. Its caches grow with the text and go when it goes."""

    # Its thread pool is slower than one tokenizer in each of our threads: 130-270 MB/s against 390-550 with two. Its
    # way to take many rows leads through awkward arrays and costs a call 0.7 ms with the GIL held; one text costs 4 µs.
    def __init__(self, make: Callable[[dict[str, int]], Any], mark_id: int) -> None:
        """`make` gives a tokenizer that also finds these special tokens; from `mark_id` on, no token has that id."""
        self._tokenizer, self._mark_id = make({MARK: mark_id}), mark_id

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """ValueError where a row holds the mark itself, which is text then."""
        count = len(offsets) - 1
        if count > 1 and not gap:
            text, expected = _joined(data, offsets), count
        else:
            text, expected = data[offsets[0] : offsets[-1] - gap].tobytes(), count - 1
            if count > 1:  # what stands in the gaps stands nowhere else
                text = text.replace(data[offsets[1] - gap : offsets[1]].tobytes(), MARK.encode())
        ids = self._ids(text)
        marks = places(ids >= self._mark_id)
        if len(marks) != expected:
            raise ValueError("a row holds the mark that stands between rows")
        ids[marks] = 0
        bounds = np.full(count + 1, len(ids) + 1, np.int64)
        bounds[0] = 0
        np.add(marks, 1, out=bounds[1 : expected + 1])
        return ids, bounds

    def _ids(self, text: bytes) -> NDArray[np.uint32]:
        # A matrix of one row is never padded; and this is the call that gives an array and lets the GIL go. With a list
        # in place of a BytesSource it would import awkward, a quarter of a second.
        from gigatoken import BytesSource

        matrix, _ = self._tokenizer.encode_batch_padded(BytesSource(text), 0, parallel=False)
        ids: NDArray[np.uint32] = matrix[0]
        return ids


def _joined(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bytes:
    """All rows, with the mark after each."""
    # A tenth of a second, which text as it stands is spared.
    import pyarrow as pa
    import pyarrow.compute as pc

    mark, nothing = pa.scalar(MARK, pa.large_string()), pa.scalar("", pa.large_string())
    rows = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    joined: bytes = pc.binary_join_element_wise(rows, nothing, mark).buffers()[2].to_pybytes()
    return joined


def from_ranks(ranks: bytes, scheme: str, special_tokens: dict[str, int]) -> Any:
    """A tokenizer from a rank file's text, with the special tokens that it shall find in texts."""
    from gigatoken import Tokenizer

    # It wants a path, and has read it when it returns; a file for each call needs no clearing at exit.
    with as_file(ranks) as path:
        return Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens=special_tokens)
