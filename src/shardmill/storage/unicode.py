"""Valid UTF-8 from whatever a text file holds: what is invalid replaced, UTF-16 and UTF-32 told by their marks."""

from __future__ import annotations

import codecs

import numpy as np
from numpy.typing import NDArray

from shardmill import core
from shardmill.core.reading import is_utf8
from shardmill.storage.compressed import Pull

BOM = codecs.BOM_UTF8
REPLACEMENT = "\ufffd".encode()


SMALL = 1 << 14
"""Bytes up to which an Arrow array costs more than what is done with it."""


def is_valid(data: bytes | NDArray[np.uint8]) -> bool:
    """Whether the bytes are UTF-8, at several gigabytes a second and without the interpreter lock."""
    if len(data) <= SMALL:
        try:
            bytes(data).decode()
        except UnicodeDecodeError:
            return False
        return True
    if core.available():
        return is_utf8(data)
    import pyarrow as pa

    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def replaced(data: bytes) -> tuple[bytes, int]:
    """The bytes with each invalid sequence as U+FFFD, as `bytes.decode` gives it, and how many there were."""
    if is_valid(data):
        return data, 0
    fixed = data.decode("utf-8", "replace").encode()
    return fixed, fixed.count(REPLACEMENT) - data.count(REPLACEMENT)


def cut_character(data: bytes) -> int:
    """How many bytes at the end begin a character that is not whole."""
    for k in range(1, min(3, len(data)) + 1):
        byte = data[-k]
        if byte >= 0xC0:
            return k if k < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            break
    return 0


def wide_encoding(head: bytes) -> str:
    """The encoding that a byte order mark other than UTF-8's shows, or an empty text."""
    # UTF-32's mark begins with UTF-16's; a UTF-16 text whose first character is NUL does not occur.
    if head[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    return ""


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


# What cannot be decoded becomes the one byte FF, so that it is replaced and counted like any invalid byte of UTF-8.
codecs.register_error("shardmill.mark", _mark)


class Transcoded:
    """UTF-16 or UTF-32 in, UTF-8 out; the byte order mark is gone."""

    def __init__(self, raw: Pull, encoding: str) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder(encoding)("shardmill.mark")
        self._ended = False

    def read(self, n: int) -> bytes:
        while not self._ended:
            # Two bytes of UTF-16 become at most three of UTF-8.
            block = self._raw.read(max(4, n // 3 * 2))
            self._ended = not block
            out = self._decoder.decode(block, final=self._ended).encode("utf-8", "surrogateescape")
            if out:
                return out
        return b""

    def stored(self) -> int:
        return self._raw.stored()

    def close(self) -> None:
        self._raw.close()
