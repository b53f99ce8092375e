"""A text that comes in pieces, read from the front, with a look ahead over white space of any length."""

from __future__ import annotations

import struct
import tempfile
import zlib
from typing import TYPE_CHECKING

from shardmill.storage import writing_temporary_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SLICE = 1 << 18
"""Larger pieces are taken in slices of this size, so that the text in hand stays small."""
SPOOL = 1 << 22
"""Bytes of compressed white space that are held in memory; beyond, they lie in a temporary file."""

WHITE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What \\s is in every split pattern. Python's own isspace() also has U+001C to U+001F."""


class LookAhead:
    """The text in hand, and what comes after it."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.text = b""
        self.ended = False
        """Nothing comes after the text in hand."""
        self._behind = 0
        self._pieces = _slices(pieces)
        self._ahead = _Spool()
        self._white = (0, 0, False)

    def fill(self, size: int) -> bool:
        """Have at least this many bytes in hand, or all that there are; False when there are none."""
        more = []
        have = len(self.text)
        while have < size and not self.ended:
            piece = self._next()
            self.ended = not piece
            more.append(piece)
            have += len(piece)
        if more:
            self.text = b"".join([self.text, *more])
        return bool(self.text)

    def close(self) -> None:
        """Gives back what was set aside."""
        self._ahead.close()

    def take(self, size: int) -> bytes:
        """The first bytes in hand, which are then gone."""
        taken, self.text = self.text[:size], self.text[size:]
        self._behind += size
        return taken

    def white_after(self, place: int) -> tuple[bool, bool]:
        """Whether the white space that goes on at this place has a line end, and whether the text ends with it."""
        here = self._behind + place
        if here >= self._white[1]:
            self._white = self._look(place)
        line_end, _, last = self._white
        return line_end > here, last

    def _look(self, place: int) -> tuple[int, int, bool]:
        """Behind the last line end of this white space, behind the white space, and whether that is the text's end."""
        line_end = 0
        at = self._behind + place
        block = self.text[place:]
        # What an earlier look has set aside ends with the block in which its white space ended: it is in hand by now.
        while True:
            white = block[: len(block) - len(block.decode().lstrip(WHITE).encode())]
            last = max(white.rfind(b"\n"), white.rfind(b"\r"))
            line_end = at + last + 1 if last >= 0 else line_end
            at += len(white)
            if len(white) < len(block):
                return line_end, at, False
            block = next(self._pieces, b"")
            if not block:
                return line_end, at, True
            self._ahead.put(block)

    def _next(self) -> bytes:
        return self._ahead.get() or next(self._pieces, b"")


class _Spool:
    """First in, first out; a gigabyte of spaces takes a megabyte."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(SPOOL)  # noqa: SIM115 - closed by close()
        self._read = self._written = 0

    def close(self) -> None:
        self._file.close()

    def put(self, block: bytes) -> None:
        packed = zlib.compress(block, 1)
        with writing_temporary_files():
            self._file.seek(self._written)
            self._file.write(struct.pack("<I", len(packed)) + packed)
            self._written = self._file.tell()

    def get(self) -> bytes:
        """The oldest block, or nothing."""
        if self._read == self._written:
            return b""
        self._file.seek(self._read)
        (size,) = struct.unpack("<I", self._file.read(4))
        block = zlib.decompress(self._file.read(size))
        self._read = self._file.tell()
        if self._read == self._written:
            self._read = self._written = 0
        return block


def _slices(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The pieces, the large ones in slices that end between characters, the empty ones left out."""
    for piece in pieces:
        start = 0
        while start < len(piece):
            end = start + SLICE
            while end < len(piece) and piece[end] & 0xC0 == 0x80:
                end -= 1
            yield bytes(piece[start:end])
            start = end
