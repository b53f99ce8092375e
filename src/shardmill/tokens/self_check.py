"""What two libraries must agree on before the faster one is used: a hard text, and the class of every character."""

from __future__ import annotations

import importlib.util
import os
import random
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmill import __version__
from shardmill.tokens.backends import LibraryError, library_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardmill.tokens.backends import Backend
    from shardmill.tokens.unicode_mismatch import Characters

TESTED = {"gigatoken": "0.10.", "tiktoken": "0.14.", "tokenizers": "0.23."}
"""Releases whose classes of characters are those of `unicode_mismatch`: the tests compare every character in ten
contexts. Any other release is compared when a tokenizer is loaded, which takes half a second."""

# No character here has changed its class between the Unicode versions of the libraries; rows with such characters go
# to the tokenizer's own library anyway.
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


def tested(*libraries: str) -> bool:
    """Return whether the installed releases are those that the tests compare character by character."""
    return all(version(library).startswith(TESTED[library]) for library in libraries)


def agree(backend: Backend, reference: Callable[[str], list[int]], rows: Sequence[bytes]) -> bool:
    """Return whether the backend gives the reference's ids for all rows."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids, bounds = backend.rows(np.frombuffer(b"".join(rows), np.uint8), offsets, 0)
    return all(
        ids[begin : end - 1].tolist() == list(reference(row.decode()))
        for row, begin, end in zip(rows, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    )


def every_character(mismatch: Characters | None) -> list[bytes]:
    """Return rows with every character of the planes that hold text, except those that are known to differ."""
    codes = [code for code in range(0x80, 0x34000) if not 0xD800 <= code < 0xE000]
    rows = [
        " ".join(f"a{chr(code)}'s1{chr(code)}A" for code in codes[start : start + 100]).encode()
        for start in range(0, len(codes), 100)
    ]
    return [row for row in rows if not mismatch or not len(mismatch.places(np.frombuffer(row, np.uint8)))]


def trusted(
    make: Callable[[], Backend],
    reference: Callable[[str], list[int]],
    names: Sequence[str],
    mismatch: Characters | None,
    *libraries: str,
) -> bool:
    """Return whether a backend can be made and agrees with the reference; on every character for untested releases."""
    rows = texts(names)
    if not tested(*libraries):
        rows += every_character(mismatch)
    try:
        with library_errors():
            agrees = agree(make(), reference, rows)
    except LibraryError:
        return False
    return agrees
