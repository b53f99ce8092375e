"""Compressed bytes in, text bytes out, in blocks of bounded size; a damaged stream is an error with its place."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from typing import Any, Protocol

from shardmill.errors import SourceError

# Small enough that the copies which decompressors make of unread input stay in the cache.
INPUT_BLOCK = 1 << 16
# xz -9 needs 65 MB; a header may ask for 4 GB.
XZ_MEMORY = 160 << 20


class Pull(Protocol):
    """A stream that gives at most n bytes when asked, and none at its end."""

    def read(self, n: int) -> bytes: ...

    def stored(self) -> int:
        """Bytes, as they are stored, that were read so far."""

    def close(self) -> None: ...


# How what compression_from finds begins, at the least.
MARKS = (b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")


def compression_from(head: bytes, promised: str = "") -> str:
    """The compression that the first bytes show, or an empty text.

    A zstd file may begin with a skippable frame. Its mark could be text, so it counts only where the name says zstd.
    """
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd" or (promised == "zstd" and _is_skippable(head)):
        return "zstd"
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return "bzip2"
    if head[:6] == b"\xfd7zXZ\0":
        return "xz"
    return ""


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18"


def decompressed(raw: Pull, compression: str, name: str) -> Pull:
    """The text of a compressed stream; what it raises names the place among the compressed bytes."""
    if compression == "zstd":
        return _Zstd(raw, name)
    return _Members(raw, compression, name)


def _new_gzip() -> Any:
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _new_xz() -> Any:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


_NEW: dict[str, Callable[[], Any]] = {"gzip": _new_gzip, "bzip2": bz2.BZ2Decompressor, "xz": _new_xz}


class _Members:
    """gzip, bzip2 or xz: any number of members, one after another, and zeros as padding at the end.

    The standard library's file classes take anything after the first bzip2 or xz stream for the end of the data,
    so a damaged second header would lose the rest without a word.
    """

    def __init__(self, raw: Pull, compression: str, name: str) -> None:
        self._raw = raw
        self._compression = compression
        self._name = name
        self._member: Any = None
        self._pending = b""
        self._behind = 0
        self._begun = False

    def read(self, n: int) -> bytes:
        while True:
            if self._member is None and not self._next_member():
                return b""
            block = self._pending
            self._pending = b""
            if not block and self._member.needs_input:
                block = self._input()
                if not block:
                    raise self._error(f"the {self._compression} stream ends too early")
            try:
                out: bytes = self._member.decompress(block, n)
            except MemoryError as error:
                raise self._error(f"the {self._compression} stream needs too much memory") from error
            except Exception as error:  # igzip_lib's own error derives from Exception alone
                raise self._error(f"the {self._compression} stream is damaged: {error}") from error
            if self._member.eof:
                self._pending = self._member.unused_data
                self._member = None
            if out:
                return out

    def stored(self) -> int:
        return self._raw.stored()

    def close(self) -> None:
        self._raw.close()

    def _input(self) -> bytes:
        block = self._raw.read(INPUT_BLOCK)
        self._behind += len(block)
        return block

    def _next_member(self) -> bool:
        head = self._pending or self._input()
        padded = False
        while self._begun and head[:1] == b"\0":
            stripped = head.lstrip(b"\0")
            padded = True
            head = stripped or self._input()
        while head and len(head) < 10:
            more = self._input()
            if not more:
                break
            head += more
        if not head and self._begun:
            return False
        if not head:
            raise self._error(f"the {self._compression} stream ends too early")
        # xz allows padding between streams; gzip and bzip2 only at the very end.
        known = compression_from(head) == self._compression and not (padded and self._compression != "xz")
        if not known and not self._is_cut_header(head, padded):
            self._pending = head
            raise self._error(f"the {self._compression} stream is followed by something else")
        self._pending = head
        self._member = _NEW[self._compression]()
        self._begun = True
        return True

    def _is_cut_header(self, head: bytes, padded: bool) -> bool:
        marks = {"gzip": b"\x1f\x8b\x08", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
        return not padded and len(head) < 10 and marks[self._compression].startswith(head[:6])

    def _error(self, message: str) -> SourceError:
        return SourceError(message, place=f"{self._name}, near compressed byte {self._behind - len(self._pending):,}")


class _Zstd:
    """zstd through pyarrow: every frame, skippable ones too; it raises where a frame is cut short.

    Frames that ask for a window above 128 MB are refused by the library (its default limit).
    """

    def __init__(self, raw: Pull, name: str) -> None:
        import pyarrow as pa

        self._raw = _Counted(raw)
        self._name = name
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), "zstd")

    def read(self, n: int) -> bytes:
        try:
            out: bytes = self._stream.read(n)
        except OSError as error:
            text = str(error)
            if "Truncated" in text:
                message, hint = "the zstd stream ends too early", None
            elif "too much memory" in text:
                message, hint = (
                    "the zstd stream needs a window above 128 MB",
                    "decompress it first: `zstd -d --long=31`",
                )
            else:
                message, hint = f"the zstd stream is damaged: {text.removeprefix('ZSTD decompress failed: ')}", None
            place = f"{self._name}, near compressed byte {self._raw.behind:,}"
            raise SourceError(message, place=place, hint=hint) from error
        if not out and not self._raw.behind:
            raise SourceError("the zstd stream ends too early", place=f"{self._name}, near compressed byte 0")
        return out

    def stored(self) -> int:
        return self._raw.behind

    def close(self) -> None:
        self._raw.close()


class _Counted:
    """A stream as pyarrow wants a file, which counts what was read."""

    def __init__(self, raw: Pull) -> None:
        self._raw = raw
        self.behind = 0
        self.closed = False

    def read(self, n: int = -1) -> bytes:
        block = self._raw.read(INPUT_BLOCK if n < 0 else n)
        self.behind += len(block)
        return block

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._raw.close()
