"""Tokens that are found by their names, and texts that are normalised first, under the compiled core."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers.normalizers import NFC

from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.tokens.found_tokens import TokenNames, normalized
from shardmill.tokens.schemes import SCHEMES
from tests.corpus import HARD
from tests.tokens.hard import lists, rows
from tests.tokens.vocabularies import added, gpt2_rules, split, tokenizer, write_json

NAMES = ["<tool>", "</tool>", "<tool>s", "<|fim|>", "[X]", "<|im_end|>"]
WORDS = [
    *NAMES,
    "<",
    "<t",
    "<tool",
    "tool>",
    "</",
    "<|",
    "|>",
    "[X",
    " ",
    "a",
    "Don't",
    "\n\n",
    "e\u0301",
    "\u0301",
    "é",
]
WORDS += ["\u212a", "한", "\u1100\u1161", "中文", "12345", "  ", "!", "ड़", "<|endoftext|>"]


def qwen(specials: str, **flags: Any) -> Tokenizer:
    """A tokenizer as Qwen's: it normalises, and has names that are found in texts though they are not special."""
    tokens = [added(50256, "<|endoftext|>", special=True)]
    tokens += [added(50257 + i, name, special=name == "<|im_end|>", **flags) for i, name in enumerate(NAMES)]
    rules = {
        "pre_tokenizer": split(SCHEMES["qwen2"].patterns[0]),
        "normalizer": {"type": "NFC"},
        "added_tokens": tokens,
    }
    folder = write_json("found-" + specials + "-".join(flags), {**gpt2_rules(), **rules})
    return load_tokenizer(str(folder), specials=specials)


@pytest.mark.parametrize("specials", ["text", "parse", "error"])
@pytest.mark.parametrize("gap", [0, 3])
def test_names_in_texts_are_tokens_as_the_library_has_them(specials: str, gap: int) -> None:
    made, rng = qwen(specials), random.Random(gap)
    assert made.engine_name == "core"
    texts = ["".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(3000)] + [*HARD, *NAMES, ""]
    if specials == "error":
        texts = [text for text in texts if not any(name in text for name in made.special_tokens)]
    data, offsets = rows([text + "\x00" * gap for text in texts])
    encoded = made.engine().encode(data, offsets, gap)
    assert lists(encoded) == [list(made.reference()(text)) for text in texts]
    assert (encoded.fallbacks, encoded.failed) == (0, [])


def test_a_name_is_not_found_across_two_rows() -> None:
    made = qwen("text")
    texts = ["a <to", "ol> b", "<tool", ">s", "e", "\u0301"]
    assert lists(made.engine().encode(*rows(texts))) == [list(made.reference()(text)) for text in texts]


def test_a_long_text_with_names_and_marks_is_encoded_in_parts() -> None:
    made = qwen("text")
    text = "Word <tool> e\u0301 and </tool> more. " * 200_000
    encoded = made.engine().encode(*rows([text]))
    expected = list(made.reference()("Word <tool> e\u0301 and </tool> more. " * 40))
    assert (encoded.fallbacks, encoded.failed) == (0, [])
    assert lists(encoded)[0][: len(expected) - 20] == expected[:-20]
    assert made.decode(encoded.tokens[:-1]) == text.replace("e\u0301", "é").encode()


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"single_word": True}, {"normalized": True}])
def test_names_that_ask_for_more_are_left_to_the_library(flags: dict[str, bool]) -> None:
    assert qwen("text", **flags).engine_name == "tokenizers"


@pytest.mark.parametrize("name", ["gpt2", "p50k", "cl100k"])
def test_special_tokens_of_rank_files_are_found_where_they_are_parsed(name: str) -> None:
    made, rng = tokenizer.__wrapped__(name, "parse"), random.Random(name)
    assert made.engine_name == "core"
    words = [*WORDS, *made.special_tokens, "<|endof", "text|>"]
    texts = ["".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(2000)]
    assert lists(made.engine().encode(*rows(texts))) == [list(made.reference()(text)) for text in texts]


def test_a_long_text_is_normalised_in_pieces_of_which_each_takes_little_memory() -> None:
    rng = random.Random(6)
    text = "".join(
        rng.choices([" ", "e\u0301", "\u0301", "\u1100\u1161", "word", "\u0928\u093c", " \u0338"], k=300_000)
    )
    sizes: list[int] = []

    def normalize(piece: str) -> str:
        sizes.append(len(piece.encode()))
        return str(NFC().normalize_str(piece))

    data, offsets = rows(["a", text, "b"])
    changed, bounds = normalized(data, offsets, 0, normalize)
    assert changed[bounds[1] : bounds[2]].tobytes().decode() == NFC().normalize_str(text)
    assert len(sizes) > 5 and max(sizes) < 100_000


@pytest.mark.parametrize(
    "names", [NAMES, ["<|endoftext|>"], ["aa", "aab", "baa"], ["a", "ab"], ["é", "中文"], ["<<", "<"]]
)
@pytest.mark.parametrize("gap", [0, 2])
def test_names_are_found_in_the_rows_and_at_the_places_where_a_plain_search_finds_them(
    names: list[str], gap: int
) -> None:
    made, rng = TokenNames(dict.fromkeys(names, 1)), random.Random(gap)
    words = [*names, *(name[:-1] for name in names), *(name[1:] for name in names), " x", "ab", "<"]
    texts = ["".join(rng.choices(words, k=rng.randint(0, 8))) for _ in range(500)]
    data, offsets = rows([text + "\x00" * gap for text in texts])
    expected = [row for row, text in enumerate(texts) if any(name in text for name in names)]
    assert sorted(set(made.rows(data, offsets, gap).tolist())) == expected
    for text in texts:
        begins = [(text.encode().find(name.encode()), -len(name), name) for name in names if name in text]
        found = made.first(text.encode())
        assert found == (None if not begins else (min(begins)[0], min(begins)[2]))
