"""The compiled core gives the ids that the reference gives, for every scheme, with and without SIMD."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import tiktoken

from shardmill.core import encoding as core
from shardmill.tokens.schemes import SCHEMES
from tests.core.models import VOCABULARIES, both, check, ranks
from tests.core.unicode_tables import HEADER, classes, header
from tests.tokens.hard import CHARACTERS, RUNS, disorder, run

ENGLISH = [*'aAbZszdmtlLvVrReE0123456789..!!/ /  \n\n\r\t  -_()"é', *["'"] * 4]
ENGLISH += ["'s", "'LL", "\r\n", "    ", "!\n", "\n/"]
SURROUNDINGS = ["{}", "a{}", "{}a", " {}", "{} ", "A{}b", "1{}2", "!{}'s", "\n{}\n", "{0}{0}'S", "'{}", "é{}中"]
SURROUNDINGS += [" {}  x"]


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_disorder_is_encoded_as_the_reference_does(scheme: str) -> None:
    check(scheme, disorder(scheme, 2500))


@pytest.mark.parametrize("scheme", VOCABULARIES)
@pytest.mark.parametrize("kind", RUNS)
def test_runs_longer_than_a_block_and_than_a_window_are_encoded_as_the_reference_does(scheme: str, kind: str) -> None:
    check(scheme, [run(kind, size, size) for size in (30, 63, 64, 65, 130, 700, 2050, 5000)])


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_strings_made_of_tokens_are_encoded_as_the_reference_does(scheme: str) -> None:
    rng = random.Random(scheme)
    tokens = sorted(ranks(scheme))
    joined = [b"".join(rng.choices(tokens, k=rng.randint(1, 4))) for _ in range(3000)]
    check(scheme, [text.decode(errors="ignore") for text in joined])


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_long_texts_of_hard_characters_are_encoded_as_the_reference_does(scheme: str) -> None:
    rng = random.Random(scheme)
    alphabets = [rng.sample([*CHARACTERS, *ENGLISH], rng.randint(2, 12)) for _ in range(60)] + [ENGLISH] * 60
    check(scheme, ["".join(rng.choices(alphabet, k=300)) for alphabet in alphabets])


@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_characters_at_the_borders_of_their_classes_are_encoded_as_the_reference_does(scheme: str) -> None:
    table = classes()
    borders = [code for code in range(1, 0x110000) if table[code] != table[code - 1]]
    check_characters(scheme, sorted({*borders, *(code - 1 for code in borders), *range(0x250), *range(0x2000, 0x2070)}))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", VOCABULARIES)
def test_every_character_is_encoded_as_the_reference_does(scheme: str) -> None:
    check_characters(scheme, range(0x110000))


def check_characters(scheme: str, codes: Iterable[int]) -> None:
    """Each in many surroundings; many in a text, because the calls of the reference are what takes long."""
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), 512):
        some = characters[start : start + 512]
        check(scheme, ["\r".join(map(around.format, some)) for around in SURROUNDINGS])


def test_the_table_of_classes_is_what_tiktoken_says() -> None:
    assert HEADER.read_text(encoding="ascii") == header(classes())


@pytest.mark.parametrize("seed", range(6))
def test_ranks_in_any_order_are_merged_as_the_reference_does(seed: int) -> None:
    """A token may be made of parts whose ranks are higher than its own, or of nothing that merging leads to."""
    rng = random.Random(seed)
    letters = "abc é中"
    made = {"".join(rng.choices(letters, k=rng.randint(2, 7))).encode() for _ in range(300)}
    made |= {token[rng.randint(0, 2) :][:4] for token in made}
    made |= {bytes([byte]) for byte in range(256)}
    made.discard(b"")
    order = sorted(made)
    rng.shuffle(order)
    shuffled = {token: rank for rank, token in enumerate(order)}
    pattern = SCHEMES["gpt2"].patterns[0]
    encode = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=shuffled, special_tokens={}).encode_ordinary
    texts = ["".join(rng.choices(letters, weights=[4, 4, 4, 1, 2, 2], k=rng.randint(1, 60))) for _ in range(1500)]
    both(core.Model(order, "gpt2"), texts, [encode(text) for text in texts])
