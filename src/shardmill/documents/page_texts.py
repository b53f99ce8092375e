"""The texts of a parquet page: decompressed, located and measured some rows at a time, then copied out."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shardmill import core
from shardmill.documents.columns import Texts, gather
from shardmill.documents.pages import (
    BYTE_STREAM_SPLIT,
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
from shardmill.storage import decompressor

SNAPPY, LZ4 = 1, 5
CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd", 7: "lz4_raw"}
# Numbers that are unpacked at once; they take 80 bytes each meanwhile.
_STEP = 1 << 14
_Places = NDArray[np.int64]
_Data = NDArray[np.uint8]


def needs_arrow(codec: int) -> bool:
    """Whether pyarrow is needed to decompress."""
    return CODECS.get(codec) in ("brotli", "lz4_raw") or (codec == SNAPPY and not core.available())


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
    """The rows of a page: each is null, or a part of the data, which may follow a prefix of the text before it."""

    def __init__(self, page: Page, raw: Any, leaf: Leaf, values: Values | None) -> None:
        """`raw`: the page without its header; `values`: of the dictionary, if it has numbers into one."""
        data = _content(page, raw)
        levels = memoryview(raw)[page.repetitions : page.repetitions + page.definitions]
        if page.kind != DATA_V2 and leaf.levels:
            _check_encoding(page.level_encoding, RLE)
            end = 4 + int.from_bytes(data[:4], "little")
            levels, data = data.data[4:end], data[end:]
        if page.encoding == BYTE_STREAM_SPLIT and leaf.kind == FIXED:  # the first bytes of all values, then the second
            data, page = data.reshape(leaf.width, -1).T.ravel(), page._replace(encoding=PLAIN)
        self._levels, self._deepest = _Hybrid(levels, leaf.levels.bit_length()), leaf.levels
        self._leaf, self._data, self._at = leaf, data, 0
        self._values = self._listed = None
        self._last = np.empty(0, np.uint8)
        if page.numbers:
            if values is None:
                raise Damaged("a page needs a dictionary, and there is none")
            self._numbers = _Hybrid(data.data[1:], int.from_bytes(data[:1], "little"))
            self._data, self._values = values.data, values
        elif page.encoding in (DELTA_LENGTH, DELTA_BYTES):
            self._listed = _listed(data, page)
        else:
            _check_encoding(page.encoding, PLAIN)

    def measure(self, count: int) -> tuple[_Places, NDArray[np.bool_]]:
        valid = self._levels.read(count) == self._deepest
        self._passed = np.concatenate([[0], np.cumsum(valid)])
        self._starts, self._sizes, self._prefixes = self._next(int(self._passed[-1]))
        lengths = np.zeros(count, np.int64)
        lengths[valid] = self._sizes if self._prefixes is None else self._sizes + self._prefixes
        return lengths, valid

    def _next(self, count: int) -> tuple[_Places, _Places, _Places | None]:
        """Where the next texts are in the data, their lengths, and the lengths of the prefixes that they repeat."""
        if self._values is not None:
            found = self._numbers.read(count)
            if count and found.max() >= len(self._values.starts):
                raise Damaged("an index is outside of the dictionary")
            return self._values.starts[found], self._values.lengths[found], None
        if self._listed is None:
            starts, lengths, self._at = _plain(self._data, self._at, count, self._leaf)
            return starts, lengths, None
        starts, lengths, prefixes = self._listed
        some = slice(self._at, self._at + count)
        self._at += count
        if len(starts) < self._at:
            raise Damaged("a page has fewer texts than it says")
        return starts[some], lengths[some], None if prefixes is None else prefixes[some]

    def text(self, first: int, last: int) -> _Data:
        some, behind = slice(*self._passed[[first, last]].tolist()), len(self._last)
        sizes = self._sizes[some] if self._prefixes is None else self._sizes[some] + self._prefixes[some]
        out = np.empty(behind + int(sizes.sum()), np.uint8)
        out[:behind] = self._last
        self.gather(out, behind, some)
        if self._prefixes is not None and len(sizes):
            self._last = out[len(out) - int(sizes[-1]) :].copy()
        return out[behind:]

    def gather(self, out: _Data, at: int, some: slice = slice(None)) -> int:
        """Copy some of the texts that were measured into `out` from `at` on. Returns where they end."""
        prefixes = None if self._prefixes is None else self._prefixes[some]
        end = gather(self._data, self._starts[some], self._sizes[some], prefixes, out, at)
        if end < 0:
            raise Damaged("a page holds more text than it may")
        return end

    def skip(self, row: int) -> None:
        if self._prefixes is not None:
            self.text(row, row + 1)


def _check_encoding(found: int, known: int) -> None:
    if found != known:
        raise Damaged(f"a page has the encoding {ENCODINGS.get(found, found)}, which cannot be decoded here")


def _content(page: Page, raw: Any) -> _Data:
    """A page decompressed, without the uncompressed levels before it."""
    if page.checksum is not None and zlib.crc32(raw) != page.checksum & 0xFFFFFFFF:
        raise Damaged("a page does not have the checksum (CRC) that its header says")
    ahead = page.repetitions + page.definitions
    data, size = np.frombuffer(raw, np.uint8)[ahead:], page.size - ahead
    if not size:
        return data[:0]
    if page.codec and page.compressed:
        try:
            data = np.frombuffer(_decompressed(page.codec, data, size), np.uint8)
        except (MemoryError, Damaged):
            raise
        except Exception as error:  # the libraries' own errors derive from Exception alone
            raise Damaged(f"a page cannot be decompressed: {error}") from error
    if len(data) != size:
        raise Damaged("a page does not have the size that its header says")
    return data


def _decompressed(codec: int, stored: _Data, size: int) -> Any:
    """The decompressed bytes, of which `size` are expected; fewer, or one more, where the page is damaged."""
    name = CODECS.get(codec, "")
    if name in ("gzip", "zstd"):
        data, rest = b"", cast(Any, stored.data)
        while len(rest) and len(data) <= size:
            member = decompressor(name)
            data += member.decompress(rest, size + 1 - len(data))
            rest = member.unused_data if member.eof else b""
        return data
    if codec == SNAPPY and core.available():
        return core.snappy(stored, size)
    if not name:
        raise Damaged(f"its pages are compressed by codec {codec}, which is not known here")
    import pyarrow as pa

    if codec == LZ4:  # as Hadoop has it: before each block, big-endian, the sizes that it has and takes; or raw
        data, at = b"", 0
        while at < len(stored):
            has, takes = (int.from_bytes(stored[at + i : at + i + 4], "big") for i in (0, 4))
            if has > size - len(data):
                break
            data += pa.Codec(name).decompress(stored[at + 8 : at + 8 + takes], has, asbytes=True)
            at += 8 + takes
        if len(data) == size:
            return data
    return pa.Codec(name).decompress(stored, size)


class _Hybrid:
    """A reader of the RLE/bit-packing hybrid: numbers of `width` bits in runs of one number, or in groups of eight."""

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
    """Numbers that are stored as differences, at most `most`, and where they end."""
    try:
        block, at = varint(raw, at)
        parts, at = varint(raw, at)
        count, at = varint(raw, at)
        first, at = zigzag(raw, at)
        if count > most or not parts or block > 1 << 20 or block % (8 * parts) or not block:
            raise Damaged("delta-encoded numbers have impossible block sizes")
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
        raise Damaged("delta-encoded numbers end too early") from None
    return np.cumsum(numbers), at


def _listed(data: _Data, page: Page) -> tuple[_Places, _Places, _Places | None]:
    """Where the texts of a delta encoding are, their lengths, and the lengths of the prefixes that they repeat."""
    prefixes, at = _deltas(data.data, 0, page.values) if page.encoding == DELTA_BYTES else (None, 0)
    lengths, at = _deltas(data.data, at, page.values)
    good = bool(((lengths >= 0) & (lengths <= len(data))).all()) and at + int(lengths.sum()) <= len(data)
    if prefixes is not None and (good := good and len(prefixes) == len(lengths)):
        before = np.append(0, prefixes + lengths)[:-1]
        good = bool(((prefixes >= 0) & (prefixes <= before)).all())
    if not good:
        raise Damaged("the lengths of its texts are impossible")
    return at + np.cumsum(lengths) - lengths, lengths, prefixes


def _plain(data: _Data, at: int, count: int, leaf: Leaf) -> tuple[_Places, _Places, int]:
    """Where the next values of a plain encoding are, their lengths, and where the last ends."""
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
        raise Damaged("a text ends outside of its page")
    return starts, lengths, end
