"""The libraries that encode rows of text: the compiled core, gigatoken, and the tokenizer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill import core
from shardmill.byte_search import sparse_nonzero
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
"""A special token that follows each row for gigatoken, so that all rows are one text. No suffix of it is a prefix of
it, so a part of it and the text beside it can never form another one."""


class Backend(Protocol):
    """A library that encodes rows; it may raise anything, so calls go through `library_errors`."""

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the ids of all rows, each followed by one meaningless id, and where each row begins.

        Row i is data[offsets[i] : offsets[i+1] - gap]. The id after the last row may be missing.
        """


class LibraryError(Exception):
    """A library could not encode; the message is its own."""

    panic = False
    """It is a Rust library, and its state is unknown now."""


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn whatever a library raises into LibraryError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        raise LibraryError(f"{type(error).__name__}: {error}") from None
    except BaseException as error:
        # A Rust panic is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        failure = LibraryError(f"a panic of the library: {error}")
        failure.panic = True
        raise failure from None


class ReferenceBackend:
    """The tokenizer's own library. A call takes many documents, so that threads rarely wait for the GIL."""

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
    """Return whether the core is available and splits text by this scheme."""
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
        """`names`: of tokens that are found in texts. `normalize`: brings a text into Unicode's normal form C."""
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
            # The free place after each row is for the token that was found there.
            inside = np.flatnonzero(split.ids >= 0)
            ids[bounds[inside + 1] - 1] = split.ids[inside]
            bounds = np.delete(bounds, inside + 1)
        return ids, bounds

    def _encode(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        # One buffer for all calls; what is returned is as large as its tokens, not as large as its text.
        if len(self._room) < room(offsets):
            self._room = np.empty(room(offsets), self._encoder.dtype)
        ids, counts = self._encoder.encode(data, offsets, gap, eot=0, where="after", out=self._room)
        bounds = np.zeros(len(offsets), np.int64)
        np.cumsum(counts, out=bounds[1:])
        return ids.copy(), bounds


class GigatokenBackend:
    """A gigatoken tokenizer. Its caches grow with the text, until it is deleted."""

    # Its thread pool is slower than one tokenizer in each of our threads: 130-270 MB/s against 390-550 with two. Its
    # call for many rows goes through awkward arrays and takes 0.7 ms with the GIL held; that for one text takes 4 µs.
    def __init__(self, make: Callable[[dict[str, int]], Any], mark_id: int) -> None:
        """`make` returns a tokenizer that also finds the given special tokens; no token has an id from `mark_id` on."""
        self._tokenizer, self._mark_id = make({MARK: mark_id}), mark_id

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Raise ValueError if a row contains the mark itself, which is then text."""
        count = len(offsets) - 1
        if count > 1 and not gap:
            text, expected = _joined(data, offsets), count
        else:
            text, expected = data[offsets[0] : offsets[-1] - gap].tobytes(), count - 1
            if count > 1:  # what is in the gaps occurs nowhere else
                text = text.replace(data[offsets[1] - gap : offsets[1]].tobytes(), MARK.encode())
        ids = self._ids(text)
        marks = sparse_nonzero(ids >= self._mark_id)
        if len(marks) != expected:
            raise ValueError("a row contains the mark that separates rows")
        ids[marks] = 0
        bounds = np.full(count + 1, len(ids) + 1, np.int64)
        bounds[0] = 0
        np.add(marks, 1, out=bounds[1 : expected + 1])
        return ids, bounds

    def _ids(self, text: bytes) -> NDArray[np.uint32]:
        # This call returns an array and releases the GIL, and a matrix of one row is never padded. With a list in place
        # of a BytesSource it would import awkward, which takes a quarter of a second.
        from gigatoken import BytesSource

        matrix, _ = self._tokenizer.encode_batch_padded(BytesSource(text), 0, parallel=False)
        ids: NDArray[np.uint32] = matrix[0]
        return ids


def _joined(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bytes:
    """Return all rows, with the mark after each."""
    # Imported here since it takes a tenth of a second, and text with gaps does not need it.
    import pyarrow as pa
    import pyarrow.compute as pc

    mark, nothing = pa.scalar(MARK, pa.large_string()), pa.scalar("", pa.large_string())
    rows = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    joined: bytes = pc.binary_join_element_wise(rows, nothing, mark).buffers()[2].to_pybytes()
    return joined


def gigatoken_from_ranks(ranks: bytes, scheme: str, special_tokens: dict[str, int]) -> Any:
    """Make a gigatoken tokenizer from a rank file's text, with the special tokens that it shall find in texts."""
    from gigatoken import Tokenizer

    # It wants a path, and has read the file when it returns.
    with as_file(ranks) as path:
        return Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens=special_tokens)
