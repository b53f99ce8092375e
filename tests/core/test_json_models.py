"""Merges as a tokenizer.json has them: ranks that are no ids, and only listed pairs merge."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from shardmill.core import CoreError
from shardmill.core import encoding as core
from shardmill.tokens.json_files import token_bytes
from shardmill.tokens.schemes import DEEPSEEK, SCHEMES
from tests.core.models import both
from tests.tokens.hard import disorder, run
from tests.tokens.vocabularies import gpt2_rules, split

tokenizers = pytest.importorskip("tokenizers", reason="the package `tokenizers` is not installed")
RUNS = ("letters", "letter", "space", "cjk", "thai and marks")
TEXTS = [*disorder("json", 700), *(run(kind, 3000) for kind in RUNS)]


def compare(rules: dict[str, Any], scheme: str, texts: list[str]) -> None:
    vocab, merges = rules["model"]["vocab"], rules["model"]["merges"]
    pairs: list[Any] = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    library = tokenizers.Tokenizer.from_str(json.dumps(rules))
    want = [library.encode(text, add_special_tokens=False).ids for text in texts]
    tokens = token_bytes(vocab, (), max(vocab.values()))
    whole = rules["model"]["ignore_merges"]
    both(core.Model(tokens, scheme, core.merge_rows(vocab, pairs), whole_first=whole), texts, want)


def plain(text: str) -> bool:
    """Without special tokens, which the library would find."""
    return "<|endoftext|>" not in text


@pytest.mark.parametrize("scheme", ["gpt2", "qwen2", "o200k", "deepseek-v3"])
def test_the_merges_of_gpt2_under_every_pattern(scheme: str) -> None:
    rules = gpt2_rules()
    if scheme != "gpt2":
        patterns = DEEPSEEK.patterns if scheme == DEEPSEEK.name else SCHEMES[scheme].patterns[:1]
        rules = {**rules, "pre_tokenizer": split(*patterns)}
    compare(rules, scheme, list(filter(plain, TEXTS)))


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_merges_in_any_order_and_ids_in_any_order(seed: int, ignore_merges: bool) -> None:
    rng = random.Random(seed)
    rules = gpt2_rules()
    vocab, merges = dict(rules["model"]["vocab"]), list(rules["model"]["merges"])[: 4000 if seed else 50000]
    rng.shuffle(merges)
    if seed == 2:  # pairs that other pairs make too, and that are listed twice
        merges += ["t he", "th e", "i n", "a n", "he r"]
    known = {token for token in vocab if len(token) == 1} | {merge.replace(" ", "") for merge in merges}
    known |= set(rng.sample(sorted(vocab), 3000))
    known |= {part for merge in merges for part in merge.split(" ")}
    ids = list(range(len(known)))
    rng.shuffle(ids)
    vocab = dict(zip(sorted(known), ids, strict=True))
    model = {**rules["model"], "vocab": vocab, "merges": merges, "ignore_merges": ignore_merges}
    compare({**rules, "added_tokens": [], "model": model}, "gpt2", TEXTS)


def test_a_merge_that_makes_something_else_is_refused() -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab"]
    with pytest.raises(CoreError, match="vocabulary"):
        core.Model(tokens, "gpt2", [[ord("a"), ord("c"), 256]])  # type: ignore[arg-type]
