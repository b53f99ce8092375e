"""The compiled core, bound with ctypes, which releases the GIL during every call.

It may be missing: check `available()` first. `SHARDMILL_CORE=0` in the environment turns it off. core.h is its
interface, and docs/core.md explains how it works.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ABI = 4
"""SM_ABI in core.h."""
_LIBRARY = Path(__file__).with_name("_core.so")
_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_UINT64, _UINT8 = ctypes.c_uint64, ctypes.c_uint8

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sm_model_bytes": (_INT64, [_POINTER, _POINTER, _INT64, _INT64, _POINTER]),
    "sm_model_build": (
        _INT64,
        [_POINTER, _INT64, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT32, _INT32],
    ),
    "sm_ranks": (_INT64, [_POINTER, _INT64, _POINTER, _POINTER, _INT64]),
    "sm_encoder_least": (_INT64, []),
    "sm_encoder_build": (_INT64, [_POINTER, _INT64, _POINTER, _INT32, _INT32]),
    "sm_encode": (
        _INT64,
        [
            *[_POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT64, _INT64, _INT32],
            *[_POINTER, _INT64, _POINTER, _POINTER],
        ],
    ),
    "sm_not_normal": (_INT64, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _POINTER]),
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
    "sm_texts": (_INT64, [_POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER]),
    "sm_gather": (_INT64, [_POINTER, _INT64, _POINTER, _POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT64]),
    "sm_snappy": (_INT64, [_POINTER, _INT64, _POINTER, _INT64]),
}
"""Result and arguments of each function, as in core.h."""


@functools.cache
def why_not() -> str:
    """Return why the core cannot be used, in a few words; empty if it can."""
    if os.environ.get("SHARDMILL_CORE") == "0":
        return "turned off by SHARDMILL_CORE=0"
    if not _LIBRARY.exists():
        return "not built: there was no C compiler at installation"
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        return f"it cannot be loaded: {error}"
    if library.sm_abi() != ABI:
        return "it was built from other sources: install again"
    return ""


def available() -> bool:
    """Return whether the core can be used here."""
    return not why_not()


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library with its functions declared; call only if `available()`."""
    loaded = ctypes.CDLL(str(_LIBRARY))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


# After the binding, since all of these use it.
from shardmill.core.encoding import CACHE, SCHEMES, Encoder, Model, merge_rows, parse_ranks, room  # noqa: E402
from shardmill.core.reading import (  # noqa: E402
    BLANK,
    LEFT,
    TAKEN,
    JsonLines,
    content_hash,
    find,
    find_texts,
    gather,
    is_utf8,
    json_lines,
    not_normal,
    snappy,
)

__all__ = [
    "ABI",
    "BLANK",
    "CACHE",
    "LEFT",
    "SCHEMES",
    "TAKEN",
    "Encoder",
    "JsonLines",
    "Model",
    "available",
    "content_hash",
    "find",
    "find_texts",
    "gather",
    "is_utf8",
    "json_lines",
    "library",
    "merge_rows",
    "not_normal",
    "parse_ranks",
    "room",
    "snappy",
    "why_not",
]
