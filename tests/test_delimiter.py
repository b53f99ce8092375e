"""`--delimiter`: another special token between documents than the end-of-text token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import MismatchError, UsageError
from shardmill.options import Options
from tests.corpus import write_jsonl
from tests.foreign import write_llmc
from tests.tokens.vocabularies import added, gpt2_rules, write_json

TEXTS = [f"Some words, and {i} more of them." for i in range(30)]
BOS = 50257


@pytest.fixture(scope="module")
def tokenizer() -> str:
    tokens = [added(50256, "<|endoftext|>", special=True), added(BOS, "<|begin_of_text|>", special=True)]
    return str(write_json("gpt2-with-bos", {**gpt2_rules(), "added_tokens": tokens}))


def test_the_delimiter_stands_between_documents_and_everything_knows_it(tokenizer: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "delimiter": "<|begin_of_text|>",
        "format": "llmc",
        "val": 0.3,
        "name": "x",
    }
    manifest = shardmill.prepare(source, tmp_path / "out", **options).manifest
    assert (manifest["tokenizer"]["eot"], manifest["options"]["delimiter"]) == (BOS, "<|begin_of_text|>")
    data = shardmill.open(tmp_path / "out")
    assert all(data[split][0] == BOS for split in data)
    assert sum(np.count_nonzero(data[split][:] == BOS) for split in data) == len(TEXTS)
    found = {data[split].documents.text(i) for split in data for i in range(len(data[split].documents))}
    assert found == set(TEXTS)
    report = verify(tmp_path / "out", source=True)
    assert not report.damage and report.sampled and report.compared
    with pytest.raises(MismatchError, match="eot differ"):
        shardmill.prepare(source, tmp_path / "out", **{**options, "delimiter": None})
    shardmill.convert(tmp_path / "out", tmp_path / "new", format="megatron")
    assert not verify(tmp_path / "new").damage
    assert shardmill.open(tmp_path / "new")["train"][-1] == BOS


def test_files_of_other_tools_with_another_token_between_documents_are_converted(
    tokenizer: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    documents = [np.arange(5, dtype=np.uint16), np.arange(9, dtype=np.uint16)]
    write_llmc(tmp_path / "theirs", "train", 1, np.concatenate([np.append(np.uint16(BOS), d) for d in documents]))
    options: dict[str, Any] = {"tokenizer": tokenizer, "delimiter": "<|begin_of_text|>"}
    shardmill.convert(tmp_path / "theirs", tmp_path / "ours", **options)
    assert [d.tolist() for d in shardmill.open(tmp_path / "ours")["train"].documents] == [d.tolist() for d in documents]
    with pytest.raises(UsageError, match="says itself"):
        shardmill.convert(tmp_path / "ours", tmp_path / "new", **options)


def test_a_token_that_is_no_special_one_is_refused_with_those_there_are(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(UsageError, match="no special token") as error:
        shardmill.prepare(source, tmp_path / "out", delimiter="the")
    assert "<|endoftext|>" in error.value.hint


def test_without_it_fingerprints_are_those_from_before_there_was_one() -> None:
    assert "delimiter" not in Options().fingerprinted()
    assert json.dumps(Options(delimiter="<s>").fingerprinted()["delimiter"]) == '"<s>"'
