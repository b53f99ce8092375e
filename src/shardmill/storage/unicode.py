"""Valid UTF-8 from any text file: invalid bytes are replaced; a byte order mark shows UTF-16 or UTF-32."""

from __future__ import annotations

import codecs
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from shardmill.core import is_utf8
from shardmill.storage.feeds import STREAM_BLOCK, Scanner

BOM = codecs.BOM_UTF8
REPLACEMENT = "\ufffd".encode()

_FEWEST_PAIRS = 16  # from which on NULs show UTF-16
_PLAIN_PYTHON = 1 << 14
"""Bytes up to which a call of the core costs more than what is done with it."""


def is_valid(data: bytes | NDArray[np.uint8]) -> bool:
    """Whether the bytes are valid UTF-8; checks several gigabytes per second and releases the GIL."""
    if len(data) <= _PLAIN_PYTHON:
        try:
            bytes(data).decode()
        except UnicodeDecodeError:
            return False
        return True
    return is_utf8(data)


def replace_invalid(data: bytes) -> tuple[bytes, int]:
    """Return the bytes with each invalid sequence as U+FFFD, as `bytes.decode` does, and how many there were."""
    if is_valid(data):
        return data, 0
    fixed = data.decode("utf-8", "replace").encode()
    return fixed, fixed.count(REPLACEMENT) - data.count(REPLACEMENT)


def wide_encoding(head: bytes) -> str:
    """Return the encoding that a byte order mark other than UTF-8's shows, or an empty text."""
    # UTF-32's mark begins with UTF-16's, so it is tested first; no UTF-16 text begins with NUL.
    if head[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    return ""


def utf16_without_mark(head: bytes) -> str:
    """Return the encoding of text in which nearly every second byte is NUL, and hardly any other; or an empty text."""
    pairs = len(head) // 2
    if b"\0" not in head or pairs < _FEWEST_PAIRS or wide_encoding(head):
        return ""
    even, odd = head[: 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    for encoding, nuls, others in (("utf-16le", odd, even), ("utf-16be", even, odd)):
        if nuls > 0.6 * pairs and others < 0.1 * pairs:
            return encoding
    return ""


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


# Invalid UTF-16 becomes the single byte FF, which is then replaced and counted like any invalid byte of UTF-8.
codecs.register_error("shardmill.mark", _mark)


def transcoded(raw: Scanner, encoding: str) -> Generator[bytes]:
    """Yield UTF-16 or UTF-32 as blocks of UTF-8, without the byte order mark, but two where another one follows it:
    readers take one away.
    """
    decoder = codecs.getincrementaldecoder(encoding)("shardmill.mark")
    first = True
    # Two bytes of UTF-16 become at most three of UTF-8.
    while block := raw.next(STREAM_BLOCK // 3 * 2):
        if out := decoder.decode(block).encode("utf-8", "surrogateescape"):
            yield BOM + out if first and out.startswith(BOM) else out
            first = False
    if out := decoder.decode(b"", final=True).encode("utf-8", "surrogateescape"):
        yield out
