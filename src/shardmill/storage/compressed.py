"""Compressed bytes in, text bytes out, in blocks of bounded size; a damaged stream is an error with its place."""

from __future__ import annotations

import bz2
import lzma
import sys
from collections.abc import Callable, Generator
from typing import Any

from shardmill.errors import SourceError
from shardmill.storage.feeds import STREAM_BLOCK, Scanner

# Small enough that the copies which decompressors make of unread input stay in the cache.
INPUT_BLOCK = 1 << 16
# xz -9 needs 65 MB; a header may ask for 4 GB.
XZ_MEMORY = 160 << 20
_LZMA2 = 0x21
_HEADER = 64  # bytes that are enough to know a member and its window, if there are so many


# The first bytes of each.
_FIRST = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
COMPRESSION_MARKS = tuple(_FIRST.values())


def compression_from(head: bytes, expected: str = "") -> str:
    """Return the compression that the first bytes show, or an empty text.

    A zstd file may begin with a skippable frame, whose first bytes could also be text. It counts if the name says zstd.
    """
    if head.startswith(_FIRST["gzip"]):
        return "gzip"
    if head.startswith(_FIRST["zstd"]) or (expected == "zstd" and _is_skippable(head)):
        return "zstd"
    blocks = b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"
    if head.startswith(_FIRST["bzip2"]) and head[3:4].isdigit() and head[4:10] in blocks:
        return "bzip2"
    return "xz" if head.startswith(_FIRST["xz"]) else ""


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18"


def window_of(head: bytes, compression: str) -> int:
    """Return the bytes of memory that decompressing a member will take, from its header. 0: little, or unknown."""
    try:
        if compression == "zstd":
            return 0 if _is_skippable(head) else _zstd_window(head)
        return _xz_dictionary(head) if compression == "xz" else 0
    except IndexError:  # it ends too early
        return 0


def _zstd_window(head: bytes) -> int:
    """RFC 8878, 3.1.1.1: the size of the window, or of the content if it is a single segment."""
    about = head[4]
    if about & 0x20:
        width = (1, 2, 4, 8)[about >> 6]
        at = 5 + (0, 1, 2, 4)[about & 3]
        return int.from_bytes(head[at : at + width], "little")
    exponent, mantissa = head[5] >> 3, head[5] & 7
    return (8 + mantissa) << 7 + exponent


def _xz_dictionary(head: bytes) -> int:
    """The size of LZMA2's dictionary, from the header of the first block, where it follows sizes and other filters."""
    flags, at = head[13], 14
    for size in (0x40, 0x80):
        if flags & size:
            _, at = _xz_integer(head, at)
    for _ in range((flags & 3) + 1):
        filter, at = _xz_integer(head, at)
        width, at = _xz_integer(head, at)
        if filter == _LZMA2:
            return (2 | head[at] & 1) << head[at] // 2 + 11
        at += width
    return 0


def _xz_integer(head: bytes, at: int) -> tuple[int, int]:
    """The integer of variable length at an offset, and the offset after it."""
    value = shift = 0
    while head[at] & 128:
        value, shift, at = value | (head[at] & 127) << shift, shift + 7, at + 1
    return value | head[at] << shift, at + 1


def decompressor(compression: str) -> Any:
    """Return a decompressor of a single member, with `decompress(data, max_length)`, `eof` and `unused_data`."""
    if compression == "gzip":
        from isal import igzip_lib

        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if compression == "bzip2":
        return bz2.BZ2Decompressor()
    if compression == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    assert compression == "zstd", compression
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    return zstd.ZstdDecompressor()  # refuses frames with a window above 128 MB: the library's own limit


def decompressed(
    raw: Scanner, compression: str, name: str, reserve: Callable[[int], object] = lambda amount: None
) -> Generator[bytes]:
    """Yield a decompressed stream in blocks; raise SourceError with the offset in the compressed stream.

    `reserve`: called with the memory that a member will take, before it takes it.

    A stream is any number of members, and zeros as padding at the end. The standard library's file classes take
    anything after the first bzip2 or xz member for the end of the data, so that a damaged second header would lose the
    rest silently.
    """
    pending = _next_member(raw, b"", compression, name, first=True)
    while pending:
        reserve(window_of(pending, compression))
        member = decompressor(compression)
        while not member.eof:
            block = pending
            if not block and member.needs_input and not (block := raw.next(INPUT_BLOCK)):
                raise _error(f"the {compression} stream ends too early", name, raw.at)
            pending = b""
            try:
                out: bytes = member.decompress(block, STREAM_BLOCK)
            except MemoryError:
                raise
            except Exception as error:  # the libraries' own errors derive from Exception alone
                raise _error_for(str(error), compression, name, raw.at) from error
            if out:
                yield out
        pending = _next_member(raw, member.unused_data, compression, name, first=False)


def _next_member(raw: Scanner, head: bytes, compression: str, name: str, *, first: bool) -> bytes:
    """The beginning of the next member; empty if there is none. `head`: bytes of it that were read before."""
    head = head or raw.next(INPUT_BLOCK)
    padded = False
    while not first and head[:1] == b"\0" and compression != "zstd":
        padded = True
        head = head.lstrip(b"\0") or raw.next(INPUT_BLOCK)
    while head and len(head) < _HEADER and (more := raw.next(INPUT_BLOCK)):
        head += more
    if not head and first:
        raise _error(f"the {compression} stream ends too early", name, raw.at)
    # xz allows padding between streams; gzip and bzip2 only at the very end, zstd nowhere.
    known = compression_from(head, compression) == compression and not (padded and compression != "xz")
    cut = not padded and len(head) < 10 and _FIRST[compression].startswith(head[:6])
    if head and not known and not cut:
        raise _error(f"the {compression} stream is followed by something else", name, raw.at - len(head))
    return head


def _error_for(message: str, compression: str, name: str, offset: int) -> Exception:
    """The error for a decompressor's message."""
    if "not enough memory" in message:
        return MemoryError(message)
    if compression == "xz" and "limit" in message:
        hint = "decompress it first: `xz -d`"
        return _error(f"the xz stream needs more than {XZ_MEMORY >> 20} MB to decompress", name, offset, hint)
    if "too much memory" in message:
        hint = "decompress it first: `zstd -d --long=31`"
        return _error("the zstd stream needs a window above 128 MB", name, offset, hint)
    message = message.removeprefix("Unable to decompress Zstandard data: ")
    return _error(f"the {compression} stream is damaged: {message}", name, offset)


def _error(message: str, name: str, offset: int, hint: str | None = None) -> SourceError:
    return SourceError(message, place=f"{name}, near compressed byte {offset:,}", hint=hint)
