"""A text that comes in pieces: the tokens of the whole, in bounded memory, at a bounded cost."""

from __future__ import annotations

import base64
import copy
import dataclasses
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core import Follows
from shardmill.tokens import Engine, Tokenizer, UncuttableError, load_tokenizer, stitch
from shardmill.tokens.schemes import SCHEMES
from tests.tokens.hard import RUNS, in_pieces, run
from tests.tokens.vocabularies import EVERY, gpt2_rules, split, tokenizer, write_json


def in_small_steps(made: Tokenizer, step: int = 3_000) -> Engine:
    """An engine that takes so little text at once that a few kilobytes need several calls."""
    other = copy.copy(made)
    assert made.stitching is not None
    other.stitching = dataclasses.replace(made.stitching, step=step)
    return other.engine()


@pytest.mark.parametrize("name", EVERY)
def test_a_text_in_pieces_of_any_size_has_the_tokens_of_the_whole(name: str) -> None:
    made = tokenizer(name)
    engine, reference = in_small_steps(made), made.reference()
    rng = random.Random(name)
    for kind in RUNS:
        parts = [run(kind, rng.randint(6_000, 10_000), 1)]
        parts += [run(rng.choice(list(RUNS)), rng.randint(1, 3_000), 2) for _ in range(rng.randint(0, 2))]
        rng.shuffle(parts)
        text = "".join(parts)
        expected = reference(text)
        assert in_pieces(engine, text, rng.choice([100, 1_000, 5_000])) == expected, kind


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
def test_pieces_of_a_few_characters_have_the_tokens_of_the_whole(size: int) -> None:
    made = load_tokenizer("gpt2")
    engine = in_small_steps(made)
    for kind in RUNS:
        text = run(kind, 4_000) + run("words", 3_000)
        assert in_pieces(engine, text, size) == made.reference()(text), kind


def rank_tokenizer(folder: Path, tokens: list[bytes], pattern: str) -> Tokenizer:
    """Every byte, and then these tokens."""
    ranks = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *tokens])
    path = folder / "made.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks)))
    return load_tokenizer(str(path), pattern=pattern)


FAR_OFF = {
    "llama3": [("\n" + " " * 9_000 + end, "\n ") for end in ("", "\n", "x", "\n x", "\t\n\n")],
    "cl100k": [("\n" + " " * 9_000 + end, "\n ") for end in ("", "\n", "x", "\n x", "\t\n\n")],
    "qwen2": [("!" + "\n" * 9_000 + " \n x", "\n \n")],
    "o200k": [
        ("!\n" + "/" * 9_000 + "!!", "/!"),
        ("a" + "中" * 3_000 + "Bc", "中B"),
        ("中" + "A" * 9_000 + "!", "中A"),
    ],
    "tekken": [("!\n" + "/" * 9_000 + "!!", "/!"), ("é" + "中" * 3_000 + "Éc", "中É")],
}
"""Texts whose split depends on a place thousands of bytes away, with a token across that place."""


@pytest.mark.parametrize("scheme", FAR_OFF)
def test_what_depends_on_a_place_far_away_is_exact(scheme: str, tmp_path: Path) -> None:
    for text, token in FAR_OFF[scheme]:
        made = rank_tokenizer(tmp_path, [token.encode()[:n] for n in range(2, len(token.encode()) + 1)], scheme)
        assert made.engine_name == "core"
        assert in_pieces(in_small_steps(made), text, 500) == made.reference()(text), text[-9:]


ATOMS = [*"aéAÉ中ǅʰ\u03011٣!'s/\n\r \t\u3000・か\x00x😀", "ll"]


def run_between_borders(rng: random.Random) -> str:
    """Runs of one or two characters, with some others around them."""
    parts = list[str]()
    for _ in range(rng.randint(1, 3)):
        parts += rng.choices(ATOMS, k=rng.randint(0, 3))
        parts += rng.choices(rng.sample(ATOMS, rng.choice([1, 1, 1, 2])), k=rng.choice([5, 1_500, 4_000]))
        parts += rng.choices(ATOMS, k=rng.randint(0, 4))
    return "".join(parts)


def tokens_at_borders(rng: random.Random, text: str) -> list[bytes]:
    """Parts of a text, most of them where its characters change: there a wrong split would be seen."""
    borders = [at for at in range(1, len(text)) if text[at] != text[at - 1]] or [0]
    found = list[bytes]()
    for _ in range(60):
        at = rng.choice(borders) if rng.random() < 0.7 else rng.randrange(len(text))
        part = text[max(0, at - rng.randint(0, 4)) : at + rng.randint(1, 4)].encode()
        found += [part[:size] for size in range(2, len(part) + 1)]
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_vocabulary_made_to_show_a_wrong_split_shows_none(scheme: str, tmp_path: Path) -> None:
    rng = random.Random(scheme)
    for _ in range(12):
        text = run_between_borders(rng)
        made = rank_tokenizer(tmp_path, tokens_at_borders(rng, text), scheme)
        assert in_pieces(in_small_steps(made, rng.choice([1_200, 2_000, 3_000])), text, 700) == made.reference()(text)


