"""Rows of text to rows of tokens: equal to the tokenizer's own library, whatever the rows are."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.tokens import (
    Engine,
    EngineError,
    Tokenizer,
    UncuttableError,
    backends,
    engines,
    load_tokenizer,
    rank_files,
    stitch,
)
from tests.tokens.hard import disorder, lists, rows, run, texts
from tests.tokens.vocabularies import EVERY, gpt2_rules, tokenizer, write_json

POISON = "\u0007poison\u0007"


def check(made: Tokenizer, documents: list[str]) -> None:
    encoded = made.engine().encode(*rows(documents))
    assert lists(encoded) == [made.reference()(document) for document in documents]
    assert encoded.tokens.dtype == made.dtype and encoded.offsets.dtype == np.int64
    assert not encoded.failed


@pytest.mark.parametrize("name", EVERY)
def test_rows_encode_to_what_the_library_gives(name: str) -> None:
    check(tokenizer(name), disorder(name, 3_000))


@pytest.mark.parametrize("name", ["gpt2", "p50k", "cl100k", "llama3-json"])
def test_rows_with_special_tokens_to_be_found_encode_to_what_the_library_gives(name: str) -> None:
    documents = disorder(name, 2_000)
    assert sum("<|endoftext|>" in document for document in documents) > 100
    check(tokenizer(name, "parse"), documents)


@given(documents=st.lists(texts, max_size=12))
@settings(max_examples=150)
def test_any_rows_encode_to_what_tiktoken_gives(documents: list[str]) -> None:
    engine, reference = hypothesised()
    assert lists(engine.encode(*rows(documents))) == [reference(document) for document in documents]


@functools.cache
def hypothesised() -> tuple[Engine, Callable[[str], list[int]]]:
    made = load_tokenizer("gpt2")
    return made.engine(), made.reference()


def test_offsets_may_begin_anywhere_and_buffers_may_be_read_only() -> None:
    made = load_tokenizer("gpt2")
    data = np.frombuffer(b"skipped hello world.\n\nAgain rest", np.uint8)
    assert not data.flags.writeable
    encoded = made.engine().encode(data, np.array([8, 13, 13, 27], np.int64))
    assert lists(encoded) == [made.reference()(text) for text in ("hello", "", " world.\n\nAgain")]


def test_no_rows_and_empty_rows_have_no_tokens() -> None:
    engine = load_tokenizer("gpt2").engine()
    assert lists(engine.encode(*rows([]))) == []
    assert lists(engine.encode(*rows([""]))) == [[]]
    assert lists(engine.encode(*rows(["", "", ""]))) == [[], [], []]


def test_many_calls_give_the_same_rows_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = load_tokenizer("gpt2")
    documents = [run("words", size, size) for size in range(300)]
    whole = lists(made.engine().encode(*rows(documents)))
    assert whole == [made.reference()(document) for document in documents]
    for size in (1, 50, 1_000):
        monkeypatch.setattr(engines, "CALL_BYTES", size)
        assert lists(made.engine().encode(*rows(documents))) == whole


def test_a_row_longer_than_a_call_is_encoded_in_parts_and_exactly() -> None:
    for name in ("gpt2", "llama3-json"):
        made = tokenizer(name)
        assert made.stitching is not None
        made = changed(made, stitching=dataclasses.replace(made.stitching, step=2_500))
        documents = ["x", run("words", 40_000), "y", run("unicode 17", 12_000), run("digit", 30_000)]
        assert lists(made.engine().encode(*rows(documents))) == [made.reference()(text) for text in documents]


def test_a_special_token_is_ordinary_text_unless_asked_for() -> None:
    text = "a<|endoftext|>b"
    plain = lists(load_tokenizer("gpt2").engine().encode(*rows([text])))
    assert 50256 not in plain[0]
    parsed = lists(load_tokenizer("gpt2", specials="parse").engine().encode(*rows([text])))
    assert parsed == [[64, 50256, 65]]


def test_a_row_with_a_special_token_fails_where_that_is_an_error_and_only_that_row() -> None:
    engine = load_tokenizer("gpt2", specials="error").engine()
    encoded = engine.encode(*rows(["a", "b<|endoftext|>", "<|endof", "text|>", "c"]))
    assert encoded.failed == [(1, "the text contains the special token <|endoftext|>")]
    reference = load_tokenizer("gpt2").reference()
    assert lists(encoded) == [reference("a"), [], reference("<|endof"), reference("text|>"), reference("c")]


def test_a_special_token_that_is_an_error_is_found_in_a_text_in_pieces_too() -> None:
    made = load_tokenizer("gpt2", specials="error")
    text = run("words", 50_000) + "<|endoftext|>" + run("words", 50_000)
    pieces = [text[start : start + 5].encode() for start in range(0, len(text), 5)]
    with pytest.raises(EngineError, match="special token"):
        list(made.engine().encode_pieces(pieces))
    special = b"x<|endoftext|>y z"
    assert made.cut is not None and made.cut(special, 1) == special.index(b" z")


SEPARATORS = ["<|endoftext|>", "\n\n", "\n", "---", "aa", "é", " ", "<|end", "#" * 40]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("name", ["gpt2", "p50k", "cl100k"])
def test_rows_with_separators_between_them_have_the_tokens_of_rows_alone(name: str, separator: str) -> None:
    made = tokenizer(name)
    engine, plain = made.engine(), made.engine()
    for seed in range(8):
        some = [text for text in disorder(f"{separator}{seed}", 60) if separator not in text + separator[:-1]]
        # What stands before a separator must not make another one with its beginning: a reader finds the first.
        some = [text for text in some if not any(text.endswith(separator[:n]) for n in range(1, len(separator)))]
        some += ["", "a ʕ•ᴥ•ʔ b"][: seed % 3]
        packed, offsets = rows(some)
        gap = len(separator.encode())
        raw = separator.join(some).encode() + separator.encode() * (seed % 2)
        spread = offsets + gap * np.arange(len(offsets))
        encoded = engine.encode(np.frombuffer(raw, np.uint8), spread, gap)
        expected = plain.encode(packed, offsets)
        assert lists(encoded) == lists(expected)
        assert (encoded.fallbacks, encoded.failed) == (expected.fallbacks, expected.failed)
        # An engine that has seen a separator also takes rows without any between them, and rows that hold it.
        assert lists(engine.encode(*rows([*some, f"a{separator}b"]))) == lists(
            plain.encode(*rows([*some, f"a{separator}b"]))
        )


@pytest.mark.parametrize("specials", ["parse", "error"])
def test_a_separator_that_is_a_special_token_is_none_where_it_stands_between_rows(specials: str) -> None:
    engine = load_tokenizer("gpt2", specials=specials).engine()
    expected = lists(engine.encode(*rows(["some", "", "words"])))
    separator = "<|endoftext|>"
    gap = len(separator)
    raw = np.frombuffer(separator.join(["some", "", "words"]).encode(), np.uint8)
    encoded = engine.encode(raw, np.array([0, 4 + gap, 4 + 2 * gap, len(raw) + gap]), gap)
    assert (lists(encoded), encoded.failed, encoded.fallbacks) == (expected, [], 0)


def changed(made: Tokenizer, **attributes: Any) -> Tokenizer:
    """The same tokenizer with some things replaced."""
    other = copy.copy(made)
    vars(other).update(attributes)
    return other


class Noted:
    """The tokenizer's own library, and the largest text that it was given."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.most = inner, 0

    def rows(self, data: Any, offsets: Any, gap: int) -> Any:
        self.most = max(self.most, int((np.diff(offsets) - gap).max()))
        return self._inner.rows(data, offsets, gap)


