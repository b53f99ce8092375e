"""Any release of `tokenizers` will do: these tests use no interface of it that 1.0 lacks, so they hold with each.

`pip install --pre 'tokenizers>=1.0.0rc1'` in an environment of your own, and run this file there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardmill.errors import UsageError
from shardmill.tokens import load_tokenizer
from tests.tokens.vocabularies import added, gpt2_rules, write_json

DOCUMENTS = ["one two three", "Zwölf Boxkämpfer, <|endoftext|> and more", "东京 123", "", " \n\n"]


@pytest.mark.parametrize("limits", [{}, {"truncation": {"max_length": 4}, "padding": {"length": 10}}])
def test_a_tokenizer_json_gives_the_tokens_of_tiktoken_with_the_release_that_is_installed(
    limits: dict[str, Any],
) -> None:
    made = load_tokenizer(str(write_json(f"release-{len(limits)}", {**gpt2_rules(), **limits})))
    twin = load_tokenizer("gpt2")
    assert (made.vocab_size, made.eot) == (twin.vocab_size, twin.eot)
    for document in DOCUMENTS:
        ids = made.reference()(document)
        assert ids == twin.reference()(document)
        assert made.decode(np.array(ids, np.int64)) == document.encode()


def test_added_tokens_are_text_or_tokens_as_the_user_wants_with_the_release_that_is_installed() -> None:
    rules = {**gpt2_rules(), "added_tokens": [*gpt2_rules()["added_tokens"], added(50257, "<|odd|>", special=True)]}
    path = str(write_json("release-added", rules))
    assert load_tokenizer(path, specials="parse").reference()("a<|odd|>") == [64, 50257]
    assert 50257 not in load_tokenizer(path).reference()("a<|odd|>")


def test_a_tokenizer_json_that_the_library_refuses_is_a_wrong_call_that_names_the_release() -> None:
    broken = {**gpt2_rules(), "model": {**gpt2_rules()["model"], "type": "Unheard"}}
    with pytest.raises(UsageError, match=r"`tokenizers` \d+\.\d+"):
        load_tokenizer(str(write_json("release-broken", broken))).reference()
