"""Passes over text in the core, against Python's own: UTF-8, counting, separators, and the hash of documents."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardmill import core
from shardmill.core import reading
from shardmill.run.splits import PREFIX, numpy_hash

pytestmark = [
    pytest.mark.skipif(not core.available(), reason=f"no compiled core: {core.why_not()}"),
    pytest.mark.parametrize("simd", [True, False], ids=["vectors", "scalar"]),
]


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_every_pair_of_bytes_is_judged_as_python_does_wherever_it_stands(simd: bool) -> None:
    # Behind a lead byte and before one from the middle, so that all classes of sequences up to four bytes occur.
    for first in range(0x70, 256):
        for second in range(0x70, 256):
            pair = bytes([first, second])
            for data in (pair, pair + b"\x80", pair + b"\xbf\x80", b"\xe2" + pair, b"\xf1\x80" + pair):
                padded = b"x" * (29 + first % 5) + data + b"y" * 40
                assert reading.is_utf8(padded, simd=simd) is is_utf8(padded), data
                assert reading.is_utf8(padded[: -40 + second % 2], simd=simd) is is_utf8(padded[: -40 + second % 2])


def test_random_bytes_near_text_are_judged_as_python_does(simd: bool) -> None:
    chance = random.Random(4)
    text = "aé日😀 text ".encode() * 30
    told = [0, 0]
    for _ in range(20_000):
        a = chance.randrange(len(text))
        data = bytearray(text[a : a + chance.randrange(140)])
        if data and chance.random() < 0.5:
            data[chance.randrange(len(data))] = chance.randrange(256)
        wanted = is_utf8(bytes(data))
        told[wanted] += 1
        assert reading.is_utf8(bytes(data), simd=simd) is wanted
    assert min(told) > 1_000


def test_every_character_is_valid_but_for_surrogates(simd: bool) -> None:
    whole = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)])).encode()
    assert reading.is_utf8(whole, simd=simd)
    for code in range(0xD800, 0xE000):
        assert not reading.is_utf8(b"x" * 30 + chr(code).encode("utf-8", "surrogatepass") + b"x" * 30, simd=simd)


def test_bytes_are_counted(simd: bool) -> None:
    chance = np.random.default_rng(1)
    for size in (0, 1, 31, 32, 33, 8159, 8160, 8161, 100_000):
        for byte in (0, 10, 255):
            data = np.where(chance.random(size) < 0.9, np.uint8(byte), np.uint8(7)).tobytes()
            assert core.library().sm_count(data, size, byte, simd) == data.count(bytes([byte]))


@pytest.mark.parametrize(
    "separator", [b"\n", b"\n\n", b"aaa", b"aba", b"ab", b"<|endoftext|>", b"a" * 40 + b"b", b"\0"]
)
def test_separators_are_found_where_split_finds_them(separator: bytes, simd: bool) -> None:
    chance = random.Random(separator)
    parts = [separator, separator, separator[:1], separator[1:], b"a", b"b", b"\n", b" some more words "]
    for _ in range(1_500):
        data = b"".join(chance.choices(parts, k=chance.randrange(30)))
        pieces = data.split(separator)
        wanted = np.cumsum([len(piece) for piece in pieces[:-1]]) + len(separator) * np.arange(len(pieces) - 1)
        assert reading.find(np.frombuffer(data, np.uint8), separator, simd=simd).tolist() == wanted.tolist()


def test_the_hash_is_that_of_numpy(simd: bool) -> None:
    chance = np.random.default_rng(2)
    sizes = [*range(140), 500, PREFIX - 1, PREFIX, PREFIX + 1, 3 * PREFIX, 0]
    for gap in (0, 3):
        offsets = np.cumsum([5, *(size + gap for size in sizes)]).astype(np.int64)
        data = chance.integers(0, 256, int(offsets[-1]), np.uint8)
        for seed in (0, 1, 2**64 - 1, -5, 2**70 + 3):
            # After the last row there need be no gap.
            bare = reading.content_hash(data[: len(data) - gap], offsets, seed, gap)
            assert bare.tolist() == numpy_hash(data, offsets, seed, gap).tolist()
            found = reading.content_hash(data, offsets, seed, gap)
            assert found.tolist() == numpy_hash(data, offsets, seed, gap).tolist()


@pytest.mark.parametrize("rows", [[], [0], [1], [12], [13], [0, 5]])
def test_a_gap_may_be_longer_than_all_rows(rows: list[int], simd: bool) -> None:
    gap = 13
    offsets = np.cumsum([0, *(size + gap for size in rows)]).astype(np.int64)
    data = np.arange(max(0, int(offsets[-1]) - gap), dtype=np.uint8)
    found = reading.content_hash(data, offsets, 0, gap)
    alone = [
        reading.content_hash(data[o : o + n], np.array([0, n]), 0, 0)[0] for o, n in zip(offsets, rows, strict=False)
    ]
    assert found.tolist() == alone


def test_offsets_that_lead_outside_are_refused(simd: bool) -> None:
    data, hashes = np.zeros(10, np.uint8), np.empty(3, np.uint64)
    for offsets in ([0, 11], [-1, 5], [6, 5], [0, 2**62], [-(2**63), 2**63 - 1], [2**63 - 1, -(2**63)]):
        given = np.array(offsets, np.int64)
        done = core.library().sm_content_hash(data.ctypes.data, 10, given.ctypes.data, 1, 0, 0, hashes.ctypes.data)
        assert done == -1, offsets
