"""A text that comes in pieces: the tokens of the whole, in bounded memory, at a bounded cost."""

from __future__ import annotations

import base64
import dataclasses
import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shardmill.tokens import Tokenizer, UncuttableError, load_tokenizer, stitch
from tests.tokens.hard import RUNS, in_pieces, run
from tests.tokens.vocabularies import EVERY, tokenizer


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so small that a few kilobytes need several."""
    monkeypatch.setattr(stitch, "STEP", 3_000)
    monkeypatch.setattr(stitch, "WINDOW", 2_500)
    monkeypatch.setattr(stitch, "OVERLAP", 64)
    monkeypatch.setattr(stitch, "SLICE", 700)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", EVERY)
def test_a_text_in_pieces_of_any_size_has_the_tokens_of_the_whole(name: str) -> None:
    made = tokenizer(name)
    engine, reference = made.engine(), made.reference()
    rng = random.Random(name)
    for kind in RUNS:
        parts = [run(kind, rng.randint(6_000, 10_000), 1)]
        parts += [run(rng.choice(list(RUNS)), rng.randint(1, 3_000), 2) for _ in range(rng.randint(0, 2))]
        rng.shuffle(parts)
        text = "".join(parts)
        expected = reference(text)
        assert in_pieces(engine, text, rng.choice([100, 1_000, 5_000])) == expected, kind


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
def test_pieces_of_a_few_characters_have_the_tokens_of_the_whole(size: int) -> None:
    made = load_tokenizer("gpt2")
    engine = made.engine()
    for kind in RUNS:
        text = run(kind, 4_000) + run("words", 3_000)
        assert in_pieces(engine, text, size) == made.reference()(text), kind


@pytest.mark.usefixtures("small")
def test_without_the_look_past_white_space_the_tokens_would_be_wrong(tmp_path: Path) -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"\n "]
    path = tmp_path / "line-and-space.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)))
    made = load_tokenizer(str(path), pattern="llama3")
    assert made.stitching is not None
    text = "\n" + " " * 9_000
    scheme = dataclasses.replace(made.stitching.scheme, looks_past_white=False)
    blind = dataclasses.replace(made.stitching, scheme=scheme)
    for end in ("", "\n", "x", "\n x", "\t\n\n"):
        expected = made.reference()(text + end)
        assert in_pieces(made.engine(), text + end, 500) == expected
        parts = stitch.encode_stream([(text + end).encode()], made.engine()._encode_piece, blind)
        assert ([token for part in parts for token in part.tolist()] == expected) == ("\n" not in end)


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
    assert made.white_after(1) == (True, False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
    total = 0
    while made.fill(1_000_000):
        total += len(made.take(len(made.text)))
    assert total == 1 + 1 + 50_000_000 + 3


def test_more_white_space_than_is_read_ahead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitch, "LONGEST_WHITE", 3_000_000)
    for name, refused in (("gpt2", False), ("llama3-json", True)):
        engine = tokenizer(name).engine()
        pieces = [b"x", *[b" " * 1_000_000] * 6, b"y"]
        if refused:
            with pytest.raises(UncuttableError, match="of white space in one run"):
                list(engine.encode_pieces(pieces))
        else:
            assert sum(map(len, engine.encode_pieces(pieces))) > 1000


def whole(made: Tokenizer, text: str) -> list[int]:
    """By the reference; or by the core in one call, where tiktoken's regular expressions overflow its stack."""
    try:
        return made.reference()(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return [int(token) for token in made.engine()._encode_piece(text.encode())]


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
