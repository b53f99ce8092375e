"""`shardmill.tokenizer`: the engine by itself gives what the tokenizer's own library gives."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardmill
from shardmill.errors import UsageError
from shardmill.tokens import EngineError, backends, load_tokenizer
from shardmill.tokens import texts as batches_of_texts
from shardmill.tokens.texts import TextTokenizer
from tests.corpus import HARD, documents
from tests.tokens.hard import texts as hard_texts

ENGINES = {"core": True, "library": False}


@pytest.fixture(params=ENGINES, scope="module")
def gpt2(request: pytest.FixtureRequest) -> Iterator[TextTokenizer]:
    with pytest.MonkeyPatch.context() as patch:
        if not ENGINES[request.param]:
            patch.setattr(backends, "core_knows", lambda scheme: False)
        yield shardmill.tokenizer("gpt2")


@pytest.fixture(scope="module")
def reference() -> Callable[[str], list[int]]:
    return load_tokenizer("gpt2").reference()


def test_a_batch_gives_the_ids_of_the_library_and_they_decode_to_the_text(
    gpt2: TextTokenizer, reference: Callable[[str], list[int]]
) -> None:
    texts = [*HARD, *documents(200), ""]
    found = gpt2.encode_batch(texts)
    assert [ids.tolist() for ids in found] == [reference(text) for text in texts]
    assert {ids.dtype for ids in found} == {np.dtype(np.uint16)}
    assert [gpt2.decode(ids, errors="strict") for ids in found] == texts
    assert [gpt2.encode(text).tolist() for text in HARD] == [reference(text) for text in HARD]
    assert gpt2.count(texts) == sum(map(len, found)) == gpt2.count(text for text in texts)
    assert gpt2.count(texts[0]) == len(found[0])


@given(st.lists(hard_texts, max_size=20), st.integers(1, 60))
@settings(max_examples=60)
def test_how_texts_are_put_together_changes_nothing(
    gpt2: TextTokenizer, reference: Callable[[str], list[int]], texts: list[str], call: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_of_texts, "CALL_BYTES", call)
        assert [ids.tolist() for ids in gpt2.encode_batch(iter(texts))] == [reference(text) for text in texts]


@pytest.mark.parametrize(
    "column",
    [
        lambda texts: pa.array(texts),
        lambda texts: pa.array(["x", *texts], pa.large_string())[1:],
        lambda texts: pa.array(texts, pa.string_view()),
        lambda texts: pa.chunked_array([texts[:3], [], texts[3:]]),
        lambda texts: pa.array(texts).dictionary_encode(),
        lambda texts: pa.array([text.encode() for text in texts], pa.binary()),
    ],
)
@pytest.mark.parametrize("call", [1, 300, 5 << 20])
def test_an_arrow_column_is_a_batch_too(
    gpt2: TextTokenizer,
    reference: Callable[[str], list[int]],
    column: Callable[..., Any],
    call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches_of_texts, "CALL_BYTES", call)
    assert [ids.tolist() for ids in gpt2.encode_batch(column(HARD))] == [reference(text) for text in HARD]
    assert [ids.tolist() for ids in gpt2.encode_batch(column(["", "a", ""] * 2))] == [[], [64], []] * 2


def test_a_text_longer_than_an_engine_takes_at_once_is_exact(gpt2: TextTokenizer) -> None:
    text = "So many words, and 12345 numbers.\n" * 300_000
    ids = gpt2.encode(text)
    assert gpt2.decode(ids, errors="strict") == text
    period = gpt2.encode(text[:34]).tolist()
    assert ids[: len(period)].tolist() == period and gpt2.count(text) == len(ids)


def test_special_tokens_are_text_unless_they_are_asked_for(gpt2: TextTokenizer) -> None:
    text = "one<|endoftext|>two"
    assert gpt2.eot not in gpt2.encode(text) and gpt2.decode(gpt2.encode(text)) == text
    assert gpt2.eot in shardmill.tokenizer("gpt2", specials="parse").encode(text)
    with pytest.raises(EngineError, match="endoftext") as error:
        shardmill.tokenizer("gpt2", specials="error").encode_batch(["good", text])
    assert error.value.place == "text 2"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one text", "not one text"),
        (b"one text", "not one text"),
        (3, "not a int"),
        (["good", None], r"is a NoneType, not a str(.|\n)*text 2"),
        (["good", b"bytes"], r"is a bytes, not a str(.|\n)*text 2"),
        (["good", "fine", "a \ud800 b"], r"lone surrogate(.|\n)*text 3"),
        (pa.array(["good", None]), "null"),
        (pa.array([[1]]), "no column of texts"),
        (pa.array([b"\xff"], pa.binary()), "no column of texts"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(gpt2: TextTokenizer, texts: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gpt2.encode_batch(texts)


@pytest.mark.parametrize(
    ("ids", "said"),
    [([1, 50257], "50,257 is no id"), ([-1], "-1 is no id"), ([[1, 2]], "shape"), ([0.5], "whole numbers")],
)
def test_what_is_no_id_is_refused(gpt2: TextTokenizer, ids: list[list[int] | float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gpt2.decode(ids)


def test_ids_decode_from_any_kind_of_row_and_half_a_character_is_replaced(gpt2: TextTokenizer) -> None:
    ids = gpt2.encode("a 😀")
    assert gpt2.decode(ids.tolist()) == gpt2.decode(ids.astype(np.int64)) == "a 😀"
    assert gpt2.decode([]) == "" and gpt2.decode(np.empty(0, np.uint16)) == ""
    assert gpt2.decode(ids[:-1]).endswith("\ufffd")
    with pytest.raises(UnicodeDecodeError):
        gpt2.decode(ids[:-1], errors="strict")
    assert gpt2.eot is not None and gpt2.decode([gpt2.eot]) == "<|endoftext|>"


def test_several_threads_use_one_tokenizer_at_once(gpt2: TextTokenizer, reference: Callable[[str], list[int]]) -> None:
    texts, found = documents(300), {}
    expected = [reference(text) for text in texts]

    def work(name: int) -> None:
        found[name] = [ids.tolist() for _ in range(5) for ids in gpt2.encode_batch(texts)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[i] == 5 * expected for i in range(6))
    assert len(gpt2._idle) <= 4


def test_it_goes_to_other_processes(gpt2: TextTokenizer) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert (
            pool.submit(gpt2.encode, "one<|endoftext|>").result(60).tolist() == gpt2.encode("one<|endoftext|>").tolist()
        )
        parsing = shardmill.tokenizer("gpt2", specials="parse")
        assert pool.submit(parsing.encode, "one<|endoftext|>").result(60).tolist() == [505, gpt2.eot]


@pytest.mark.parametrize("name", [3, None, "", b"gpt2"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="`name`"):
        shardmill.tokenizer(name)


def test_a_tokenizer_whose_library_sees_all_decodes_at_once(tmp_path: Path) -> None:
    from tests.tokens.vocabularies import package

    model = next(iter(sorted(package("mistral_common").rglob("*.model*"))), None)
    if model is None:
        pytest.skip("mistral-common carries no SentencePiece model here")
    made = shardmill.tokenizer(model)
    text = "Some words, and  more of them."
    assert made.decode(made.encode(text)) == text


def test_an_id_in_a_gap_of_the_vocabulary_is_refused() -> None:
    from tests.tokens.vocabularies import rank_file

    made = shardmill.tokenizer(rank_file("cl100k_base.tiktoken"))
    assert made.decode([9906, 100257, 100276]) == "Hello<|endoftext|><|endofprompt|>"
    for gap in (100256, 100261, 100275):
        with pytest.raises(UsageError, match=f"{gap:,} is no id of `cl100k_base`: its numbers have a gap there"):
            made.decode([9906, gap])
