"""Makes the tables of characters in src/shardmill/core: their classes as tiktoken itself has them, and what the library
`tokenizers` does with them when it brings a text into the normal form C.

`python -m tests.core.unicode_tables` writes the files anew. Other libraries have other versions of Unicode, so only the
references are asked.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from pathlib import Path

import tiktoken
from tokenizers.normalizers import NFC, NFD

import shardmill.core

HEADER = Path(shardmill.core.__file__).with_name("unicode_tables.h")
NORMAL_HEADER = HEADER.with_name("normal_tables.h")
BLOCK = 128
TABLED = 0x20000
"""Characters from here on are rare, and none of them is tabled for the normal form."""
UNKNOWN, COMPOSES, COMPOSED = 255, 128, 64
"""As in normal.c."""
CLASSES = {r"[\p{Lu}\p{Lt}]": 1, r"\p{Ll}": 2, r"[\p{Lm}\p{Lo}]": 4, r"\p{M}": 8, r"\p{N}": 16, r"\s": 32}
CLASSES |= {r"[\r\n]": 64, r"[\p{P}\p{S}]": 128}
"""Bits as in model.h; only line ends have two of them."""


def classes() -> bytes:
    """The bits of every code point."""
    characters = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    table = bytearray(0x110000)
    for pattern, bit in CLASSES.items():
        ranks = {bytes([byte]): byte for byte in range(256)}
        encoding = tiktoken.Encoding("members", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for character in bytes(encoding.encode_ordinary(characters)).decode():
            table[ord(character)] |= bit
    return bytes(table)


def normal_classes() -> tuple[bytes, list[tuple[int, int]]]:
    """Of every character what the normal form C may do with it, and the pairs that become one character.

    UNKNOWN: it is not left as it is. COMPOSES: it is the second of some pair. COMPOSED: it is what a pair becomes.
    Besides, the order of a mark among marks.
    """
    compose, decompose = NFC().normalize_str, NFD().normalize_str
    codes = [code for code in range(TABLED) if not 0xD800 <= code < 0xE000]
    first, last = "\u0334", "\u0345"  # of all marks, in the order that they are brought into

    def is_mark(character: str) -> bool:
        return decompose(last + character) == character + last or decompose(character + first) == first + character

    known: dict[int, str] = {}
    for character in map(chr, codes):  # one of each order, as far as the library knows it for a mark
        if is_mark(character):
            known.setdefault(unicodedata.combining(character), character)
    marks = [known[order] for order in sorted(known)]
    assert all(decompose(b + a) == a + b for a, b in pairwise(marks))
    table, pairs = bytearray(TABLED), set[tuple[int, int]]()
    for code in codes:
        character = chr(code)
        parts = decompose(character)
        if compose(character) != character:
            table[code] = UNKNOWN
        elif parts != character:
            pairs.add((ord(compose(parts[:-1])), ord(parts[-1])))
            table[code] = COMPOSED
        elif is_mark(character):
            table[code] = sum(mark == character or decompose(mark + character) != character + mark for mark in marks)
    hangul = {second for first, second in pairs if first in range(0x1100, 0x1200) or first in range(0xAC00, 0xD7A4)}
    for _, second in pairs:
        table[second] |= COMPOSES
    for second in hangul:  # eleven thousand pairs, and seldom met
        table[second] = UNKNOWN
    return bytes(table), sorted(pair for pair in pairs if pair[1] not in hangul)


def normal_header(table: bytes, pairs: list[tuple[int, int]]) -> str:
    """The text of the C header about the normal form."""
    lines = [
        "/* Made by tests/core/unicode_tables.py from what tokenizers does with every character. Do not edit. */",
        *_blocks("NORMAL_BLOCK", "NORMAL", table),
        f"static const uint32_t PAIRS[{len(pairs)}][2] = {{",
        *["".join(f"{{{a},{b}}}," for a, b in pairs[at : at + 8]) for at in range(0, len(pairs), 8)],
    ]
    return "\n".join([*lines, "};", ""])


def header(table: bytes) -> str:
    """The text of the C header about classes."""
    lines = [
        "/* Made by tests/core/unicode_tables.py from what tiktoken says of every character. Do not edit. */",
        *_blocks("CLASS_BLOCK", "CLASSES", table),
    ]
    return "\n".join([*lines, ""])


def _blocks(index_name: str, name: str, table: bytes) -> list[str]:
    """Blocks that occur, and which block stands where."""
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(table[start : start + BLOCK], len(blocks)) for start in range(0, len(table), BLOCK)]
    lines = [
        f"static const uint8_t {index_name}[{len(index)}] = {{",
        *_rows(index),
        "};",
        f"static const uint8_t {name}[{len(blocks)}][{BLOCK}] = {{",
    ]
    for block in blocks:
        lines += ["{", *_rows(list(block)), "},"]
    return [*lines, "};"]


def _rows(numbers: list[int]) -> list[str]:
    return ["".join(f"{number}," for number in numbers[at : at + 32]) for at in range(0, len(numbers), 32)]


if __name__ == "__main__":
    HEADER.write_text(header(classes()), encoding="ascii")
    NORMAL_HEADER.write_text(normal_header(*normal_classes()), encoding="ascii")
