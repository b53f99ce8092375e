"""What encodes rows of text: the compiled core, or the tokenizer's own library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardmill.core import CACHE, SCHEMES, Certain, Encoder, Follows, Model, room
from shardmill.tokens.found_tokens import TokenNames, normalized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens.schemes import Scheme

CORE_BYTES = -(-CACHE // (2 << 20)) * (2 << 20)
"""Memory of an encoder of the core: its cache, in whole huge pages."""
LIBRARY_BYTES = 48 << 20
"""Memory of a library for one worker: a hundred times the text of a call, and what its allocator keeps."""
BATCH = 1 << 17
"""Bytes of rows in one call of a tokenizer's own library."""


class Backend(Protocol):
    """Encodes rows; it may raise anything, so calls go through `library_errors`."""

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the ids of all rows, each followed by one meaningless id, and where each row begins.

        Row i is data[offsets[i] : offsets[i+1] - gap]. The ids may be overwritten by the next call.
        """

    def encode_open(self, text: bytes, state: int, follows: Follows, *, last: bool) -> Certain:
        """Encode the beginning of a text as far as its tokens are certain, as `Encoder.encode_open` does."""


class LibraryError(Exception):
    """A library could not encode; the message is its own."""


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
        raise LibraryError(f"a panic of the library: {error}") from None


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
        bounds = np.zeros(len(offsets), np.int64)
        first = 0
        while first < len(begins):
            last = first + 1
            while last < len(ends) and ends[last] - begins[first] <= BATCH:
                last += 1
            texts = [data[begins[i] : ends[i]].tobytes().decode() for i in range(first, last)]
            encoded = [[*row, 0] for row in self._encode_batch(texts)]
            bounds[first + 1 : last + 1] = [len(row) for row in encoded]
            ids.append(np.fromiter(chain.from_iterable(encoded), np.uint32))
            first = last
        return np.concatenate(ids), np.cumsum(bounds)

    def encode_open(self, text: bytes, state: int, follows: Follows, *, last: bool) -> Certain:
        """Return nothing: a library does not say what is certain."""
        return Certain(np.empty(0, np.uint32), 0, 0)


def core_knows(scheme: Scheme | None) -> bool:
    """Return whether the core splits text by this scheme."""
    return scheme is not None and scheme.name in SCHEMES


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

    def encode_open(self, text: bytes, state: int, follows: Follows, *, last: bool) -> Certain:
        return self._encoder.encode_open(text, state, follows, last=last)

    def _encode(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        # One buffer for all calls: a new one would be as large as the text.
        if len(self._room) < room(offsets):
            self._room = np.empty(room(offsets), self._encoder.dtype)
        ids, counts = self._encoder.encode(data, offsets, gap, eot=0, where="after", out=self._room)
        bounds = np.zeros(len(offsets), np.int64)
        np.cumsum(counts, out=bounds[1:])
        return ids, bounds
