"""The compiled core, bound with ctypes, which releases the interpreter's lock during every call.

It may be missing: ask `available()` first. `SHARDMILL_CORE=0` in the environment turns it off. core.h is what it
offers, docs/core.md says how it works.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

ABI = 1
"""SM_ABI in core.h."""
_LIBRARY = Path(__file__).with_name("_core.so")
_HUGE = 2 << 20
_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_UINT64, _UINT8 = ctypes.c_uint64, ctypes.c_uint8

_ENCODING: dict[str, tuple[Any, list[Any]]] = {
    "sm_model_bytes": (_INT64, [_POINTER, _POINTER, _INT64, _INT64, _POINTER]),
    "sm_model_build": (
        _INT64,
        [_POINTER, _INT64, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT32, _INT32],
    ),
    "sm_encoder_least": (_INT64, []),
    "sm_encoder_build": (_INT64, [_POINTER, _INT64, _POINTER, _INT32, _INT32]),
    "sm_encode": (
        _INT64,
        [
            *[_POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT64, _INT64, _INT32],
            *[_POINTER, _INT64, _POINTER, _POINTER],
        ],
    ),
}
"""Result and arguments of each function, as in core.h."""
_READING: dict[str, tuple[Any, list[Any]]] = {
    "sm_utf8_valid": (_INT32, [_POINTER, _INT64, _INT32]),
    "sm_count": (_INT64, [_POINTER, _INT64, _UINT8, _INT32]),
    "sm_find": (_INT64, [_POINTER, _INT64, _POINTER, _INT64, _POINTER, _INT64, _INT32]),
    "sm_content_hash": (_INT32, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _UINT64, _POINTER]),
    "sm_json_lines": (
        _INT64,
        [
            *[_POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER, _INT64],
            *[_POINTER, _POINTER, _POINTER, _INT64, _INT32],
        ],
    ),
}

_ERRORS = {
    -1: "an argument is out of range",
    -2: "a buffer is too small",
    -3: "the vocabulary lacks a byte, or has too many tokens or too long ones",
    -4: "a stretch of text that must be encoded as one is too long",
}


class CoreError(RuntimeError):
    """The core refused a call."""


@functools.cache
def why_not() -> str:
    """Why the core cannot be used, in a few words; empty if it can."""
    if os.environ.get("SHARDMILL_CORE") == "0":
        return "turned off by SHARDMILL_CORE=0"
    if not _LIBRARY.exists():
        return "not built: there was no C compiler at installation"
    try:
        loaded = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        return f"it cannot be loaded: {error}"
    if loaded.sm_abi() != ABI:
        return "it was built from other sources: install again"
    return ""


def available() -> bool:
    """Whether the core can be used here."""
    return not why_not()


@functools.cache
def library() -> ctypes.CDLL:
    if not available():
        raise CoreError(f"the compiled core is not there: {why_not()}")
    loaded = ctypes.CDLL(str(_LIBRARY))
    for name, (result, arguments) in (_ENCODING | _READING).items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def _checked(result: int) -> int:
    if result < 0:
        raise CoreError(_ERRORS.get(result, f"error {result}"))
    return result


def _memory(size: int) -> NDArray[np.uint8]:
    """Memory of its own that begins at a page, in huge pages if the system has them: a look-up then costs half."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}  # what is shared gets no huge pages
    area = mmap.mmap(-1, size + 2 * _HUGE, **private)
    if size > _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # Not every kernel has them, and nothing depends on them.
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, np.uint8)
    begin = -whole.ctypes.data % _HUGE
    return whole[begin : begin + size]


# ---- Encoding

SCHEMES = ("gpt2", "cl100k", "llama3", "qwen2", "qwen3.5", "o200k", "tekken")
"""Split patterns, in the order of core.h."""


class Model:
    """The tables of one tokenizer: immutable, and shared by the encoders of all threads.

    tokens: the bytes of every id, empty where there is none. merges: None if any two neighbours merge that are together
    a token, the lowest id first; else rows of (left, right, result) in the order in which they merge.
    whole_first: a piece that is a token is that token, whatever merging gives. CoreError if the core cannot do it.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        scheme: str,
        merges: NDArray[np.uint32] | None = None,
        *,
        whole_first: bool = True,
    ) -> None:
        text = np.frombuffer(b"".join(tokens) or b"\0", np.uint8)
        offsets = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=offsets[1:])
        if merges is not None:
            merges = np.ascontiguousarray(merges, np.uint32).reshape(-1, 3)
        merge_count = -1 if merges is None else len(merges)
        vocabulary = (text.ctypes.data, offsets.ctypes.data, len(tokens))
        scratch_size = ctypes.c_int64()
        functions = library()
        size = _checked(functions.sm_model_bytes(*vocabulary, merge_count, ctypes.addressof(scratch_size)))
        self._memory, scratch = _memory(size), _memory(scratch_size.value)
        self.address = self._memory.ctypes.data
        table = None if merges is None else merges.ctypes.data
        self.bytes = _checked(
            functions.sm_model_build(
                *(self.address, size, scratch.ctypes.data, scratch.size),
                *(*vocabulary, table, merge_count, SCHEMES.index(scheme), whole_first),
            )
        )
        """Memory that it takes."""


def merge_rows(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> NDArray[np.uint32]:
    """The merges of a tokenizer.json as a `Model` takes them. KeyError if one makes what is no token.

    Of a pair that is listed twice the last place counts, as it does in `tokenizers`.
    """
    ids = vocabulary.__getitem__
    last = {(ids(left), ids(right)): (rank, ids(left + right)) for rank, (left, right) in enumerate(merges)}
    ordered = sorted((rank, *pair, result) for pair, (rank, result) in last.items())
    return np.array(ordered, np.uint32).reshape(-1, 4)[:, 1:]


class Encoder:
    """Encodes rows with a model. Not for two threads at once. Takes `bytes` of memory, at most `cache_bytes`, for ever.

    dtype: uint16 or uint32, of its ids. simd=False keeps to plain C, which gives the same ids.
    """

    def __init__(self, model: Model, cache_bytes: int = 16 << 20, dtype: Any = np.uint16, *, simd: bool = True) -> None:
        functions = library()
        self.model, self.dtype = model, np.dtype(dtype)
        self._memory = _memory(max(cache_bytes, functions.sm_encoder_least()))
        self._address = self._memory.ctypes.data
        wide = self.dtype.itemsize == 4
        self.bytes = _checked(functions.sm_encoder_build(self._address, self._memory.size, model.address, wide, simd))
        """Memory that it takes."""
        self._encode = functions.sm_encode

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
        """The ids of all rows data[offsets[i] : offsets[i+1] - gap], and how many each has, EOT included.

        The text must be valid UTF-8. `out`: memory for `room()` ids; what is returned is then a part of it.
        """
        rows = len(offsets) - 1
        if out is None:
            out = np.empty(room(offsets), self.dtype)
        counts, done = np.empty(rows, np.int64), ctypes.c_int64()
        offsets = np.ascontiguousarray(offsets, np.int64)
        written = _checked(
            self._encode(
                *(self._address, data.ctypes.data, data.size, offsets.ctypes.data, rows, gap),
                *(-1 if eot is None else eot, where == "before"),
                *(out.ctypes.data, out.size, counts.ctypes.data, ctypes.addressof(done)),
            )
        )
        if done.value < rows:
            raise CoreError(_ERRORS[-2])
        return out[:written], counts


def room(offsets: NDArray[np.int64]) -> int:
    """How many ids the rows with these offsets can become at most, and what the core needs beyond."""
    return int(offsets[-1] - offsets[0]) + len(offsets) + 16


# ---- Reading
