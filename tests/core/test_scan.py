"""Passes over text in the core, against Python's own: UTF-8, counting, separators, and the hash of documents."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill import core
from shardmill.core import reading
from shardmill.run.splits import PREFIX
from shardmill.tokens.cuts import Cut

pytestmark = [
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
            assert reading.count(data, byte, simd=simd) == data.count(bytes([byte]))


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


def plain_hash(row: bytes, seed: int) -> int:
    """The hash of a row, by Python's numbers: 8 or 16 words, spread over its first 64 KiB."""
    prime, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def stir(value: int, word: int) -> int:
        value = (value ^ word) * prime & mask
        value = (value ^ value >> 29) * prime & mask
        return value ^ value >> 32

    row = row[:PREFIX]
    value = stir(seed & mask, len(row))
    if len(row) < 8:
        return stir(stir(value, int.from_bytes(row, "little")), 0)
    count = 8 if len(row) <= 64 else 16
    places = [(len(row) - 8) * i // (count - 1) for i in range(count)]
    words = [int.from_bytes(row[at : at + 8], "little") for at in places]
    total = sum(word * pow(0xD1342543DE82EF95, i + 1, 1 << 64) for i, word in enumerate(words)) & mask
    return stir(stir(value, total), 0)


def test_the_hash_is_that_of_plain_numbers(simd: bool) -> None:
    chance = np.random.default_rng(2)
    sizes = [*range(140), 500, PREFIX - 1, PREFIX, PREFIX + 1, 3 * PREFIX, 0]
    for gap in (0, 3):
        offsets = np.cumsum([5, *(size + gap for size in sizes)]).astype(np.int64)
        data = chance.integers(0, 256, int(offsets[-1]), np.uint8)
        for seed in (0, 1, 2**64 - 1, -5, 2**70 + 3):
            # After the last row there need be no gap.
            bare = reading.content_hash(data[: len(data) - gap], offsets, seed, gap)
            rows = [data[begin : end - gap].tobytes() for begin, end in pairwise(offsets.tolist())]
            expected = [plain_hash(row, seed) for row in rows]
            assert bare.tolist() == expected
            assert reading.content_hash(data, offsets, seed, gap).tolist() == expected


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


# Of each special token as many bytes as stand before the first place where text may be cut, and then all of it.
_TOKENS = ((b"<|endoftext|>", 11), (b"<|end_of_text|>", 5), (b"<|im_end|>", 4), (b"</s>", 3))
_ODD = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1e\x7f]|<[|/]")


def plain_odd_characters(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int, ends: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """What `odd_counts` returns, row by row."""
    counts = np.zeros((len(ends), len(core.ODD_KINDS)), np.int64)
    for row in range(len(offsets) - 1):
        text = bytes(data[offsets[row] : offsets[row + 1] - gap])
        group = int(np.searchsorted(ends, row, side="right"))
        for match in _ODD.finditer(text) if group < len(ends) else ():
            if len(match[0]) == 1:
                counts[group, -1 if match[0] == b"\x1e" else 0] += 1
                continue
            rest = text[match.start() : match.start() + 15]
            for kind, (token, uncut) in enumerate(_TOKENS, 1):
                counts[group, kind] += len(rest) >= uncut and token[: len(rest)] == rest[: len(token)]
    return counts if counts.any() else None


def test_odd_characters_are_counted_as_the_plain_loop_does_in_any_rows_and_groups(simd: bool) -> None:
    chance = random.Random(7)
    words = [*core.ODD_KINDS[1:-1], "\x1e", "\0", "\x7f", "\x1b", "\n", "<|", "</", "<|end", "<", "|>", "日本", "word "]
    found = 0
    for _ in range(3_000):
        data = np.frombuffer("".join(chance.choices(words, k=chance.randrange(30))).encode(), np.uint8)
        gap = chance.choice([0, 0, 3])
        rows = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(5)))
        bounds = [0, *rows, len(data)]
        offsets = np.array([bounds[0], *[max(b, a + gap) for a, b in pairwise(bounds)]], np.int64)
        if (np.diff(offsets) < gap).any() or offsets[-1] - gap > len(data):
            continue
        ends = np.array(sorted(chance.choices(range(len(offsets)), k=chance.randrange(1, 4))), np.int64)
        wanted, counts = plain_odd_characters(data, offsets, gap, ends), reading.odd_counts(
            data, offsets, gap, ends, simd=simd
        )  # fmt: skip
        if wanted is None:
            assert counts is None
        else:
            found += 1
            assert counts.tolist() == wanted.tolist(), (bytes(data), offsets, ends)
    assert found > 1_000


def test_a_special_token_that_a_cut_divides_counts_once(simd: bool) -> None:
    for kind, token in enumerate(core.ODD_KINDS[1:5], 1):
        text = f"some words {token} and more".encode()
        data, ends = np.frombuffer(text, np.uint8), np.array([2], np.int64)
        places = [0]
        while (at := Cut("gpt2")(text, places[-1] + 1)) > 0:
            places.append(at)
        assert len(places) > 4
        for place in places[1:]:
            counts = reading.odd_counts(data, np.array([0, place, len(text)], np.int64), 0, ends, simd=simd)
            assert counts[0, kind] == counts.sum() == 1, (token, place)
