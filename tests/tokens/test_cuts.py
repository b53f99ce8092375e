"""Safe places: the parts, encoded alone, give the tokens of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.tokens.cuts import CUT_CONTEXT, TAIL, Cut
from tests.tokens.hard import RUNS, disorder, run, texts
from tests.tokens.vocabularies import EVERY, tokenizer

FAMILIES = ["gpt2", "llama3", "o200k"]
garbage = st.lists(
    st.sampled_from(
        [
            b"a",
            b" ",
            b"\n",
            b"1",
            b"!",
            b"\xe4\xb8\xad",
            b"\xe3\x80\x82",
            b"\xe3",
            b"\x80",
            b"\xc2",
            b"\xa0",
            b"\xff",
            b"\xf0\x9f",
        ]
    ),
    max_size=20,
).map(b"".join)


def places(cut: Callable[[bytes, int], int], text: bytes) -> list[int]:
    found = []
    at = 1
    while (place := cut(text, at)) > 0:
        found.append(place)
        at = place + 1
    return found


def check(name: str, specials: str) -> None:
    made = tokenizer(name, specials)
    reference, cut = made.reference(), made.cut
    assert cut is not None
    tried = 0
    for text in disorder(name, 2_000):
        encoded = text.encode()
        for place in places(cut, encoded):
            head, tail = encoded[:place].decode(), encoded[place:].decode()
            assert reference(head) + reference(tail) == reference(text), (head, tail)
            tried += 1
    assert tried > 500


@pytest.mark.parametrize("name", EVERY)
def test_parts_cut_at_any_safe_place_encode_to_the_tokens_of_the_whole(name: str) -> None:
    check(name, "text")


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "llama3-json"])
def test_so_they_do_where_special_tokens_are_to_be_found(name: str) -> None:
    check(name, "parse")


@pytest.mark.parametrize("family", FAMILIES)
@given(text=garbage)
@settings(max_examples=200)
def test_a_cut_in_invalid_utf8_is_where_the_repaired_parts_join_to_the_repaired_whole(family: str, text: bytes) -> None:
    whole = text.decode(errors="replace")
    for place in places(Cut(family), text):
        head, tail = text[:place].decode(errors="replace"), text[place:].decode(errors="replace")
        assert head + tail == whole
        repaired = whole.encode()
        assert len(head.encode()) in places(Cut(family), repaired)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts, before=texts, after=texts, at=st.integers(0, 40))
@settings(max_examples=100)
def test_the_first_place_does_not_depend_on_where_the_window_begins_and_ends(
    family: str, text: str, before: str, after: str, at: int
) -> None:
    cut = Cut(family)
    long = (before * 3 + text + after).encode()
    at += CUT_CONTEXT
    place = cut(long, at)
    for begin in range(at - CUT_CONTEXT + 1):
        found = cut(long[begin:], at - begin)
        assert (found + begin if found > 0 else -1) == place
    for end in range(at, len(long)):
        found = cut(long[:end], at)
        assert found == place or (found == -1 and (place == -1 or place > end - TAIL))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", sorted(RUNS))
def test_a_far_place_is_the_one_that_the_rules_alone_would_find(family: str, kind: str) -> None:
    cut = Cut(family)
    for seed in range(5):
        text = (run(kind, 40_000, seed) + "x, y\n" + run("words", 200, seed)).encode()
        slow = cut._rules.search(text, 1)
        assert cut(text, 1) == (slow.start() if slow else -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_place_has_text_on_both_sides(family: str) -> None:
    cut = Cut(family)
    assert cut(b"", 0) == cut(b" ", 0) == cut(b"a", 0) == cut(b"ab", 0) == -1
    assert cut(b"a b", 0) == 1
    assert cut(b"a b", 2) == -1


def test_digits_are_never_parted() -> None:
    assert all(Cut(family)(b"1234567890" * 100, 5) == -1 for family in FAMILIES)


def test_a_special_token_is_never_parted_where_it_is_looked_for() -> None:
    text = b"x<|endoftext|>y <|endoftext|> z"
    assert [text[:place] for place in places(Cut("llama3", specials=True), text)] == [
        b"x<|endoftext|>y",
        b"x<|endoftext|>y <|endoftext|>",
    ]
