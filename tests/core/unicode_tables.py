"""Makes src/shardmill/core/unicode_tables.h: the classes of characters as tiktoken itself has them.

`python -m tests.core.unicode_tables` writes the file anew. Other libraries have other versions of Unicode, so only the
reference is asked.
"""

from __future__ import annotations

from pathlib import Path

import tiktoken

import shardmill.core

HEADER = Path(shardmill.core.__file__).with_name("unicode_tables.h")
BLOCK = 128
CLASSES = {r"[\p{Lu}\p{Lt}]": 1, r"\p{Ll}": 2, r"[\p{Lm}\p{Lo}]": 4, r"\p{M}": 8, r"\p{N}": 16, r"\s": 32}
CLASSES[r"[\r\n]"] = 64
"""Bits as in model.h; no character has two of the first six."""


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


def header(table: bytes) -> str:
    """The text of the C header: blocks that occur, and which block stands where."""
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(table[start : start + BLOCK], len(blocks)) for start in range(0, len(table), BLOCK)]
    lines = [
        "/* Made by tests/core/unicode_tables.py from what tiktoken says of every character. Do not edit. */",
        f"static const uint8_t CLASS_BLOCK[{len(index)}] = {{",
        *_rows(index),
        "};",
        f"static const uint8_t CLASSES[{len(blocks)}][{BLOCK}] = {{",
    ]
    for block in blocks:
        lines += ["{", *_rows(list(block)), "},"]
    return "\n".join([*lines, "};", ""])


def _rows(numbers: list[int]) -> list[str]:
    return ["".join(f"{number}," for number in numbers[at : at + 32]) for at in range(0, len(numbers), 32)]


if __name__ == "__main__":
    HEADER.write_text(header(classes()), encoding="ascii")