def test_special_tokens_inside_of_a_run_are_found() -> None:
    made = load_tokenizer("gpt2", specials="parse")
    reference = made.reference()
    for kind in ("letter", "space", "base64", "white space"):
        body = run(kind, 9_000)
        for places in ([0], [9_000], [5_000], [4_990, 5_000, 5_010], [100, 8_900]):
            text = body
            for place in places:
                text = text[:place] + "<|endoftext|>" + text[place:]
            assert in_pieces(in_small_steps(made), text, 300) == reference(text), (kind, places)


def test_text_that_is_not_normal_and_has_no_place_to_cut_is_encoded_or_refused_but_never_wrong() -> None:
    made = tokenizer("qwen2-json")
    engine = in_small_steps(made)
    for mark in ("e\u0301", "\u1100\u1161"):
        for place in (0, 2_000, 9_000, 17_990):
            text = "é" * place + mark + "é" * (18_000 - place)
            try:
                tokens = in_pieces(engine, text, 700)
            except UncuttableError:
                continue
            assert tokens == made.reference()(text)


def test_no_pieces_and_empty_pieces_have_no_tokens() -> None:
    engine = load_tokenizer("gpt2").engine()
    assert list(engine.encode_pieces([])) == list(engine.encode_pieces([b"", b""])) == []


def test_a_text_of_which_a_byte_more_changes_every_token_is_exact() -> None:
    made = load_tokenizer("gpt2")
    text = "znbpbgpdtfyujlncdbniyaeylucyssogellere"
    engine = made.engine()
    for size in range(1, 40):
        assert in_pieces(engine, text * 30, size) == made.reference()(text * 30)


def test_white_space_ahead_is_known_without_being_held() -> None:
    tracemalloc.start()
    made = stitch.LookAhead([b"x", b"\n", *[b" " * 1_000_000] * 50, b"\n y"])
    made.fill(10)
    tracemalloc.reset_peak()
    assert made.after_spaces() == Follows.LINE_END
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
    total = 0
    while made.fill(1_000_000):
        total += len(made.take(len(made.text)))
    assert total == 1 + 1 + 50_000_000 + 3


def test_more_white_space_than_is_read_ahead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitch, "WHITE_AHEAD", 3_000_000)
    for name, first, refused in (("gpt2", "\n", False), ("llama3-json", "x", False), ("llama3-json", "\n", True)):
        engine = tokenizer(name).engine()
        pieces = [first.encode(), *[b" " * 1_000_000] * 6, b"y"]
        if refused:
            with pytest.raises(UncuttableError, match="of white space in one run"):
                list(engine.encode_pieces(pieces))
        else:
            assert sum(map(len, engine.encode_pieces(pieces))) > 1000


def test_a_library_refuses_a_run_that_would_take_much_memory() -> None:
    flagged = {"id": 50257, "content": "<x>", "special": False, "single_word": False, "lstrip": True, "rstrip": False}
    rules = gpt2_rules()
    added: list[Any] = [*rules["added_tokens"], {**flagged, "normalized": False}]
    folder = write_json(
        "flagged", {**rules, "pre_tokenizer": split(SCHEMES["llama3"].patterns[0]), "added_tokens": added}
    )
    made = load_tokenizer(str(folder))
    assert made.engine_name == "tokenizers" and made.stitching is not None
    engine = made.engine()
    text = run("words", 300_000)
    assert in_pieces(engine, text, 10_000) == made.reference()(text)
    with pytest.raises(UncuttableError, match="without a place where it may be cut"):
        in_pieces(engine, "a" * 300_000, 10_000)
    long = np.frombuffer(b"a" * 300_000, np.uint8)
    assert [row for row, _ in engine.encode(long, np.array([0, 5, len(long)])).failed] == [1]


def whole(made: Tokenizer, text: str) -> list[int]:
    """By the reference; or by the core in one call, where tiktoken's regular expressions overflow its stack."""
    try:
        return made.reference()(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return [int(token) for token in made.engine()._encode_text(text.encode())]


SIZE = 16_000_000
LARGE = ["letter", "caret", "space", "newline", "base64", "cjk", "emoji", "digit", "letters", "unicode 17"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama3", "o200k"])
@pytest.mark.parametrize("kind", LARGE)
def test_sixteen_megabytes_without_a_safe_place_take_seconds_and_are_exact(name: str, kind: str) -> None:
    made = tokenizer(name)
    engine = made.engine()
    text = run(kind, SIZE)
    begun = time.process_time()
    tokens = np.concatenate(
        list(engine.encode_pieces(text[at : at + 65_536].encode() for at in range(0, len(text), 65_536)))
    )
    rate = len(text.encode()) / 1e6 / (time.process_time() - begun)
    assert made.decode(tokens) == text.encode()
    part = text[: SIZE // 5]
    assert in_pieces(engine, part, 65_536) == whole(made, part)
    print(f"{name} {kind}: {rate:.1f} MB/s")  # noqa: T201 - the figure is what one runs this for
    assert rate > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["letter", "space"])
def test_memory_does_not_grow_with_a_run_of_two_hundred_megabytes(kind: str) -> None:
    made = load_tokenizer("gpt2")
    engine = made.engine()
    block = run(kind, 1_000_000).encode()
    list(engine.encode_pieces([block] * 3))
    tracemalloc.start()
    count = sum(len(part) for part in engine.encode_pieces(block for _ in range(200)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 0
    assert peak < 40_000_000
