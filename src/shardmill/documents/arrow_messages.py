"""The headers of Arrow IPC messages: what a batch holds and where, known before any of it is read.

They are flatbuffers; of those only what is needed here is read. ValueError wherever a header is not what it should be.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from shardmill.documents.columns import stored_kind

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CODECS = ("lz4", "zstd")
# Metadata versions 4 and 5, as they are numbered; earlier ones ended with Arrow 0.8.
VERSIONS = (3, 4)


class Span(NamedTuple):
    """A buffer: its place in the body, and its length as it is stored."""

    start: int
    length: int


class BatchHeader(NamedTuple):
    """What the header of a record batch says."""

    rows: int
    nodes: list[tuple[int, int]]
    """Length and number of nulls of each field, those inside others included."""
    buffers: list[Span]
    codec: str
    """How each buffer is compressed; empty: not at all."""
    view_buffers: list[int]
    """How many buffers of text each field of views has."""


class Message(NamedTuple):
    """What the header of a message says."""

    kind: int
    version: int
    body: int
    """Bytes that follow the header."""
    batch: BatchHeader | None = None
    """Of a batch or a dictionary."""
    dictionary: int = -1
    """The number of the dictionary that this is, or adds to."""
    delta: bool = False


class ColumnPlace(NamedTuple):
    """Where a column stands in every batch; for one inside structs, where they say what is null."""

    kind: pa.DataType
    above: list[tuple[int, int]]
    """Node and buffer of each struct on the way."""
    node: int
    buffer: int
    """The first of its buffers, which says what is null, unless nothing else can be."""
    more: int
    """Its other buffers."""


class _Table:
    """A table of a flatbuffer; every access is checked to be inside."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        start = place - self._get("<i", place)
        self._slots = [self._get("<H", start + at) for at in range(4, self._get("<H", start), 2)]

    def _get(self, form: str, place: int) -> int:
        if not 0 <= place <= len(self._data) - struct.calcsize(form):
            raise ValueError("a header leads outside of itself")
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

    def _vector(self, slot: int, size: int) -> tuple[int, int]:
        """Place and number of a vector's elements."""
        target = self._target(slot)
        count = self._get("<I", target) if target else 0
        if target + 4 + count * size > len(self._data):
            raise ValueError("a header leads outside of itself")
        return target + 4, count

    def numbers(self, slot: int) -> list[int]:
        place, count = self._vector(slot, 8)
        return list(struct.unpack_from(f"<{count}q", self._data, place))

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        place, count = self._vector(slot, 16)
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, place)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def tables(self, slot: int) -> list[_Table]:
        place, count = self._vector(slot, 4)
        return [_Table(self._data, at + self._get("<I", at)) for at in range(place, place + 4 * count, 4)]


def read_message(header: bytes) -> Message:
    """What a message's header says; everything in it is checked against itself."""
    message = _root(header)
    version, kind, body = message.number(0, "<h"), message.number(1, "<B"), message.number(3, "<q")
    content = message.table(2)
    if content is None or body < 0:
        raise ValueError("a header is not one of a message")
    if version not in VERSIONS:
        raise ValueError("it was written by a version of Arrow before 0.8")
    if kind == RECORD_BATCH:
        return Message(kind, version, body, _batch(content, body))
    if kind == DICTIONARY_BATCH:
        data = content.table(1)
        if data is None:
            raise ValueError("a dictionary has no values")
        batch = _batch(data, body)
        return Message(kind, version, body, batch, content.number(0, "<q"), bool(content.number(2, "<B")))
    return Message(kind, version, body)


def _root(header: bytes) -> _Table:
    if len(header) < 8:
        raise ValueError("a header is too short")
    return _Table(header, int.from_bytes(header[:4], "little"))


def _batch(table: _Table, body: int) -> BatchHeader:
    compression = table.table(3)
    codec = ""
    if compression is not None:
        number = compression.number(0, "<b")
        if not 0 <= number < len(CODECS):
            raise ValueError("it is compressed in a way that is not known")
        codec = CODECS[number]
    rows, nodes = table.number(0, "<q"), table.pairs(1)
    buffers = [Span(*pair) for pair in table.pairs(2)]
    if rows < 0 or any(length < 0 or not 0 <= nulls <= length for length, nulls in nodes):
        raise ValueError("a batch has an impossible number of rows")
    if any(span.start < 0 or span.length < 0 or span.start + span.length > body for span in buffers):
        raise ValueError("a buffer leads outside of its batch")
    return BatchHeader(rows, nodes, buffers, codec, table.numbers(4))


