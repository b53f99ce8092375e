"""Every character there is, in surroundings that matter: the tokens are the library's."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.tokens.schemes import SCHEMES
from tests.tokens.hard import lists, rows
from tests.tokens.vocabularies import tokenizer

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
SURROUNDINGS = [
    *[
        ("a", ""),
        ("A", "a"),
        ("1", ""),
        ("", "a"),
        ("", "Aa"),
        ("!", "!"),
        ("", "'s"),
        ("\n", "1"),
        ("a'", "A"),
        ("aA", "aA"),
    ]
]


def check_all(made: Tokenizer, before: str, after: str) -> None:
    """In rows of many, parted by spaces."""
    engine, reference = made.engine(), made.reference()
    documents = [
        " ".join(before + character + after for character in CHARACTERS[start : start + 500])
        for start in range(0, len(CHARACTERS), 500)
    ]
    encoded = engine.encode(*rows(documents))
    assert (made.engine_name, encoded.fallbacks, encoded.failed) == ("core", 0, [])
    for document, tokens in zip(documents, lists(encoded), strict=True):
        assert tokens == reference(document)


@pytest.mark.parametrize(("before", "after"), [("", "'s"), ("1", "a")])
def test_every_character_encodes_as_with_tiktoken(before: str, after: str) -> None:
    check_all(load_tokenizer("gpt2"), before, after)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-json"])
@pytest.mark.parametrize(("before", "after"), SURROUNDINGS)
def test_every_character_encodes_as_with_the_library_in_all_surroundings(name: str, before: str, after: str) -> None:
    check_all(tokenizer(name), before, after)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_character_is_split_as_the_library_does(tmp_path: Path, scheme: str) -> None:
    """With a vocabulary that joins a byte of the character to its neighbour where the pattern leaves them together."""
    tokens = [bytes([byte]) for byte in range(256)]
    for neighbour in b"aA1!'\n sS/":
        for byte in range(0x80, 0x100):
            tokens += [bytes([neighbour, byte]), bytes([byte, neighbour])]
    path = tmp_path / "seams.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)))
    made = load_tokenizer(str(path), pattern=scheme)
    for before, after in SURROUNDINGS:
        check_all(made, before, after)
