"""Rows of text to ids with the compiled core, and ids to splits."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from shardmill.core import CoreError, checked, library

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

CACHE = (18 << 20) + (1 << 19)
"""Default size of an encoder: 2^19 slots, an eighth of that for long pieces, and its working space."""
_HUGE = 2 << 20
_MOST = 1 << 20  # ids; the core takes fewer


def _memory(size: int) -> NDArray[np.uint8]:
    """Allocate memory at a page border, in huge pages if the system has them: a look-up then costs half."""
    # Shared memory gets no huge pages. Windows has no such choice.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    area = mmap.mmap(-1, size + 2 * _HUGE, **private)
    if size > _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # Not every kernel has them, and nothing depends on them.
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, np.uint8)
    begin = -whole.ctypes.data % _HUGE
    return whole[begin : begin + size]


SCHEMES = ("gpt2", "cl100k", "llama3", "qwen2", "qwen3.5", "o200k", "tekken", "deepseek-v3")
"""Split patterns, in the order of core.h."""


class Tokens(NamedTuple):
    """The bytes of every id: text[offsets[i] : offsets[i+1]], empty where there is none."""

    text: NDArray[np.uint8]
    offsets: NDArray[np.int64]


def pack(tokens: Sequence[bytes]) -> Tokens:
    """Join the bytes of every id."""
    offsets = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=offsets[1:])
    return Tokens(np.frombuffer(b"".join(tokens) or b"\0", np.uint8), offsets)


def parse_ranks(file: bytes) -> Tokens:
    """Return the tokens of a rank file. CoreError unless ranks are in order and no line is blank."""
    source = np.frombuffer(file or b"\0", np.uint8)
    text, offsets = np.empty(len(source), np.uint8), np.empty(_MOST + 1, np.int64)
    count = checked(library().sm_ranks(source.ctypes.data, len(file), text.ctypes.data, offsets.ctypes.data, _MOST))
    return Tokens(text[: offsets[count]], offsets[: count + 1])


class Model:
    """The tables of one tokenizer: immutable, and shared by the encoders of all threads.

    tokens: the bytes of every id, empty where there is none. merges: None if any two neighbours merge that together are
    a token, the lowest id first; else rows of (left, right, result) in the order in which they merge.
    whole_first: a piece that is a token becomes that token, whatever merging gives. CoreError if the core cannot do it.
    """

    def __init__(
        self,
        tokens: Sequence[bytes] | Tokens,
        scheme: str,
        merges: NDArray[np.uint32] | None = None,
        *,
        whole_first: bool = True,
    ) -> None:
        text, offsets = tokens if isinstance(tokens, Tokens) else pack(tokens)
        if merges is not None:
            merges = np.ascontiguousarray(merges, np.uint32).reshape(-1, 3)
        merge_count = -1 if merges is None else len(merges)
        vocabulary = (text.ctypes.data, offsets.ctypes.data, len(offsets) - 1)
        scratch_size = ctypes.c_int64()
        core = library()
        size = checked(core.sm_model_bytes(*vocabulary, merge_count, ctypes.addressof(scratch_size)))
        self._memory, scratch = _memory(size), _memory(scratch_size.value)
        self.address = self._memory.ctypes.data
        table = None if merges is None else merges.ctypes.data
        self.bytes = checked(
            core.sm_model_build(
                *(self.address, size, scratch.ctypes.data, scratch.size),
                *(*vocabulary, table, merge_count, SCHEMES.index(scheme), whole_first),
            )
        )
        """Memory that it takes."""


def merge_rows(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> NDArray[np.uint32]:
    """Return the merges of a tokenizer.json as a `Model` takes them. KeyError if a result is no token.

    If a pair is listed twice the last one counts, as in `tokenizers`.
    """
    ids = vocabulary.__getitem__
    last = {(ids(left), ids(right)): (rank, ids(left + right)) for rank, (left, right) in enumerate(merges)}
    ordered = sorted((rank, *pair, result) for pair, (rank, result) in last.items())
    return np.array(ordered, np.uint32).reshape(-1, 4)[:, 1:]


class Follows(IntEnum):
    """What ends the white space at the end of a part of a text, as in core.h."""

    UNKNOWN = 0
    LINE_END = 1
    OTHER = 2
    TEXT_END = 3


class Certain(NamedTuple):
    """What is certain of a text that goes on."""

    ids: NDArray[Any]
    size: int
    """Bytes of the text that the ids stand for."""
    state: int
    """To be passed with the rest of the text; 0: the rest is encoded as a text of its own."""


class Encoder:
    """Encodes rows with a model, for one thread at a time. It takes `bytes` of memory, at most `cache_bytes`.

    dtype: of its ids, uint16 or uint32. simd=False uses plain C only, which gives the same ids.
    """

    def __init__(self, model: Model, cache_bytes: int = CACHE, dtype: Any = np.uint16, *, simd: bool = True) -> None:
        core = library()
        self.model, self.dtype = model, np.dtype(dtype)
        self._memory = _memory(max(cache_bytes, core.sm_encoder_least()))
        self._address = self._memory.ctypes.data
        wide = self.dtype.itemsize == 4
        self.bytes = checked(core.sm_encoder_build(self._address, self._memory.size, model.address, wide, simd))
        """Memory that it takes."""
        self._encode = core.sm_encode

    def encode(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        gap: int = 0,
        *,
        eot: int | None = None,
        where: Literal["after", "before"] = "after",
        out: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the ids of all rows data[offsets[i] : offsets[i+1] - gap], and how many each has, EOT included.

        The text must be valid UTF-8. `out`: memory for `room()` ids; the returned ids are then a part of it.
        """
        rows = len(offsets) - 1
        if out is None:
            out = np.empty(room(offsets), self.dtype)
        if out.dtype != self.dtype or not out.flags.c_contiguous:
            raise CoreError("`out` has another type, or its ids are not next to each other")
        counts, done = np.empty(rows, np.int64), ctypes.c_int64()
        data, offsets = np.ascontiguousarray(data, np.uint8), np.ascontiguousarray(offsets, np.int64)
        written = checked(
            self._encode(
                *(self._address, data.ctypes.data, data.size, offsets.ctypes.data, rows, gap),
                *(-1 if eot is None else eot, where == "before"),
                *(out.ctypes.data, out.size, counts.ctypes.data, ctypes.addressof(done)),
            )
        )
        if done.value < rows:
            raise CoreError("the buffer for ids is too small")
        return out[:written], counts

    def encode_open(
        self, text: bytes, state: int = 0, follows: Follows = Follows.UNKNOWN, *, last: bool = False
    ) -> Certain:
        """Encode the beginning of a text, as far as the ids are certain whatever comes after it; all of it if `last`.

        `state`: 0 at the beginning of the text, then what the call before returned.
        """
        ids, size = np.empty(len(text) + 16, self.dtype), ctypes.c_int64()
        new_state = ctypes.c_int32(state)
        written = checked(
            library().sm_encode_open(
                *(self._address, text, len(text), last, follows, ctypes.addressof(new_state)),
                *(ids.ctypes.data, ids.size, ctypes.addressof(size)),
            )
        )
        return Certain(ids[:written].copy(), size.value, new_state.value)


def room(offsets: NDArray[np.int64]) -> int:
    """Return for how many ids there must be room to encode rows with these offsets."""
    return int(offsets[-1] - offsets[0]) + len(offsets) + 16


def deal(
    ids: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    marks: NDArray[np.bool_],
    second: NDArray[np.bool_],
    eot: int,
    *,
    before: bool,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Copy the rows ids[starts[i] : starts[i] + lengths[i]] to two splits, with `eot` after or before the marked ones.

    `second`: the rows of the second split.
    """
    sizes = lengths + marks
    total, in_second = int(sizes.sum()), int(sizes[second].sum())
    out = np.empty(total, ids.dtype)
    ids, starts, lengths = np.ascontiguousarray(ids), np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
    marks, second = np.ascontiguousarray(marks), np.ascontiguousarray(second)
    checked(
        library().sm_deal(
            *(ids.ctypes.data, len(ids), ids.itemsize == 4, starts.ctypes.data, lengths.ctypes.data, len(lengths)),
            *(marks.ctypes.data, second.ctypes.data, eot, before, out.ctypes.data, total - in_second, total),
        )
    )
    return out[: total - in_second], out[total - in_second :]
