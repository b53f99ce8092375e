"""Text for tests, made here: hard cases, and as much ordinary text as one wants."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

HARD = [
    "plain words, nothing else.",
    "don't you'll they've I'm he'd she's it're",
    "  leading and trailing  ",
    "tabs\tand\r\nCRLF\r\nlines\n\n\nand a run of newlines\n\n",
    "numbers 1 22 333 4444 55555 3.14159 1,000,000",
    "<|endoftext|> is ordinary text here, and so is <|fim_prefix|>",
    "漢字とかな、そして。句読点！また中文没有空格的一段话",
    "emoji 😀👩‍👩‍👧‍👦🇩🇪 and combining e\u0301 a\u030a",
    "العربية עברית हिन्दी ไทย",
    "x" * 5000,
    "NUL \x00 and controls \x01\x7f\x85 and nbsp\u00a0here",
    "aGVsbG8gd29ybGQ=" * 40,
    "\ufeff a BOM in the middle \ufeff",
    "def f(x):\n    return {'a': [x ** 2 for x in range(10)]}\n",
]

_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its about "
    "than into them can only other time new some could these two may first then do any like my now over such our man"
).split()


def documents(count: int, seed: int = 0) -> list[str]:
    """Ordinary text with hard cases strewn in; some documents are empty."""
    return list(_documents(count, seed))


@lru_cache(8)
def _documents(count: int, seed: int) -> list[str]:
    rng, some = np.random.default_rng(seed), np.array(_WORDS)
    texts = []
    for i in range(count):
        if rng.random() < 0.15:
            texts.append(HARD[int(rng.integers(len(HARD)))] + f" {i}")
        elif rng.random() < 0.02:
            texts.append("")
        else:
            words = rng.choice(some, size=int(rng.integers(5, 200)))
            texts.append(" ".join(words.tolist()).capitalize() + f". {rng.integers(10**9)}")
    return texts


def random_words(size: int, seed: int = 0) -> bytes:
    """Words that no cache has seen before, with newlines between documents."""
    rng = np.random.default_rng(seed)
    text = rng.integers(97, 123, size, dtype=np.uint8)
    text[rng.integers(0, size, size // 8)] = 32
    text[rng.integers(0, size, size // 600)] = 10
    return text.tobytes()


def write_jsonl(path: Path, texts: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset, without working files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".shardmill" not in path.parts
    }
