"""Tokenizers whose engine is the compiled core: the same tokens, the same refusals, and memory that does not grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.core.encoding import Encoder
from shardmill.dataset import verify
from shardmill.tokens import Tokenizer, self_check
from tests.corpus import HARD, documents, random_words, write_jsonl
from tests.tokens.hard import lists, rows
from tests.tokens.vocabularies import EVERY, TOKENIZERS, tokenizer


def loaded(name: str, specials: str = "text") -> Tokenizer:
    return tokenizer.__wrapped__(name, specials)


@pytest.mark.parametrize("name", EVERY)
def test_the_core_is_the_engine_wherever_it_can_be(name: str) -> None:
    assert loaded(name).engine_name == "core"


@pytest.mark.parametrize("name", EVERY)
def test_the_tokens_are_those_of_the_library(name: str) -> None:
    made = loaded(name)
    texts = [*HARD, "", *documents(200, seed=3), "x" * 100_000, " \n" * 9000 + "a", "1234567" * 999, "漢字" * 5000]
    encoded = made.engine().encode(*rows(texts))
    assert lists(encoded) == [list(made.reference()(text)) for text in texts]
    assert (encoded.fallbacks, encoded.failed) == (0, [])


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_a_text_in_pieces_gives_the_tokens_of_the_whole(name: str) -> None:
    made = loaded(name)
    for text in ("a" * 3_000_000, "aGVsbG8gd29ybGQ" * 60_000, " " * 1_500_000 + "x", "中" * 300_000):
        data = text.encode()
        size = len(text[0].encode()) * 400_000
        pieces = (data[i : i + size] for i in range(0, len(data), size))
        tokens = np.concatenate(list(made.engine().encode_pieces(pieces)))
        assert made.decode(tokens) == data
        whole = made.engine().encode(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
        assert tokens.tolist() == lists(whole)[0]


def test_special_tokens_are_refused_where_they_are_an_error_and_found_where_they_are_wanted() -> None:
    text = "before <|endoftext|> after"
    refused = loaded("gpt2", "error").engine().encode(*rows([text, "plain"]))
    assert [row for row, _ in refused.failed] == [0]
    parsed = loaded("gpt2", "parse")
    assert parsed.engine_name == "core"
    assert 50256 in lists(parsed.engine().encode(*rows([text])))[0]


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name in ("gpt2", "o200k", "gpt2-json")])
def test_the_core_and_the_library_have_one_provenance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded(name)
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.tokens.backends.core_knows", lambda scheme: False)
        other = loaded(name)
    assert (made.engine_name, other.engine_name) == ("core", other.library_name)
    one, two = made.provenance(made.engine()), other.provenance(other.engine())
    assert one["sha256"] == two["sha256"] and one["libraries"] != two["libraries"]


def test_a_core_that_lies_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a vocabulary that nobody has published; and for releases that no test has seen."""
    encode = Encoder.encode

    def lie(self: Any, *arguments: Any, **options: Any) -> Any:
        ids, counts = encode(self, *arguments, **options)
        if len(ids) > 1000:
            ids[999] ^= 1
        return ids, counts

    monkeypatch.setattr(Encoder, "encode", lie)
    assert loaded("llama3").engine_name == "tiktoken"
    assert loaded("gpt2").engine_name == "core"
    monkeypatch.setattr(self_check, "TESTED", {**self_check.TESTED, "tiktoken": "99."})
    assert loaded("gpt2").engine_name == "tiktoken"


def test_a_core_that_lies_is_found_by_verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sample of the documents is encoded again by the tokenizer's own library."""
    encode = Encoder.encode

    def lie(self: Any, data: Any, offsets: Any, *arguments: Any, **options: Any) -> Any:
        ids, counts = encode(self, data, offsets, *arguments, **options)
        ids[np.cumsum(counts)[counts > 9] - 5] ^= 1
        return ids, counts

    source = write_jsonl(tmp_path / "a.jsonl", documents(400, seed=8))
    monkeypatch.setattr(Encoder, "encode", lie)
    shardmill.prepare(source, tmp_path / "lies", tokenizer="gpt2")
    monkeypatch.undo()
    shardmill.prepare(source, tmp_path / "right", tokenizer="gpt2")
    assert verify(tmp_path / "lies").damage
    assert not verify(tmp_path / "right").damage


def test_the_memory_of_an_engine_does_not_grow_with_the_text() -> None:
    from shardmill.run.machine import resident

    engine = loaded("gpt2").engine()
    sizes = []
    for seed in range(6):
        text = np.frombuffer(random_words(4_000_000, seed), np.uint8)
        engine.encode(text, np.array([0, len(text)]))
        sizes.append(resident())
    assert sizes[-1] - sizes[1] < 8_000_000