def by_library(made: Tokenizer) -> Tokenizer:
    """The same tokenizer, encoded by its own library."""
    made = changed(made, engine_name=made.library_name)
    return changed(made, stitching=made.stitching and dataclasses.replace(made.stitching, step=stitch.LIBRARY_STEP))


def test_a_library_that_takes_much_memory_gets_a_long_row_in_small_parts() -> None:
    made = by_library(tokenizer("llama3-json"))
    noted = Noted(made.backend("tokenizers"))
    made = changed(made, backend=lambda name: noted)
    long = run("words", 400_000) + " \u088f's " + run("words", 300_000, 1)
    documents = ["short", long, "", long[:1_000]]
    assert lists(made.engine().encode(*rows(documents))) == [made.reference()(document) for document in documents]
    assert made.stitching and 0 < noted.most <= stitch.MOST_STEPS * made.stitching.step == 1 << 18


def test_a_library_gets_many_documents_in_one_call_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for each document holds the GIL between them, and workers wait for each other."""
    made = load_tokenizer(str(write_json("lower", {**gpt2_rules(), "normalizer": {"type": "Lowercase"}})))
    calls: list[int] = []
    init = backends.ReferenceBackend.__init__

    def noted(self: backends.ReferenceBackend, encode: Callable[[Any], Any]) -> None:
        init(self, lambda texts: calls.append(sum(map(len, texts))) or encode(texts))

    monkeypatch.setattr(backends.ReferenceBackend, "__init__", noted)
    documents = [run("words", 300, i) for i in range(2000)]
    check(made, documents)
    total = sum(map(len, documents))
    most = 1 << 17  # bytes: enough that calls are few, and little beside a chunk
    assert len(calls) <= 2 * total / most + 1
    assert max(calls) <= most


def test_documents_that_go_whole_to_a_library_are_counted_with_what_it_takes() -> None:
    rules = gpt2_rules()
    lower = load_tokenizer(str(write_json("lower", {**rules, "normalizer": {"type": "Lowercase"}})))
    assert (lower.engine_name, lower.cut) == ("tokenizers", None) and lower.library_bytes > 100
    spaces = {"id": 50257, "content": "  ", "special": False, "single_word": False, "lstrip": False, "rstrip": False}
    added = [*rules["added_tokens"], {**spaces, "normalized": True}]
    spaced = load_tokenizer(str(write_json("spaced", {**rules, "added_tokens": added})))
    assert (spaced.engine_name, spaced.cut) == ("core", None) and not spaced.library_bytes


class PanicException(BaseException):
    """What a panic in Rust becomes."""


class Poisoned:
    """A library that cannot encode rows with a certain text in them."""

    def __init__(self, inner: Any, failure: str) -> None:
        self._inner, self._failure = inner, failure

    def rows(self, data: Any, offsets: Any, gap: int) -> Any:
        if POISON.encode() in data[offsets[0] : offsets[-1]].tobytes():
            if self._failure == "panic":
                raise PanicException("as a library in Rust does")
            if self._failure == "interrupt":
                raise KeyboardInterrupt
            if self._failure == "memory":
                raise MemoryError
            if self._failure == "wrong id":
                return np.full(len(offsets), 10**6, np.uint32), np.array([0, *range(2, len(offsets) + 1)])
            raise ValueError("cannot")
        return self._inner.rows(data, offsets, gap)


def poisoned(failure: str, *, reference_too: bool = False) -> Tokenizer:
    made = load_tokenizer("gpt2")
    inner, own = made.backend, made.library_name

    def backend(name: str) -> Any:
        return Poisoned(inner(name), failure) if reference_too or name != own else inner(name)

    return changed(made, backend=backend)


DOCUMENTS = ["one", "two", f"bad {POISON}", "three", *["more"] * 20, f"{POISON} again", "end"]


@pytest.mark.parametrize("failure", ["panic", "error", "wrong id"])
def test_a_row_that_the_engine_cannot_encode_goes_to_the_reference(failure: str) -> None:
    encoded = poisoned(failure).engine().encode(*rows(DOCUMENTS))
    reference = load_tokenizer("gpt2").reference()
    assert lists(encoded) == [reference(document) for document in DOCUMENTS]
    assert (encoded.fallbacks, encoded.failed) == (2, [])


@pytest.mark.parametrize("failure", ["panic", "error", "wrong id"])
def test_a_row_that_nothing_can_encode_fails_alone_with_a_reason(failure: str) -> None:
    encoded = poisoned(failure, reference_too=True).engine().encode(*rows(DOCUMENTS))
    reference = load_tokenizer("gpt2").reference()
    assert lists(encoded) == [[] if POISON in document else reference(document) for document in DOCUMENTS]
    assert [row for row, _ in encoded.failed] == [2, 24]
    assert all(reason.startswith("the text cannot be encoded: ") for _, reason in encoded.failed)


@pytest.mark.parametrize(("failure", "error"), [("interrupt", KeyboardInterrupt), ("memory", MemoryError)])
def test_an_interrupt_is_not_taken_for_a_bad_row(failure: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        poisoned(failure).engine().encode(*rows(DOCUMENTS))


def test_a_text_in_pieces_that_nothing_can_encode_is_an_error() -> None:
    engine = poisoned("panic", reference_too=True).engine()
    with pytest.raises(EngineError):
        list(engine.encode_pieces([POISON.encode()]))


def test_engines_of_one_tokenizer_work_in_threads_at_once() -> None:
    made = load_tokenizer("gpt2")
    documents = [run("words", 2_000, seed) for seed in range(100)]
    expected = [made.reference()(document) for document in documents]
    results: list[list[list[int]]] = []

    def work() -> None:
        engine = made.engine()
        results.extend(lists(engine.encode(*rows(documents))) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12 and all(result == expected for result in results)


def test_without_known_safe_places_a_text_in_pieces_is_an_error_and_rows_are_not(tmp_path: Any) -> None:
    path = tmp_path / "odd.tiktoken"
    path.write_bytes(rank_files.gpt2_ranks())
    made = load_tokenizer(str(path), pattern=r"\w+|\W+")
    assert (made.cut, made.engine_name) == (None, "tiktoken")
    assert lists(made.engine().encode(*rows(["ab, c"]))) == [made.reference()("ab, c")]
    with pytest.raises(UncuttableError):
        list(made.engine().encode_pieces([b"ab"]))
