"""The texts of a parquet page: decompressed, found and weighed some rows after the others, and then put together."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill import core
from shardmill.documents.batches import Texts
from shardmill.documents.pages import (
    BYTE_ARRAY,
    DATA_V2,
    DELTA_BYTES,
    DELTA_LENGTH,
    ENCODINGS,
    FIXED,
    PLAIN,
    RLE,
    Damaged,
    Leaf,
    Page,
    varint,
    zigzag,
)

SNAPPY, GZIP, BROTLI, LZ4, ZSTD, LZ4_RAW = 1, 2, 4, 5, 6, 7
BY_ARROW = {SNAPPY: "snappy", BROTLI: "brotli", LZ4: "lz4_raw", LZ4_RAW: "lz4_raw"}
# Values whose bits are taken apart at once; they take 80 bytes each meanwhile.
_STEP = 1 << 14
_Places = NDArray[np.int64]
_Data = NDArray[np.uint8]


def needs_arrow(codec: int) -> bool:
    """Whether pyarrow will be imported to decompress."""
    return codec in BY_ARROW and not (codec == SNAPPY and core.available())


class Values(NamedTuple):
    """The entries of a dictionary."""

    data: _Data
    starts: _Places
    lengths: _Places


def dictionary_values(page: Page, raw: Any, leaf: Leaf) -> Values:
    """The entries of a dictionary, as its page is stored. Raises Damaged, as all here do."""
    data = _content(page, raw)
    return Values(data, *_plain(data, 0, page.values, leaf)[:2])


class PageTexts(Texts):
    """The rows of a page."""

    def __init__(self, page: Page, raw: Any, leaf: Leaf, values: Values | None) -> None:
        """`raw`: the page without its header; `values`: of the dictionary, if it has numbers into one."""
        self._prefixes: _Places | None = None
        self._last = np.empty(0, np.uint8)
        self._data, self._levels = np.empty(0, np.uint8), None
        self._find: Callable[[int], tuple[_Places, _Places]] | None = None
        if leaf.kind not in (BYTE_ARRAY, FIXED):  # parquet stores a column of nothing but nulls as numbers
            return
        self._data, levels = _content(page, raw), memoryview(b"")
        if page.kind == DATA_V2:
            levels = memoryview(raw)[page.repetitions : page.repetitions + page.definitions]
        elif leaf.levels:
            end = 4 + int.from_bytes(self._data[:4], "little")
            levels, self._data = self._data.data[4:end], self._data[end:]
            if page.level_encoding != RLE:
                raise Damaged(f"its levels have the encoding {_name(page.level_encoding)}, which is not supported")
        self._levels = _Hybrid(levels, leaf.levels.bit_length()) if leaf.levels else None
        self._deepest = leaf.levels
        self._find = self._finder(page, leaf, values)

    def lengths(self, count: int) -> tuple[_Places, NDArray[np.bool_]]:
        """Bytes of text in each of the next rows, and which of them are not null."""
        if self._find is None:
            return np.zeros(count, np.int64), np.zeros(count, np.bool_)
        valid = np.ones(count, np.bool_) if self._levels is None else self._levels.read(count) == self._deepest
        self._passed = np.concatenate([[0], np.cumsum(valid)])
        self._starts, self._sizes = self._find(int(self._passed[-1]))
        lengths = np.zeros(count, np.int64)
        lengths[valid] = self._sizes
        if self._prefixes is not None:
            self._ahead, self._prefixes = np.split(self._prefixes, [self._passed[-1]])
            lengths[valid] += self._ahead
        return lengths, valid

    def text(self, first: int, last: int) -> _Data:
        """The text of some of these rows, which are asked for in order; those that repeat others, each once."""
        if self._find is None:
            return self._data
        some = slice(*self._passed[[first, last]].tolist())
        prefixes = None if self._prefixes is None else self._ahead[some]
        total = int(self._sizes[some].sum() + (0 if prefixes is None else prefixes.sum()))
        out = np.empty(len(self._last) + total, np.uint8)
        out[: len(self._last)] = self._last
        at = self.gather(out, len(self._last), some)
        if prefixes is not None and some.stop > some.start:
            self._last = out[at - int(prefixes[-1] + self._sizes[some][-1]) :].copy()
        return out[len(out) - total :]

    def gather(self, out: _Data, at: int, rows: slice = slice(None)) -> int:
        """Put the texts of some values into `out` from `at` on. Returns where they end."""
        if self._find is None:
            return at
        prefixes = None if self._prefixes is None else self._ahead[rows]
        end = _gather(self._data, self._starts[rows], self._sizes[rows], prefixes, out, at)
        if end < 0:
            raise Damaged("a page holds more text than it may")
        return end

    def skip(self, first: int, last: int) -> None:
        if self._prefixes is not None:
            self.text(first, last)

    def _finder(self, page: Page, leaf: Leaf, values: Values | None) -> Callable[[int], tuple[_Places, _Places]]:
        """What finds where the next values stand in the data, and how long they are."""
        if page.numbers:
            if values is None:
                raise Damaged("a page has numbers into a dictionary that is not there")
            numbers = _Hybrid(self._data.data[1:], int(self._data[0]) if len(self._data) else 0)
            self._data = values.data

            def look_up(count: int) -> tuple[_Places, _Places]:
                found = numbers.read(count)
                if count and found.max() >= len(values.starts):
                    raise Damaged("a number leads outside of its dictionary")
                return values.starts[found], values.lengths[found]

            return look_up
        if page.encoding in (DELTA_LENGTH, DELTA_BYTES):
            raw, at = self._data.data, 0
            if page.encoding == DELTA_BYTES:
                self._prefixes, at = _deltas(raw, at, page.values)
            lengths, at = _deltas(raw, at, page.values)
            ends = at + np.cumsum(lengths)
            if (lengths < 0).any() or ends[-1:] > len(raw) or not self._prefixes_fit(lengths):
                raise Damaged("the lengths of its texts lead elsewhere")

            def next_of(count: int) -> tuple[_Places, _Places]:
                nonlocal ends, lengths
                if count > len(ends):
                    raise Damaged("a page has fewer texts than it says")
                found = (ends[:count] - lengths[:count], lengths[:count])
                ends, lengths = ends[count:], lengths[count:]
                return found

            return next_of
        if page.encoding != PLAIN:
            raise Damaged(f"a page has the encoding {_name(page.encoding)}, which is not supported")
        data, behind = self._data, 0  # not `self`, which would be a cycle that keeps all of this for long

        def plain(count: int) -> tuple[_Places, _Places]:
            nonlocal behind
            starts, lengths, behind = _plain(data, behind, count, leaf)
            return starts, lengths

        return plain

    def _prefixes_fit(self, lengths: _Places) -> bool:
        """Whether no text repeats more than the one before it has."""
        ahead = self._prefixes
        if ahead is None:
            return True
        before = np.append(0, ahead[:-1] + lengths[:-1]) if len(ahead) == len(lengths) else ahead[:0]
        return len(ahead) == len(lengths) and bool(((ahead >= 0) & (ahead <= before[: len(ahead)])).all())


def _name(encoding: int) -> str:
    return ENCODINGS.get(encoding, str(encoding))


def _content(page: Page, raw: Any) -> _Data:
    """What a page holds behind its levels, or if they are compressed too, with them."""
    if page.checksum is not None and zlib.crc32(raw) != page.checksum & 0xFFFFFFFF:
        raise Damaged("a page does not have the checksum (CRC) that its header says")
    ahead = page.repetitions + page.definitions
    if ahead > min(len(raw), page.size):
        raise Damaged("the levels of a page are longer than itself")
    stored, size = np.frombuffer(raw, np.uint8)[ahead:], page.size - ahead
    data = stored
    if page.codec and page.compressed:
        data = np.frombuffer(_decompressed(page.codec, stored, size), np.uint8) if size else stored[:0]
    if len(data) != size:
        raise Damaged("a page does not have the size that its header says")
    return data


def _decompressed(codec: int, stored: _Data, size: int) -> Any:
    try:
        if codec == SNAPPY and core.available():
            data = core.snappy(stored, size)
            return b"" if data is None else data
        if codec in BY_ARROW:
            return _by_arrow(codec, stored, size)
        if codec in (GZIP, ZSTD):
            return _members(codec, stored, size)
    except MemoryError:
        raise
    except Exception as error:  # the libraries' own errors derive from Exception alone
        raise Damaged(f"a page cannot be decompressed: {error}") from error
    raise Damaged(f"its pages are compressed by codec {codec}, which is not supported")


def _by_arrow(codec: int, stored: _Data, size: int) -> Any:
    import pyarrow as pa

    name = BY_ARROW[codec]
    if codec == LZ4 and stored[:4].tobytes() == size.to_bytes(4, "big"):
        # As Hadoop writes it: before each block, big-endian, the sizes that it has and takes.
        blocks, at = [], 0
        while at < len(stored):
            has, takes = (int.from_bytes(stored[at + i : at + i + 4], "big") for i in (0, 4))
            if has > size:
                raise ValueError("a block is larger than its page")
            blocks.append(pa.Codec(name).decompress(stored[at + 8 : at + 8 + takes], has, asbytes=True))
            at += 8 + takes
        return b"".join(blocks)
    return pa.Codec(name).decompress(stored, size)


def _members(codec: int, stored: _Data, size: int) -> bytes:
    """Gzip or zstd; one after another, where there are several."""
    if codec == GZIP:
        from isal import isal_zlib

        def new() -> Any:
            return isal_zlib.decompressobj(wbits=47)  # gzip's own header, or zlib's
    elif sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor as new
    else:
        from backports.zstd import ZstdDecompressor as new

    data, rest = b"", stored.data
    while len(rest) and len(data) <= size:
        member = new()
        data += member.decompress(rest, size + 1 - len(data))
        if not member.eof:
            raise ValueError("it ends too early, or is larger than its header says")
        rest = member.unused_data
    return data


class _Hybrid:
    """Numbers of some bits each, in runs: one that is repeated, or groups of eight. They are read in order."""

    def __init__(self, raw: Any, width: int) -> None:
        if width > 32:
            raise Damaged("numbers of a page have more than 32 bits")
        self._raw, self._width, self._at = memoryview(raw), width, 0
        self._left = self._value = self._bit = 0
        self._packed = False

    def read(self, count: int) -> NDArray[np.uint64]:
        out = np.zeros(count, np.uint64)
        done = 0
        while done < count and self._width:
            if not self._left:
                self._next_run()
            step = min(count - done, self._left, _STEP)
            if self._packed:
                out[done : done + step] = _unpacked(self._raw, self._bit, self._width, step)
                self._bit += step * self._width
            else:
                out[done : done + step] = self._value
            self._left -= step
            done += step
        return out

    def _next_run(self) -> None:
        try:
            head, at = varint(self._raw, self._at)
        except IndexError:
            raise Damaged("a page has fewer rows than it says") from None
        self._packed, self._left, self._bit = bool(head & 1), head >> 1, 8 * at
        if self._packed:
            self._at, self._left = at + self._left * self._width, 8 * self._left
        else:
            self._at = at + (self._width + 7) // 8
            self._value = int.from_bytes(self._raw[at : self._at], "little")


def _unpacked(raw: memoryview, bit: int, width: int, count: int) -> NDArray[np.uint64]:
    """So many numbers of `width` bits each, of which the first begins with this bit."""
    bits = np.unpackbits(np.frombuffer(raw[bit // 8 : (bit + count * width + 7) // 8], np.uint8), bitorder="little")
    bits = bits[bit % 8 :][: count * width]
    if len(bits) < count * width or width > 64:
        raise Damaged("a page has fewer rows than it says")
    wide = np.zeros((count, 64), np.uint8)
    wide[:, :width] = bits.reshape(count, width)
    return np.packbits(wide, axis=1, bitorder="little").view("<u8")[:, 0]


def _deltas(raw: memoryview, at: int, most: int) -> tuple[_Places, int]:
    """Numbers that are stored as differences, at the most so many, and where they end."""
    try:
        block, at = varint(raw, at)
        parts, at = varint(raw, at)
        count, at = varint(raw, at)
        first, at = zigzag(raw, at)
        if count > most or not parts or block > 1 << 20 or block % (8 * parts) or not block:
            raise Damaged("differences are stored in blocks that cannot be")
        numbers = np.zeros(count, np.int64)
        numbers[:1] = first
        done, each = 1, block // parts
        while done < count:
            least, at = zigzag(raw, at)
            widths, at = bytes(raw[at : at + parts]), at + parts
            for width in widths[: -(-(count - done) // each)]:
                some = min(each, count - done)
                numbers[done : done + some] = _unpacked(raw, 8 * at, width, some).view(np.int64) + np.int64(least)
                done, at = done + some, at + each * width // 8
    except (IndexError, OverflowError):
        raise Damaged("differences end too early") from None
    return np.cumsum(numbers), at


# What the core does, in plain Python for where it is not: 0.3 µs for each text.


def _plain(data: _Data, at: int, count: int, leaf: Leaf) -> tuple[_Places, _Places, int]:
    """Where the next values stand that are stored one after another, their lengths, and where the last ends."""
    if leaf.kind == FIXED:
        starts, end = at + leaf.width * np.arange(count), at + leaf.width * count
        lengths = np.full(count, leaf.width)
    elif core.available():
        starts, lengths, end = core.find_texts(data, at, count)
    else:
        starts, end, raw = np.empty(count, np.int64), at, data.data
        lengths = np.empty(count, np.int64)
        for i in range(count):
            starts[i] = end + 4
            lengths[i] = int.from_bytes(raw[end : end + 4], "little")
            end += 4 + int(lengths[i])
    if not 0 <= end <= len(data):
        raise Damaged("a text leads outside of its page")
    return starts, lengths, end


def _gather(data: _Data, starts: _Places, lengths: _Places, prefixes: _Places | None, out: _Data, at: int) -> int:
    """Put texts together in `out` from `at` on, each behind the beginning of the one before; returns where it ends."""
    if core.available():
        return core.gather(data, starts, lengths, prefixes, out, at)
    raw, before, made = data.data, out[:at].tobytes(), list[bytes]()
    ahead = np.zeros_like(starts) if prefixes is None else prefixes
    for start, length, prefix in zip(starts.tolist(), lengths.tolist(), ahead.tolist(), strict=True):
        before = before[:prefix] + raw[start : start + length]
        made.append(before)
    text = np.frombuffer(b"".join(made), np.uint8)
    out[at : at + len(text)] = text
    return at + len(text)
