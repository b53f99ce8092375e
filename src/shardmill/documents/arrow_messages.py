"""The headers of Arrow IPC messages, which say what a batch holds and where before any of it is read.

They are flatbuffers, of which only the needed fields are read. ValueError wherever a header is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

CONTINUES = b"\xff\xff\xff\xff"
"""Stands before the length of a header."""
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CODECS = ("lz4", "zstd")
# What zstd makes of a byte at most: a block of 128 KiB is stored in four bytes or more.
MAX_RATIO = 1 << 15
# Metadata versions 4 and 5, as they are numbered; earlier ones ended with Arrow 0.8.
VERSIONS = (3, 4)


class Span(NamedTuple):
    """A buffer: its place in the body, and its length as it is stored."""

    start: int
    length: int


class Message(NamedTuple):
    """What the header of a message says; of a schema only the first fields."""

    header: bytes
    kind: int
    begin: int
    """Where its body begins, and how many bytes that has."""
    size: int
    rows: int = 0
    buffers: Sequence[Span] = ()
    codec: str = ""
    """How each buffer is compressed; empty: it is not."""
    dictionary: int = -1
    """The number of the dictionary that this is, or adds to."""
    delta: bool = False


class _Table:
    """A table of a flatbuffer; every access is checked to be inside."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        start = place - self._get("<i", place)
        self._slots = [self._get("<H", start + at) for at in range(4, self._get("<H", start), 2)]

    def _get(self, form: str, place: int) -> int:
        if not 0 <= place <= len(self._data) - struct.calcsize(form):
            raise ValueError("an offset in a header points outside of it")
        value: int = struct.unpack_from(form, self._data, place)[0]
        return value

    def number(self, slot: int, form: str, default: int = 0) -> int:
        if slot >= len(self._slots) or not self._slots[slot]:
            return default
        return self._get(form, self._place + self._slots[slot])

    def _target(self, slot: int) -> int:
        offset = self.number(slot, "<I")
        return offset and self._place + self._slots[slot] + offset

    def table(self, slot: int) -> _Table | None:
        target = self._target(slot)
        return _Table(self._data, target) if target else None

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        target = self._target(slot)
        count = self._get("<I", target) if target else 0
        if target + 4 + count * 16 > len(self._data):
            raise ValueError("an offset in a header points outside of it")
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, target + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))


def read_message(header: bytes, begin: int) -> Message:
    """The message with this header, whose body begins at `begin`. The header is checked for consistency."""
    if len(header) < 8:
        raise ValueError("a header is too short")
    table = _Table(header, int.from_bytes(header[:4], "little"))
    version, kind, size = table.number(0, "<h"), table.number(1, "<B"), table.number(3, "<q")
    content = table.table(2)
    if content is None or size < 0:
        raise ValueError("a header is not valid")
    if version not in VERSIONS:
        raise ValueError("it was written by a version of Arrow before 0.8")
    message = Message(header, kind, begin, size)
    if kind == DICTIONARY_BATCH:
        message = message._replace(dictionary=content.number(0, "<q"), delta=bool(content.number(2, "<B")))
        content = content.table(1)
        if content is None:
            raise ValueError("a dictionary has no values")
    return _batch(message, content) if kind in (DICTIONARY_BATCH, RECORD_BATCH) else message


def _batch(message: Message, table: _Table) -> Message:
    """The message with what the header of a record batch says."""
    compression = table.table(3)
    codec = ""
    if compression is not None:
        number = compression.number(0, "<b")
        if not 0 <= number < len(CODECS):
            raise ValueError("it is compressed in a way that is not known")
        codec = CODECS[number]
    rows = table.number(0, "<q")
    buffers = [Span(*pair) for pair in table.pairs(2)]
    if rows < 0:
        raise ValueError("a batch has an impossible number of rows")
    if any(span.start < 0 or span.length < 0 or span.start + span.length > message.size for span in buffers):
        raise ValueError("a buffer ends outside of its batch")
    return message._replace(rows=rows, buffers=buffers, codec=codec)


def decoded_length(head: bytes, stored: int) -> int:
    """Bytes of a compressed buffer when it is decompressed; `head`: its first eight bytes, `stored`: all of them."""
    length = int.from_bytes(head[:8], "little", signed=True)
    if len(head) < 8 or length < -1 or length > MAX_RATIO * stored:
        raise ValueError("a buffer has an impossible length")
    return length if length >= 0 else stored - 8  # -1: it is not compressed after all
