"""What the core calls normal is what the library makes of it; and text that is normal is mostly called so."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers.normalizers import NFC

from shardmill.core import not_normal
from tests.core.unicode_tables import NORMAL_HEADER, TABLED, UNKNOWN, normal_classes, normal_header
from tests.corpus import HARD, documents
from tests.tokens.hard import rows

normalize = NFC().normalize_str
SURROUNDINGS = [
    "{}",
    "a{}",
    "{}a",
    "{}\u0301",
    "\u0301{}",
    "a\u0327{}",
    "{0}{0}",
    "\u1100{}",
    "\uac00{}",
    "\u0928{}",
    "e{}\u0334",
]
MARKS = [*"\u0300\u0301\u0308\u0323\u0327\u0334\u0345\u093c\u094d\u09be\u0e48\u3099\u05b0\u0651\u1161\u11a8\u0338"]
BASES = [*"aeoA \u0928\u0921\u09c7\u304b\u1100\uac00\u05d0\u0644\u00e9\u1ea5=\n"]


def said_normal(texts: list[str]) -> list[bool]:
    data, offsets = rows(texts)
    return (~not_normal(data, offsets, 0)).tolist()


def check(texts: list[str]) -> int:
    """How many are said to be normal; all of them must be."""
    said = said_normal(texts)
    assert [text for text, normal in zip(texts, said, strict=True) if normal and normalize(text) != text] == []
    return sum(said)


def test_the_tables_are_those_of_the_library() -> None:
    assert NORMAL_HEADER.read_text(encoding="ascii") == normal_header(*normal_classes())


def test_what_the_library_would_change_is_never_called_normal() -> None:
    rng = random.Random(4)
    texts = ["".join(rng.choices(MARKS + BASES, k=rng.randint(1, 6))) for _ in range(30_000)]
    normal = check(texts)
    right = sum(normalize(text) == text for text in texts)
    # The rest are parts of Korean syllables, and marks that something else keeps apart from what they would go with.
    assert 0.7 * right < normal <= right


def test_every_character_that_the_library_would_change_is_found() -> None:
    table, pairs = normal_classes()
    told = [code for code in range(TABLED) if table[code] and not 0xAC00 <= code < 0xD7A4]
    for around in SURROUNDINGS:
        check([around.format(chr(code)) for code in told])
    for first, second in pairs:
        assert said_normal([chr(first) + chr(second)]) == [False]


@pytest.mark.slow
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_every_character_is_judged_rightly(around: str) -> None:
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    normal = check([around.format(chr(code)) for code in codes])
    if around == "{}":
        assert normal == TABLED - 0x800 - normal_classes()[0].count(UNKNOWN)


def test_ordinary_text_is_called_normal() -> None:
    texts = [*HARD, *documents(300, seed=9), "ड़ और ज़", "ภาษาไทยนั้น", "tiếng Việt", "한국어", "ἀρχή"]
    texts = [text for text in texts if normalize(text) == text and not any(ord(c) >= TABLED for c in text)]
    assert all(said_normal(texts))


def test_rows_may_have_gaps_and_stand_anywhere() -> None:
    data = np.frombuffer("xxe\u0301|\u00e9|\u0301|".encode(), np.uint8)
    offsets = np.array([2, 6, 9, 12])
    assert not_normal(data, offsets, 1).tolist() == [True, False, False]
