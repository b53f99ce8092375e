"""Texts that have broken tokenizers, and the plain way to encode with an engine."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardmill.tokens import Encoded, Engine

CHARACTERS = [
    *"aZslLvé中。、あカ한กि1०²!'/.-_<|>\x00\x1c\x7f \t\n\r\v\f\x85\xa0\u2003\u2028\u3000\u0301\u200d\ufeff\ufffd😀",
    *[
        "'s",
        "'ll",
        "'LL",
        "'ſ",
        "\r\n",
        "\n\n",
        "  ",
        "the",
        " The",
        "12345",
        "e\u0301",
        "\u1100\u1161",
        "<|endoftext|>",
    ],
    *["\U000323b5", "\ua7f1", "\u1acf", "\u0295", "\U00011de1"],
]
"""The last five are of other classes in Unicode 17 than in 16."""

texts = st.lists(st.sampled_from(CHARACTERS), max_size=30).map("".join)

RUNS = {
    "letter": lambda rng, n: "a" * n,
    "caret": lambda rng, n: "^" * n,
    "space": lambda rng, n: " " * n,
    "newline": lambda rng, n: "\n" * n,
    "digit": lambda rng, n: "".join(rng.choices("0123456789", k=n)),
    "arabic digits": lambda rng, n: "".join(rng.choices("٠١٢٣٤٥12", k=n // 2)),
    "letters": lambda rng, n: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=n)),
    "base64": lambda rng, n: "".join(rng.choices("ABCDEFGHIJKLMabcdefghijklm0123456789+/", k=n)),
    "cases": lambda rng, n: "".join(rng.choices("aAbBéÉ", k=n)),
    "cjk": lambda rng, n: "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(n // 3)),
    "kana": lambda rng, n: "".join(rng.choices("漢字かなカナ한글", k=n // 3)),
    "emoji": lambda rng, n: "".join(rng.choices("😀😁🙃👩\u200d👧🇩🇪", k=n // 4)),
    "thai and marks": lambda rng, n: "".join(rng.choices("กขคงनिमँ", k=n // 3)),
    "punctuation": lambda rng, n: "".join(rng.choices("!'\"-./^~", k=n)),
    "punctuation and lines": lambda rng, n: "".join(rng.choices("!'\n/", k=n)),
    "contractions": lambda rng, n: "".join(rng.choices("a'slLdDé", k=n)),
    "white space": lambda rng, n: "".join(rng.choices(" \t\n\r\u3000\xa0", k=n)),
    "spaces with few lines": lambda rng, n: "".join(rng.choices(" \n", weights=[200, 1], k=n)),
    "a line end far off": lambda rng, n: "\n\n" + " " * n + rng.choice(["", "\n", "x", "\n\n  ", "\t\n"]),
    "unicode 17": lambda rng, n: "".join(chr(rng.randrange(0x323B0, 0x323F0)) for _ in range(n // 4)),
    "words": lambda rng, n: "".join(rng.choices(["the", " of", "\n", "1", ",", "x", " "], k=n // 3)),
}
"""What a stretch without a safe place is made of, and ordinary text."""


def disorder(seed: str, count: int) -> list[str]:
    """So many short texts of the characters above, some of only a few of them."""
    rng = random.Random(seed)
    alphabets = [rng.sample(CHARACTERS, rng.randint(2, 9)) if rng.random() < 0.5 else CHARACTERS for _ in range(count)]
    return ["".join(rng.choices(alphabet, k=rng.randint(0, 20))) for alphabet in alphabets]


def run(kind: str, size: int, seed: int = 0) -> str:
    return str(RUNS[kind](random.Random(f"{kind}{seed}"), size))


def rows(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def lists(encoded: Encoded) -> list[list[int]]:
    bounds = encoded.offsets.tolist()
    return [encoded.tokens[bounds[row] : bounds[row + 1] - 1].tolist() for row in range(len(bounds) - 1)]


def in_pieces(engine: Engine, text: str, size: int) -> list[int]:
    """The tokens of a text that is handed over so many characters at a time."""
    pieces = (text[start : start + size].encode() for start in range(0, len(text), size))
    parts: list[NDArray[Any]] = list(engine.encode_pieces(pieces))
    return [token for part in parts for token in part.tolist()]
