"""The footer and page headers of a parquet file: where the pages of a column are, and what they take when decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from shardmill.input_formats import PARQUET_MARK as MARK

# Kinds of pages, encodings and physical types have these numbers in the format.
DATA, DICTIONARY_PAGE, DATA_V2 = 0, 2, 3
ENCODINGS = {
    0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY", 8: "RLE_DICTIONARY", 9: "BYTE_STREAM_SPLIT",
}  # fmt: skip
PLAIN, PLAIN_DICTIONARY, RLE, _, _, DELTA_LENGTH, DELTA_BYTES, NUMBERS, BYTE_STREAM_SPLIT = ENCODINGS
BYTE_ARRAY, FIXED = 6, 7
_REPEATED, _DECIMAL = 2, 5
_CRYPTO_METADATA = 8
# A header is short, but may hold the page's smallest and largest text.
_FIRST_LOOK, _LONGEST_HEADER = 1 << 10, 16 << 20
_DEEPEST = 16
_BLOCK = 1 << 20
_Parsed = TypeVar("_Parsed")


class RowGroup(NamedTuple):
    """The text column of a row group, as the footer describes it."""

    rows: int
    codec: int
    start: int
    """Where its pages begin in the file, and where they end."""
    end: int
    size: int
    """Bytes when decompressed."""
    nulls: int
    """Upper bound of the rows that are null."""
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
    """Upper bound of the rows that are null."""
    codec: int
    level_encoding: int = RLE
    repetitions: int = 0
    """Bytes of repetition levels, and of definition levels, that come first and are not compressed."""
    definitions: int = 0
    compressed: bool = True
    checksum: int | None = None

    @property
    def numbers(self) -> bool:
        """Its rows are numbers into the dictionary."""
        return self.encoding in (PLAIN_DICTIONARY, NUMBERS)

    @property
    def stored(self) -> int:
        return self.end - self.start


class Leaf(NamedTuple):
    """What is needed of a column's schema to decode its pages."""

    kind: int
    width: int
    """Bytes of each value, where all have the same length."""
    levels: int
    """The definition level of a value that is not null."""
    text: bool
    """It certainly holds texts."""


class Damaged(ValueError):
    """The file is damaged: a header or a page is not valid."""


class Encrypted(Exception):
    """The column cannot be read without a key."""


def pages(read: Callable[[int, int], Any], group: RowGroup, file_size: int) -> Iterator[Page]:
    """The dictionary and the data pages of a column in a row group.

    `read(start, end)` returns bytes of the file. Raises Damaged where headers contradict each other.
    """
    found, start = 0, group.start
    while found < group.rows:
        page = _page(read, start, group, file_size)
        if page.kind in (DATA, DATA_V2):
            found += page.values
            if found > group.rows:
                raise Damaged("its pages hold more rows than the footer says")
        if page.kind in (DATA, DATA_V2, DICTIONARY_PAGE):
            yield page
        start = page.end


def _page(read: Callable[[int, int], Any], start: int, group: RowGroup, file_size: int) -> Page:
    header, length = _looked(read, start, file_size, parsed, "a page has no header")
    body, codec = start + length, group.codec
    try:
        kind, size, end, checksum = header[1], header[2], body + header[3], header.get(4)
        about = header.get({DATA: 5, DICTIONARY_PAGE: 7, DATA_V2: 8}.get(kind, 0), {})
        if kind == DATA_V2:
            values, nulls, encoding = about[1], min(about[2], group.nulls), about[4]
            levels = RLE, about[6], about[5], about.get(7, True)
        elif kind in (DATA, DICTIONARY_PAGE):
            values, nulls, encoding = about[1], min(about[1], group.nulls), about[2]
            levels = about.get(3, RLE), 0, 0, True
        else:
            values = nulls = encoding = 0
            levels = RLE, 0, 0, True
        page = Page(kind, encoding, start, body, end, size, values, nulls, codec, *levels, checksum)
        if min(page[:-1]) < 0 or not body <= end <= file_size or abs(checksum or 0) >> 32:
            raise Damaged("a page's header has impossible values")
    except (AttributeError, LookupError, TypeError) as error:
        raise Damaged("a page's header lacks a required field") from error
    return page


