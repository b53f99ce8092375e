"""The compiled core, bound with ctypes, which releases the GIL during every call.

core.h is its interface, and docs/dev/core.md explains how it works.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from shardmill.errors import ShardmillError

ABI = 11
"""SM_ABI in core.h."""
_LIBRARY = Path(__file__).with_name("_core.so")
_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_UINT64, _UINT32, _UINT8 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint8

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
    "sm_encode_open": (
        _INT64,
        [_POINTER, _POINTER, _INT64, _INT32, _INT32, _POINTER, _POINTER, _INT64, _POINTER],
    ),
    "sm_deal": (
        _INT32,
        [
            *[_POINTER, _INT64, _INT32, _POINTER, _POINTER, _INT64, _POINTER, _POINTER],
            *[_UINT32, _INT32, _POINTER, _INT64, _INT64],
        ],
    ),
    "sm_not_normal": (_INT64, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _POINTER]),
    "sm_utf8_valid": (_INT32, [_POINTER, _INT64, _INT32]),
    "sm_count": (_INT64, [_POINTER, _INT64, _UINT8, _INT32]),
    "sm_find": (_INT64, [_POINTER, _INT64, _POINTER, _INT64, _POINTER, _INT64, _INT32]),
    "sm_odd": (_INT64, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER, _INT32]),
    "sm_content_hash": (_INT32, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _UINT64, _POINTER]),
    "sm_json_lines": (
        _INT64,
        [
            *[_POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER, _INT64],
            *[_POINTER, _POINTER, _POINTER, _INT64, _INT32],
        ],
    ),
    "sm_gather": (_INT64, [_POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER, _INT64]),
    "sm_read_parts": (_INT64, [_INT32, _POINTER, _POINTER, _POINTER, _INT64, _POINTER, _INT64]),
}
"""Result and arguments of each function, as in core.h."""


_ERRORS = {
    -1: "an argument is out of range",
    -2: "a buffer is too small",
    -3: "the vocabulary lacks a byte, or has too many tokens or too long ones",
    -4: "a stretch of text that must be encoded as one is too long",
    -5: "a file cannot be read",
}


class CoreError(ShardmillError):
    """The core refused a call, or is not there."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library with its functions declared. CoreError if it cannot be loaded."""
    hint = "install shardmill again; in a source tree: make core"
    try:
        loaded = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        why = f"cannot be loaded: {error}" if _LIBRARY.exists() else "is missing"
        raise CoreError(f"the compiled core {why}", place=str(_LIBRARY), hint=hint) from None
    if loaded.sm_abi() != ABI:
        raise CoreError("the compiled core was built from other sources", place=str(_LIBRARY), hint=hint)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def checked(result: int) -> int:
    """Return the result of a call. CoreError if it is an error."""
    if result < 0:
        raise CoreError(_ERRORS.get(result, f"error {result} of the core"))
    return result


# After the binding, since all of these use it.
from shardmill.core.encoding import (  # noqa: E402
    CACHE,
    SCHEMES,
    Certain,
    Encoder,
    Follows,
    Model,
    deal,
    merge_rows,
    parse_ranks,
    room,
)
from shardmill.core.reading import (  # noqa: E402
    BLANK,
    LEFT,
    ODD_KINDS,
    TAKEN,
    JsonLines,
    content_hash,
    count,
    find,
    gathered,
    is_utf8,
    json_lines,
    not_normal,
    odd_counts,
    read_parts,
)

__all__ = [
    "ABI",
    "BLANK",
    "CACHE",
    "LEFT",
    "ODD_KINDS",
    "SCHEMES",
    "TAKEN",
    "Certain",
    "CoreError",
    "Encoder",
    "Follows",
    "JsonLines",
    "Model",
    "checked",
    "content_hash",
    "count",
    "deal",
    "find",
    "gathered",
    "is_utf8",
    "json_lines",
    "library",
    "merge_rows",
    "not_normal",
    "odd_counts",
    "parse_ranks",
    "read_parts",
    "room",
]
