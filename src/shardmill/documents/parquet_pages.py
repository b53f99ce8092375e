"""Where the pages of a parquet column are, and what they take when they are decoded: from its footer and page headers.

pyarrow knows only the first half, and ends the process where a column in the footer is encrypted or damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

# Kinds of pages and encodings have these numbers in the format.
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 7, 8
# A header is short, but may hold the page's smallest and largest text.
_FIRST_LOOK, _LONGEST_HEADER = 1 << 9, 16 << 20
_DEEPEST = 16
_CRYPTO_METADATA = 8
"""The field of a column chunk that an encrypted one has."""


class RowGroup(NamedTuple):
    """The text column of a row group, as the footer describes it."""

    number: int
    first: int
    """The number of its first row."""
    rows: int
    start: int
    """Where its pages begin in the file, and where they end."""
    end: int
    size: int
    """Bytes when decompressed."""
    nulls: int
    """Upper bound of the rows that are null."""


class Page(NamedTuple):
    """One page, as its header describes it."""

    kind: int
    encoding: int
    start: int
    """Where its header begins in the file."""
    end: int
    size: int
    """Bytes when decompressed."""
    values: int
    """Rows, or entries of a dictionary."""

    @property
    def coded(self) -> bool:
        """Its rows are indices into the dictionary."""
        return self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


class Damaged(ValueError):
    """A header is not valid, or contradicts the footer."""


class Encrypted(Exception):
    """The column cannot be read without a key."""


def row_groups(footer: bytes, path: Sequence[str], count: int, rows: int) -> list[RowGroup]:
    """The column at this path in all row groups, of which there are `count`, with so many rows.

    Found by searching for the bytes of the path: to parse a footer of many columns would take seconds. These bytes may
    occur elsewhere too, within a value's statistics: then the fields of a column do not follow.
    """
    names = [name.encode() for name in path]
    many = bytes([len(names) << 4 | 8]) if len(names) < 15 else b"\xf8" + _varint(len(names))
    wanted = bytes([3 - 2 << 4 | 9]) + many + b"".join(_varint(len(name)) + name for name in names)
    found, at = list[RowGroup](), -1
    while (at := footer.find(wanted, at + 1)) >= 0:
        try:
            about, end = _struct(footer, at + len(wanted), 0, 3)
            first = found[-1].first + found[-1].rows if found else 0
            found.append(_row_group(len(found), first, about, _struct(footer, end, 0, 3)[0]))
        except (Damaged, IndexError):
            continue
    if len(found) != count or sum(group.rows for group in found) != rows:
        raise Damaged("the footer's row groups are not valid")
    return found


def _varint(number: int) -> bytes:
    """A number as it stands in a header."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _row_group(number: int, first: int, about: dict[int, Any], rest: dict[int, Any]) -> RowGroup:
    if _CRYPTO_METADATA in rest:
        raise Encrypted
    try:
        start = min(about.get(11) or about[9], about[9])
        nulls = about.get(12, {}).get(3, about[5])
        group = RowGroup(number, first, about[5], start, start + about[7], about[6], nulls)
    except (LookupError, TypeError, AttributeError) as error:
        raise Damaged("a column lacks a required field") from error
    if not all(isinstance(value, int) and value >= 0 for value in group) or group.end < group.start:
        raise Damaged("the footer gives an impossible place for a column")
    return group


def pages(read: Callable[[int, int], Any], start: int, end: int, rows: int) -> Iterator[Page]:
    """The dictionary and the data pages of the column chunk between `start` and `end` of a file.

    `read(start, end)` returns bytes of the file. Raises Damaged where headers contradict each other.
    """
    found = 0
    while found < rows:
        page = _page(read, start, end)
        if page.kind in (DATA, DATA_V2):
            found += page.values
            if found > rows:
                raise Damaged("its pages hold more rows than the footer says")
        if page.kind in (DATA, DATA_V2, DICTIONARY):
            yield page
        start = page.end


def _page(read: Callable[[int, int], Any], start: int, limit: int) -> Page:
    look = _FIRST_LOOK
    while True:
        raw = bytes(read(start, min(start + look, limit))) if start < limit else b""
        try:
            header, length = _struct(raw, 0, 0)
            break
        except IndexError:  # the header is longer than that
            if start + look >= limit or look >= _LONGEST_HEADER:
                raise Damaged("a page has no header") from None
            look *= 16
    try:
        kind, size, stored = header[1], header[2], header[3]
        about = header[{DATA: 5, DICTIONARY: 7, DATA_V2: 8}[kind]] if kind in (DATA, DICTIONARY, DATA_V2) else {1: 0}
        page = Page(kind, about.get(4 if kind == DATA_V2 else 2, 0), start, start + length + stored, size, about[1])
        if min(page) < 0 or stored < 0 or page.end > limit:
            raise Damaged("a page's header has impossible values")
    except (AttributeError, LookupError, TypeError) as error:
        raise Damaged("a page's header lacks a required field") from error
    return page


# Thrift's compact protocol, as far as parquet uses it: a struct becomes a dictionary by field numbers. Kinds: 1 and
# 2 true and false, 3 a byte, 4-6 integers, 7 a double, 8 bytes, 9 and 10 lists, 12 a struct. IndexError where the bytes
# end too early.


def _struct(raw: bytes, at: int, depth: int, number: int = 0) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and where it ends. `number`: the field before `at`, if that is in the middle of a struct."""
    if depth == _DEEPEST:
        raise Damaged("a header is nested too deeply")
    fields: dict[int, Any] = {}
    while raw[at]:
        step, kind = raw[at] >> 4, raw[at] & 15
        number, at = (number + step, at + 1) if step else _integer(raw, at + 1)
        fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(raw, at, kind, depth)
    return fields, at + 1


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if 4 <= kind <= 6:
        return _integer(raw, at)
    if kind in (1, 2, 3):
        return raw[at], at + 1
    if kind == 12:
        return _struct(raw, at, depth + 1)
    if kind in (7, 8):
        length, at = (8, at) if kind == 7 else _unsigned(raw, at)
        if at + length > len(raw):
            raise IndexError
        return raw[at : at + length], at + length
    if kind in (9, 10) and depth < _DEEPEST:
        inner, length = raw[at] & 15, raw[at] >> 4
        length, at = (length, at + 1) if length < 15 else _unsigned(raw, at + 1)
        values = []
        for _ in range(length):
            value, at = _value(raw, at, inner, depth + 1)
            values.append(value)
        return values, at
    raise Damaged(f"a header has a field of kind {kind}")


def _unsigned(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while raw[at] & 128:
        number |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise Damaged("a number in a header has no end")
    return number | raw[at] << shift, at + 1


def _integer(raw: bytes, at: int) -> tuple[int, int]:
    """Parse a zigzag-encoded integer."""
    number, at = _unsigned(raw, at)
    return (number >> 1) ^ -(number & 1), at
