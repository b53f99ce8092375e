"""The pages of a parquet column: what each will take, told by its header before anything is decoded.

Pages are decoded by pyarrow, which cannot be asked for some pages of a column. So a small parquet file is made in
memory that has those pages and nothing else; they are copied as they stand, checksums included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columns import column_of
from shardmill.input_formats import PARQUET_MARK as MARK

# Kinds of pages, encodings and physical types have these numbers in the format.
DATA, DICTIONARY_PAGE, DATA_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, DELTA_BINARY, DELTA_LENGTH, DELTA_BYTES, NUMBERS = 0, 2, 5, 6, 7, 8
INT32, BYTE_ARRAY, FIXED = 1, 6, 7
TYPES = {"INT32": INT32, "BYTE_ARRAY": BYTE_ARRAY, "FIXED_LEN_BYTE_ARRAY": FIXED}
CODECS = {
    "UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "LZO": 3, "BROTLI": 4, "LZ4": 5, "ZSTD": 6,
}  # fmt: skip
# LZ4 is read in both of its forms under the number of the older one.
_COMPRESSORS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd"}
# A header is short, but may hold the page's smallest and largest text.
_FIRST_LOOK, _LONGEST_HEADER = 1 << 10, 16 << 20
_DEEPEST = 16
# Texts whose lengths are looked at one by one, for the words of an error: 0.3 s.
_WALKED = 1 << 20
_BLOCK = 1 << 20
_Parsed = TypeVar("_Parsed")


class RowGroup(NamedTuple):
    """The text column of a row group, as the footer describes it."""

    rows: int
    codec: int
    start: int
    """Where in the file its pages begin, and where they end."""
    end: int
    size: int
    """Bytes when decompressed."""
    nulls: int
    """Rows that are null at the most."""
    first: int = 0
    """The number of its first row."""


class Page(NamedTuple):
    """One page, as its header describes it."""

    kind: int
    encoding: int
    start: int
    """Where its header begins in the file."""
    body: int
    end: int
    size: int
    """Bytes when decompressed."""
    values: int
    """Rows, or entries of a dictionary."""
    nulls: int
    """Rows that are null at the most."""
    checksum: int | None

    @property
    def numbers(self) -> bool:
        """Its rows are numbers into the dictionary."""
        return self.encoding in (PLAIN_DICTIONARY, NUMBERS)

    @property
    def stored(self) -> int:
        return self.end - self.start


class Leaf(NamedTuple):
    """A column as the pages know it."""

    kind: int
    width: int
    """Bytes of each value, where they all have the same."""
    levels: int
    """How often something on the way to a value may be null."""


class Damaged(ValueError):
    """A header cannot be what it says."""


def pages(read: Callable[[int, int], Any], start: int, rows: int, file_size: int) -> Iterator[Page]:
    """The dictionary and the data pages of a column chunk that begins at `start`, until they have so many rows.

    `read(start, end)` gives bytes of the file. Raises Damaged where headers do not add up.
    """
    found = 0
    while found < rows:
        page = _page(read, start, file_size)
        if page.kind in (DATA, DATA_V2):
            found += page.values
            if found > rows:
                raise Damaged("its pages hold more rows than the footer says")
        if page.kind in (DATA, DATA_V2, DICTIONARY_PAGE):
            yield page
        start = page.end


def _page(read: Callable[[int, int], Any], start: int, file_size: int) -> Page:
    header, length = _looked(read, start, file_size, parsed, "a page has no header")
    try:
        kind, size, stored = header[1], header[2], header[3]
        about = header.get({DATA: 5, DICTIONARY_PAGE: 7, DATA_V2: 8}.get(kind, 0), {})
        values = encoding = nulls = 0
        if kind == DATA_V2:
            values, nulls, encoding = about[1], about[2], about[4]
        elif kind in (DATA, DICTIONARY_PAGE):
            values, encoding = about[1], about[2]
            nulls = values
    except (KeyError, TypeError) as error:
        raise Damaged("a page's header lacks what it must have") from error
    body = start + length
    numbers = (kind, size, stored, values, encoding, nulls)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or body + stored > file_size:
        raise Damaged("a page's header says what cannot be")
    return Page(kind, encoding, start, body, body + stored, size, values, nulls, header.get(4))


class Footer:
    """A footer that is too large to be parsed whole, read forward block by block: pyarrow takes nine times its size."""

    def __init__(self, read: Callable[[int, int], Any], start: int, end: int) -> None:
        self._read, self._start, self._end = read, start, end
        before, self._groups, self._rows = self._at(start, _before_groups)
        empty = bytes(read(start, start + before)) + bytes([(4 << 4 | 9) - (3 << 4), 12]) + b"\0"
        small = MARK + empty + len(empty).to_bytes(4, "little") + MARK
        self.schema = pq.read_metadata(pa.BufferReader(small)).schema
        """What the columns are; not where."""
        self._start += before

    def row_groups(self, path: Sequence[str]) -> Iterator[RowGroup]:
        """Of each row group the column at this path. Raises Damaged where that cannot be told without parsing all.

        A column's path is looked for by its bytes. They may stand elsewhere too, within a value's statistics: then
        there are more of them than row groups, or what follows is nothing that a column has.
        """
        names = [name.encode() for name in path]
        wanted = bytes([3 - 2 << 4 | 9, len(names) << 4 | 8]) + b"".join(_bytes_of(len(name)) + name for name in names)
        found = rows = 0
        for at in self._places(wanted):
            about = self._at(at + len(wanted), lambda raw: parsed(raw, number=3)[0])
            try:
                start = min(about.get(11) or about[9], about[9])
                group = RowGroup(about[5], about[4], start, start + about[7], about[6], nulls=about[5])
                if not all(isinstance(number, int) and number >= 0 for number in group) or group.end < group.start:
                    raise Damaged("a column cannot be where the footer says")
            except (KeyError, TypeError) as error:
                raise Damaged("a column lacks what it must have") from error
            found, rows = found + 1, rows + group.rows
            yield group
        if found != self._groups or rows != self._rows:
            raise Damaged("its row groups do not add up")

    def _places(self, wanted: bytes) -> Iterator[int]:
        for start in range(self._start, self._end, _BLOCK):
            block = bytes(self._read(start, min(self._end, start + _BLOCK + len(wanted) - 1)))
            at = block.find(wanted)
            while at >= 0:
                yield start + at
                at = block.find(wanted, at + 1)

    def _at(self, start: int, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        return _looked(self._read, start, self._end, parse, "the footer ends too soon")


def _looked(
    read: Callable[[int, int], Any], start: int, limit: int, parse: Callable[[bytes], _Parsed], otherwise: str
) -> _Parsed:
    """What stands at `start`, looked at in more and more bytes until they are enough."""
    look = _FIRST_LOOK
    while True:
        end = min(start + look, limit)
        try:
            return parse(bytes(read(start, end)))
        except IndexError:
            if end == limit or look >= _LONGEST_HEADER:
                raise Damaged(otherwise) from None
            look *= 16


def _before_groups(raw: bytes) -> tuple[int, int, int]:
    """Where the list of row groups begins, how many there are, and how many rows."""
    fields: dict[int, Any] = {}
    at = number = 0
    while raw[at]:
        before, kind = at, raw[at] & 15
        number, at = (number + (raw[at] >> 4), at + 1) if raw[at] >> 4 else _whole(raw, at + 1)
        if number == 4:
            count = raw[at] >> 4 if raw[at] >> 4 < 15 else _varint(raw, at + 1)[0]
            return before, count, fields[3]
        fields[number], at = _value(raw, at, kind, 0)
    raise Damaged("the footer has no row groups")


class Small(NamedTuple):
    """A parquet file in memory that has some pages of one column and nothing else."""

    raw: bytearray
    rows: int
    leaf: Leaf

    def columns(self, rows: int) -> Iterator[pa.Array]:
        """The column in batches of so many rows; what pyarrow raises for damaged pages."""
        names = _path(self.leaf)
        with pq.ParquetFile(
            pa.BufferReader(pa.py_buffer(self.raw)), pre_buffer=False, page_checksum_verification=True
        ) as file:
            for batch in file.iter_batches(batch_size=max(1, rows), use_threads=False):
                yield column_of(batch, names)


@dataclass
class SmallGroup:
    """A row group of such a file."""

    rows: int
    stored: Iterable[Any]
    """The bytes of its pages in order, in parts, so that they are held only once."""
    dictionary: Any = b""
    """The page before them that their numbers are about, as it is stored."""


def small_file(groups: Iterable[SmallGroup], leaf: Leaf, codec: int) -> Small:
    """The file that has these row groups."""
    raw, described, rows = bytearray(MARK), [], 0
    for group in groups:
        start = len(raw)
        raw += group.dictionary
        first = len(raw)
        for part in group.stored:
            raw += part
        described.append(_row_group(leaf, codec, group.rows, start, first, len(raw)))
        rows += group.rows
    raw += _footer(leaf, rows, described)
    return Small(raw, rows, leaf)


def dictionary_values(page: Page, body: Iterable[Any], leaf: Leaf, codec: int) -> Small:
    """The file whose rows are the entries of a dictionary: its page is that of a column without nulls."""
    about = _struct([(1, 5, page.values), (2, 5, PLAIN), (3, 5, 3), (4, 5, 3)])
    head = _header(DATA, page.size, page.end - page.body, page.checksum, 5, about)
    return small_file([SmallGroup(page.values, chain([head], body))], leaf._replace(levels=0), codec)


def dictionary_numbers(page: Page, stored: Iterable[Any], entries: int, leaf: Leaf, codec: int) -> Small:
    """The file whose rows are numbers into a dictionary: the page with the numbers themselves as its dictionary."""
    numbers = np.arange(entries, dtype="<i4").tobytes()
    name = _COMPRESSORS[codec]
    small = pa.Codec(name).compress(numbers, asbytes=True) if name else numbers
    about = _struct([(1, 5, entries), (2, 5, PLAIN)])
    head = _header(DICTIONARY_PAGE, len(numbers), len(small), None, 7, about) + small
    return small_file([SmallGroup(page.values, stored, head)], Leaf(INT32, 0, leaf.levels), codec)


def longest_text(page: Page, body: Iterable[Any], leaf: Leaf, codec: int) -> int | None:
    """Bytes of the longest text in a page, or a little more; the page is only decompressed. None: it cannot be told."""
    if page.kind == DATA_V2 or page.values > _WALKED:
        return None
    stored = bytearray()
    for part in body:
        stored += part
    name = _COMPRESSORS[codec]
    raw = memoryview(pa.Codec(name).decompress(stored, page.size) if name else stored)
    at = 4 + int.from_bytes(raw[:4], "little") if page.kind == DATA and leaf.levels else 0
    if page.encoding in (DELTA_LENGTH, DELTA_BYTES):
        # It begins with the lengths of the texts, or of what each has in common with the one before.
        longest = max(_deltas(bytes(raw[at : at + 8 * page.values + _FIRST_LOOK])))
        return longest if page.encoding == DELTA_LENGTH else longest + page.size
    longest = 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return longest


def _deltas(raw: bytes) -> list[int]:
    """The numbers that are stored at the beginning of these bytes, each as its difference from the one before."""
    _, at = _varint(raw, 0)
    _, at = _varint(raw, at)
    count, _ = _varint(raw, at)
    about = _struct([(1, 5, count), (2, 5, DELTA_BINARY), (3, 5, 3), (4, 5, 3)])
    head = _header(DATA, len(raw), len(raw), None, 5, about)
    file = small_file([SmallGroup(count, [head, raw])], Leaf(INT32, 0, 0), 0)
    return [number for column in file.columns(count) for number in column.to_pylist()]


def _header(kind: int, size: int, stored: int, checksum: int | None, field: int, about: bytes) -> bytes:
    fields: list[tuple[int, int, Any]] = [(1, 5, kind), (2, 5, size), (3, 5, stored), (field, 12, about)]
    if checksum is not None:
        fields.insert(3, (4, 5, checksum))
    return _struct(fields)


def _row_group(leaf: Leaf, codec: int, rows: int, start: int, first: int, end: int) -> bytes:
    """What a footer says of a row group; `first`: where its first data page begins."""
    sizes = [(5, 6, rows), (6, 6, end), (7, 6, end - start), (9, 6, first)]
    sizes += [(11, 6, start)] if first > start else []
    about = _struct([(1, 5, leaf.kind), (2, 9, (5, [PLAIN])), (3, 9, (8, _path(leaf))), (4, 5, codec), *sizes])
    column = _struct([(2, 6, start), (3, 12, about)])
    return _struct([(1, 9, (12, [column])), (2, 6, end), (3, 6, rows)])


def _footer(leaf: Leaf, rows: int, groups: list[bytes]) -> bytes:
    path = _path(leaf)
    optional = min(1, leaf.levels)
    schema = [_struct([(4, 8, "root"), (5, 5, 1)])]
    schema += [_struct([(3, 5, 1), (4, 8, name), (5, 5, 1)]) for name in path[:-1]]
    width = [(2, 5, leaf.width)] if leaf.kind == FIXED else []
    schema.append(_struct([(1, 5, leaf.kind), *width, (3, 5, optional), (4, 8, path[-1])]))
    footer = _struct([(1, 5, 2), (2, 9, (12, schema)), (3, 6, rows), (4, 9, (12, groups))])
    return footer + len(footer).to_bytes(4, "little") + MARK


def _path(leaf: Leaf) -> list[str]:
    return [f"c{level}" for level in range(max(1, leaf.levels))]


# Thrift's compact protocol, as far as parquet uses it: a struct is read as a dictionary by field numbers. Kinds: 1 and
# 2 true and false, 3 a byte, 4-6 whole numbers, 7 a double, 8 bytes, 9 and 10 lists, 11 a map, 12 a struct.


def parsed(raw: bytes, at: int = 0, depth: int = 0, number: int = 0) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and where it ends; IndexError where the bytes end before that.

    `number`: of the field before, where a struct is entered in the middle.
    """
    fields: dict[int, Any] = {}
    while raw[at]:
        step, kind = raw[at] >> 4, raw[at] & 15
        at += 1
        if not step:
            number, at = _whole(raw, at)
        else:
            number += step
        fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(raw, at, kind, depth)
    return fields, at + 1


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _whole(raw, at)
    if kind in (1, 2, 3):
        return raw[at], at + 1
    if kind in (7, 8):
        length, at = (8, at) if kind == 7 else _varint(raw, at)
        if at + length > len(raw):
            raise IndexError
        return raw[at : at + length], at + length
    if depth == _DEEPEST:
        raise Damaged("a header is nested too deeply")
    if kind in (9, 10):
        length, inner = raw[at] >> 4, raw[at] & 15
        at += 1
        if length == 15:
            length, at = _varint(raw, at)
        values = []
        for _ in range(length):
            value, at = _value(raw, at, inner, depth + 1)
            values.append(value)
        return values, at
    if kind == 12:
        return parsed(raw, at, depth + 1)
    raise Damaged(f"a header has a field of kind {kind}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while raw[at] & 128:
        number |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise Damaged("a number in a header has no end")
    return number | raw[at] << shift, at + 1


def _whole(raw: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(raw, at)
    return (number >> 1) ^ -(number & 1), at


def _struct(fields: list[tuple[int, int, Any]]) -> bytes:
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        out.append((number - last) << 4 | kind)
        out += _written(kind, value)
        last = number
    return bytes(out) + b"\0"


def _written(kind: int, value: Any) -> bytes:
    if kind in (5, 6):
        return _bytes_of(value << 1 if value >= 0 else ~(value << 1))
    if kind == 8:
        name: bytes = value.encode()
        return _bytes_of(len(name)) + name
    if kind == 9:
        inner, values = value
        return bytes([15 << 4 | inner]) + _bytes_of(len(values)) + b"".join(_written(inner, one) for one in values)
    struct: bytes = value
    return struct


def _bytes_of(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])