def dictionary_id(header: bytes, schema: pa.Schema, path: Sequence[str]) -> int:
    """The number of the dictionary of the column at this path, by the header that the schema came from; -1: none."""
    table = _root(header).table(2)
    if table is None:
        raise ValueError("the schema is missing")
    if table.number(0, "<h"):
        raise ValueError("its numbers are big-endian")
    fields = table.tables(1)
    for depth, step in enumerate(path):
        found = fields[kind_at(schema, path[:depth]).get_field_index(step)]
        fields = found.tables(5)
    encoding = found.table(4)
    return -1 if encoding is None else encoding.number(0, "<q")


def kind_at(schema: pa.Schema, path: Sequence[str]) -> Any:
    """The type of the column at this path; of none, that of a row."""
    kind: Any = pa.struct(list(schema))
    for step in path:
        kind = stored_kind(kind.field(kind.get_field_index(step)).type)
    return kind


def find_leaf(schema: pa.Schema, path: Sequence[str], message: Message) -> ColumnPlace:
    """Where the column at this path stands in a batch."""
    assert message.batch is not None
    walk = _Walk(message.version, message.batch.view_buffers)
    fields, above = list(schema), []
    for number, step in enumerate(path):
        for field in fields:
            if field.name == step:
                break
            walk.skip(field.type)
        kind = stored_kind(field.type)
        if number + 1 < len(path):
            above.append((walk.node, walk.buffer))
            walk.node, walk.buffer = walk.node + 1, walk.buffer + 1
            fields = [kind.field(i) for i in range(kind.num_fields)]
    return walk.leaf(kind, above, message.batch)


class _Walk:
    """Fields in the order in which a batch has their nodes and buffers."""

    def __init__(self, version: int, view_buffers: list[int]) -> None:
        self._version, self._view_buffers = version, view_buffers
        self.node = self.buffer = self._view = 0

    def skip(self, kind: Any) -> None:
        kind = stored_kind(kind)
        self.node += 1
        self.buffer += self._buffers(kind)
        if pt.is_map(kind):
            self.skip(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        elif not pt.is_dictionary(kind):
            for i in range(kind.num_fields):
                self.skip(kind.field(i).type)

    def _buffers(self, kind: pa.DataType) -> int:
        if pt.is_null(kind) or pt.is_run_end_encoded(kind):
            return 0
        if pt.is_dictionary(kind):
            return 2
        if pt.is_string_view(kind) or pt.is_binary_view(kind):
            self._view += 1
            return 2 + self._texts(self._view - 1)
        if pt.is_union(kind):
            # Before version 5 they could be null themselves.
            return (1 if kind.mode == "sparse" else 2) + (self._version == VERSIONS[0])
        if pt.is_struct(kind) or pt.is_fixed_size_list(kind):
            return 1
        three = (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary, pt.is_list_view)
        if any(test(kind) for test in three) or pt.is_large_list_view(kind):
            return 3
        return 2

    def _texts(self, view: int) -> int:
        if view >= len(self._view_buffers) or self._view_buffers[view] < 0:
            raise ValueError("a batch does not say how many buffers its views have")
        return self._view_buffers[view]

    def leaf(self, kind: pa.DataType, above: list[tuple[int, int]], batch: BatchHeader) -> ColumnPlace:
        node, buffer = self.node, self.buffer
        self.skip(kind)
        if self.node > len(batch.nodes) or self.buffer > len(batch.buffers):
            raise ValueError("a batch does not have the columns of its schema")
        if any(batch.nodes[each][0] != batch.rows for each in (node, *(struct for struct, _ in above))):
            raise ValueError("a column does not have the rows of its batch")
        return ColumnPlace(kind, above, node, buffer, max(0, self.buffer - buffer - 1))
