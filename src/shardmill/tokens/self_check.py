"""What the core and a library must agree on before the core is used: a hard text, and the class of every character."""

from __future__ import annotations

import importlib.util
import os
import random
import unicodedata
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmill import __version__, core
from shardmill.tokens.backends import LibraryError, library_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardmill.tokens.backends import Backend

TESTED = {"tiktoken": "0.14.", "tokenizers": "0.23."}
"""Releases whose classes of characters are those of the core: the tests compare every character in thirteen contexts.
Any other release is compared when a tokenizer is loaded, which takes half a second."""

FRAGMENTS = [
    *"aZéßǅʰªж中日かカ한ไกनि1٣²Ⅷ!'’\"/-_.,<|>{}\\~^\x00\x1f\x7f",
    *"\t\n\v\f\r \x85\xa0\u1680\u2003\u200b\u200d\u2028\u202f\u3000\ufeff\ufffd",
    *["'s", "'S", "'ll", "'LL", "'ve", "'ſ", "n't", " the", " The", "HTTPServer", "camelCase", "12345", "3.14", "\r\n"],
    *["\n\n", "  ", "    ", " \n", "\n ", "\t\t", "e\u0301", "\u0301", "\u1100\u1161\u11a8", "Å", "ﬁ", "漢字、"],
    *["ました。", "😀", "👩\u200d👩\u200d👧", "🇩🇪", "\U0001d518", "//", "/\n", "://", "a/b", "--", "...", "!!!\n"],
    *["#include <x>", "▁", " ▁", "e" * 40, "=" * 70, " " * 90, "\n" * 20, "0" * 17, "AbC" * 9, "ا" * 30, "中" * 25],
    *["<unk>", "<s>", "</s>", "<0x0A>"],
]


def texts(names: Sequence[str], rows: int = 400) -> list[bytes]:
    """Return rows of fragments in a fixed random order, with the names of special tokens among them."""
    disorder = random.Random(20)
    fragments = FRAGMENTS + list(names)[:40]
    made = ["".join(disorder.choices(fragments, k=disorder.randint(1, 24))) for _ in range(rows)]
    return [text.encode() for text in ["", *fragments, *made]]


@cache
def hard_text() -> bytes:
    """Return 100 kB of text that would show nearly any difference between two releases of a library: fragments, all
    pairs of ASCII characters, and every character of the scripts below U+3000."""
    pairs = " ".join(map("".join, product(map(chr, range(0x20, 0x7F)), repeat=2)))
    scripts = "a" + " a".join(map(chr, range(0xA0, 0x3000)))
    return b"\n".join([*texts([], 100), pairs.encode(), scripts.encode()])


@cache
def version(library: str) -> str:
    """Return the installed release of a library; empty if it is not installed. The core is part of this package."""
    if library == "core":
        return __version__
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None:
        return ""
    # What `importlib.metadata` does, whose import takes 30 ms of every run.
    for name in os.listdir(Path(found.origin).parent.parent):
        if name.startswith(f"{library}-") and name.endswith(".dist-info"):
            return name[len(library) + 1 : -len(".dist-info")]
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def tested(library: str) -> bool:
    """Return whether the installed release is one that the tests compare character by character."""
    return version(library).startswith(TESTED[library])


def agree(backend: Backend, reference: Callable[[str], list[int]], rows: Sequence[bytes]) -> bool:
    """Return whether the backend gives the reference's ids for all rows."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids, bounds = backend.rows(np.frombuffer(b"".join(rows), np.uint8), offsets, 0)
    return all(
        ids[begin : end - 1].tolist() == list(reference(row.decode()))
        for row, begin, end in zip(rows, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    )


def every_character() -> list[bytes]:
    """Return rows with every character of the planes that hold text."""
    return _rows_of(range(0x80, 0x34000), "a{0}'s1{0}A")


def every_composition() -> list[bytes]:
    """Return rows that show what a normal form does: every mark before and after the first and the last in the order of
    marks, and after each base that it may join."""
    marks = [code for code in range(0x80, 0x20000) if unicodedata.category(chr(code))[0] == "M"]
    composed = [unicodedata.normalize("NFD", chr(code)) for code in range(0x80, 0x20000)]
    pairs = sorted({parts for parts in composed if len(parts) > 1})
    in_pairs = [" ".join(pairs[start : start + 100]).encode() for start in range(0, len(pairs), 100)]
    return _rows_of(marks, "a{0}\u0334\u0345{0}") + in_pairs


def _rows_of(codes: Iterable[int], around: str) -> list[bytes]:
    """Return each character between some others, a hundred in a row."""
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    return [
        " ".join(map(around.format, characters[start : start + 100])).encode()
        for start in range(0, len(characters), 100)
    ]


def trusted(
    make: Callable[[], Backend],
    reference: Callable[[str], list[int]],
    names: Sequence[str],
    library: str,
    *,
    normalizes: bool,
) -> bool:
    """Return whether a backend can be made and agrees with the reference; on every character for untested releases."""
    rows = texts(names)
    if not tested(library):
        rows += every_character() + (every_composition() if normalizes else [])
    core.library()  # if it cannot be loaded, that is an error, and no reason to use something else
    try:
        with library_errors():
            agrees = agree(make(), reference, rows)
    except LibraryError:
        return False
    return agrees