class Footer:
    """The footer of a file, read block by block: parsed as a whole, it takes nine times its size in memory."""

    def __init__(self, read: Callable[[int, int], Any], start: int, end: int) -> None:
        self._read, self._end = read, end
        before, self._start, schema, self._count, self._rows = self._at(start, _before_groups)
        self._before = bytes(read(start, start + before))
        self._start += start
        self.columns = list(_columns(schema))

    def as_if_empty(self) -> bytes:
        """A file with the same columns and no rows."""
        footer = self._before + b"\x19\x0c\0"  # a list of no row groups
        return MARK + footer + len(footer).to_bytes(4, "little") + MARK

    def row_groups(self, path: Sequence[str]) -> list[RowGroup]:
        """The column at this path in each row group, found by searching for the bytes of the path.

        They may occur elsewhere too, within a value's statistics: then there are more matches than row groups, or no
        column's fields follow, and everything is parsed, which takes a hundred times as long.
        """
        try:
            found = list(self._found(path))
            if len(found) == self._count and sum(group.rows for group in found) == self._rows:
                return found
        except Damaged:
            pass
        found = list(self._parsed(path))
        if sum(group.rows for group in found) != self._rows:
            raise Damaged("the footer's row counts do not add up")
        return found

    def _found(self, path: Sequence[str]) -> Iterator[RowGroup]:
        names = [name.encode() for name in path]
        if len(names) > 14 or max(map(len, names)) > 127:  # longer ones are written in another way
            return
        wanted = bytes([3 - 2 << 4 | 9, len(names) << 4 | 8]) + b"".join(bytes([len(name)]) + name for name in names)
        for start in range(self._start, self._end, _BLOCK):
            block = bytes(self._read(start, min(self._end, start + _BLOCK + len(wanted) - 1)))
            at = block.find(wanted)
            while at >= 0:
                at += len(wanted)
                try:
                    about, rest = _column_chunk(block, at)
                except IndexError:  # it continues after the block
                    about, rest = self._at(start + at, _column_chunk)
                yield _row_group(about, rest)
                at = block.find(wanted, at)

    def _parsed(self, path: Sequence[str]) -> Iterator[RowGroup]:
        names = [name.encode() for name in path]
        at = self._start
        for _ in range(self._count):
            fields, length = self._at(at, parsed)
            at += length
            columns = fields.get(1)
            for column in columns if isinstance(columns, list) else ():
                about = column.get(3) if isinstance(column, dict) else None
                if isinstance(about, dict) and about.get(3) == names:
                    yield _row_group(about, column)

    def _at(self, start: int, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        return _looked(self._read, start, self._end, parse, _ENDS)


_ENDS = "the footer ends too soon"


def _column_chunk(raw: bytes, at: int = 0) -> tuple[dict[int, Any], dict[int, Any]]:
    """A column's metadata in a row group, read from after its path, and the fields that follow the metadata."""
    about, end = parsed(raw, at, number=3)
    return about, parsed(raw, end, number=3)[0]


def _row_group(about: dict[int, Any], rest: dict[int, Any]) -> RowGroup:
    """The row group that a column's metadata describes. Raise Encrypted if the `rest` of the fields says so."""
    if _CRYPTO_METADATA in rest:
        raise Encrypted
    try:
        start = min(about.get(11) or about[9], about[9])
        nulls = about.get(12, {}).get(3, about[5])
        group = RowGroup(about[5], about[4], start, start + about[7], about[6], nulls)
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged("a column lacks a required field") from error
    if not all(isinstance(number, int) and number >= 0 for number in group) or group.end < group.start:
        raise Damaged("the footer gives an impossible place for a column")
    return group


def _columns(schema: list[Any]) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """The columns with their paths, in order. In the schema a group comes before its members."""
    inside: list[tuple[tuple[str, ...], int, bool]] = [((), 0, True)]
    still = [0]  # members of each group that are still to come
    for element in schema[1:]:
        while len(inside) > 1 and not still[-1]:
            inside.pop(), still.pop()
        path, levels, ordinary = inside[-1]
        still[-1] -= 1
        try:
            kind, width, repetition, children = (int(element.get(number, 0)) for number in (1, 2, 3, 5))
            path, levels = (*path, element[4].decode("utf-8", "replace")), levels + bool(repetition)
            meaning = {element.get(6), *element.get(10, ())} - {None}
        except (AttributeError, KeyError, TypeError) as error:
            raise Damaged("the footer's schema is not valid") from error
        if ordinary := ordinary and repetition != _REPEATED:
            ordinary = _DECIMAL not in meaning if kind == BYTE_ARRAY else not meaning
        if children:
            inside.append((path, levels, ordinary))
            still.append(children)
        else:
            yield path, Leaf(kind, width, levels, ordinary and kind in (BYTE_ARRAY, FIXED))


def _looked(
    read: Callable[[int, int], Any], start: int, limit: int, parse: Callable[[bytes], _Parsed], otherwise: str
) -> _Parsed:
    """Parse what is at `start`, with more and more bytes until they are enough."""
    look = _FIRST_LOOK
    while True:
        end = min(start + look, limit)
        try:
            return parse(bytes(read(start, end)))
        except IndexError:
            if end == limit or look >= _LONGEST_HEADER:
                raise Damaged(otherwise) from None
            look *= 16


def _before_groups(raw: bytes) -> tuple[int, int, list[Any], int, int]:
    """Where the list of row groups begins, and the first of them; the schema; the numbers of row groups and rows."""
    fields: dict[int, Any] = {}
    at = number = 0
    while raw[at]:
        before, kind = at, raw[at] & 15
        number, at = (number + (raw[at] >> 4), at + 1) if raw[at] >> 4 else zigzag(raw, at + 1)
        if number == 4:
            schema, rows = fields.get(2), fields.get(3)
            if not isinstance(schema, list) or not isinstance(rows, int):
                raise Damaged("the footer lacks a required field")
            count, first = _list_head(raw, at)
            return before, first, schema, count, rows
        fields[number], at = _value(raw, at, kind, 0)
    raise Damaged("the footer has no row groups")


def _list_head(raw: bytes, at: int) -> tuple[int, int]:
    """The length of a list, and where its values begin."""
    return (raw[at] >> 4, at + 1) if raw[at] >> 4 < 15 else varint(raw, at + 1)


# Thrift's compact protocol, as far as parquet uses it: a struct becomes a dictionary by field numbers. Kinds: 1 and 2
# true and false, 3 a byte, 4-6 integers, 7 a double, 8 bytes, 9 and 10 lists, 11 a map, 12 a struct.


def parsed(raw: bytes, at: int = 0, depth: int = 0, number: int = 0) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and where it ends; IndexError where the bytes end before that.

    `number`: the field before `at`, where that is in the middle of a struct.
    """
    fields: dict[int, Any] = {}
    while raw[at]:
        step, kind = raw[at] >> 4, raw[at] & 15
        at += 1
        if not step:
            number, at = zigzag(raw, at)
        else:
            number += step
        if 4 <= kind <= 6:
            fields[number], at = zigzag(raw, at)
        else:
            fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(raw, at, kind, depth)
    return fields, at + 1


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return zigzag(raw, at)
    if kind in (1, 2, 3):
        return raw[at], at + 1
    if kind in (7, 8):
        length, at = (8, at) if kind == 7 else varint(raw, at)
        if at + length > len(raw):
            raise IndexError
        return raw[at : at + length], at + length
    if depth == _DEEPEST:
        raise Damaged("a header is nested too deeply")
    if kind in (9, 10):
        inner = raw[at] & 15
        length, at = _list_head(raw, at)
        values = []
        for _ in range(length):
            value, at = _value(raw, at, inner, depth + 1)
            values.append(value)
        return values, at
    if kind == 12:
        return parsed(raw, at, depth + 1)
    raise Damaged(f"a header has a field of kind {kind}")


def varint(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; IndexError where the bytes end before that."""
    number = shift = 0
    while raw[at] & 128:
        number |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise Damaged("a number in a header has no end")
    return number | raw[at] << shift, at + 1


def zigzag(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """The same for a number that may be negative."""
    number, at = (raw[at], at + 1) if raw[at] < 128 else varint(raw, at)
    return (number >> 1) ^ -(number & 1), at
