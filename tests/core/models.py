"""Models of the core beside the library that each must agree with."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tiktoken

from shardmill.core import encoding as core
from shardmill.tokens import rank_files
from shardmill.tokens.schemes import DEEPSEEK, SCHEMES
from tests.tokens.hard import rows
from tests.tokens.vocabularies import rank_file

VOCABULARIES = {
    "gpt2": "",
    "cl100k": "cl100k_base.tiktoken",
    "llama3": "cl100k_base.tiktoken",
    "qwen2": "qwen.tiktoken",
    "qwen3.5": "qwen.tiktoken",
    "o200k": "o200k_base.tiktoken",
    "tekken": "tekken.tiktoken",
    "deepseek-v3": "cl100k_base.tiktoken",
}
"""The vocabulary that each scheme is tried with; GPT-2's is in the package."""


@functools.cache
def ranks(scheme: str) -> dict[bytes, int]:
    name = VOCABULARIES[scheme]
    return rank_files.parse(rank_file(name).read_bytes() if name else rank_files.gpt2_ranks(), scheme)


@functools.cache
def model(scheme: str) -> core.Model:
    return core.Model(rank_files.by_id(ranks(scheme), {}), scheme)


@functools.cache
def reference(scheme: str) -> Callable[[str], list[int]]:
    if scheme == DEEPSEEK.name:
        return split_by_tokenizers(DEEPSEEK.patterns, ranks(scheme))
    pattern = SCHEMES[scheme].patterns[0]
    return tiktoken.Encoding(scheme, pat_str=pattern, mergeable_ranks=ranks(scheme), special_tokens={}).encode_ordinary


def split_by_tokenizers(patterns: tuple[str, ...], ranks: dict[bytes, int]) -> Callable[[str], list[int]]:
    """Patterns one after the other, which tiktoken cannot do: `tokenizers` splits, and tiktoken encodes each piece."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package `tokenizers` is not installed")
    rules = tokenizers.pre_tokenizers
    split = rules.Sequence([rules.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns])
    whole = tiktoken.Encoding("pieces", pat_str=r"(?s:.+)", mergeable_ranks=ranks, special_tokens={})

    @functools.lru_cache(1 << 16)
    def piece_ids(piece: str) -> list[int]:
        return whole.encode_ordinary(piece)

    return lambda text: [id_ for piece, _ in split.pre_tokenize_str(text) for id_ in piece_ids(piece)]


@functools.cache
def encoder(scheme: str, *, simd: bool) -> core.Encoder:
    """Small, so that what it holds is replaced all the time."""
    return core.Encoder(model(scheme), 1 << 20, np.uint32, simd=simd)


def check(scheme: str, texts: list[str], want: list[list[int]] | None = None) -> None:
    """Both ways through the core give for every text what the reference gives."""
    want = [reference(scheme)(text) for text in texts] if want is None else want
    data, offsets = rows(texts)
    for simd in (True, False):
        ids, counts = encoder(scheme, simd=simd).encode(data, offsets)
        if counts.tolist() == list(map(len, want)) and ids.tolist() == [id_ for row in want for id_ in row]:
            continue
        bounds = np.cumsum([0, *counts.tolist()])
        for row, text in enumerate(texts):
            assert ids[bounds[row] : bounds[row + 1]].tolist() == want[row], (simd, text)


def both(model: core.Model, texts: list[str], want: list[list[int]]) -> None:
    """The same for a model that is made for one test."""
    data, offsets = rows(texts)
    flat = [id_ for row in want for id_ in row]
    for simd in (True, False):
        ids, counts = core.Encoder(model, 1 << 20, np.uint32, simd=simd).encode(data, offsets)
        assert (counts.tolist(), ids.tolist()) == (list(map(len, want)), flat)
