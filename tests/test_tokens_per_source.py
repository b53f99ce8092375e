"""What the manifest says of the tokens of each source is what the tokenizer's own library gives for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.tokens import load_tokenizer
from tests.corpus import documents, write_jsonl


def counted(folder: Path) -> list[int]:
    listed = json.loads((folder / "manifest.json").read_text())["sources"]
    return [source["tokens"] for source in listed]


def expected(texts: Iterable[str]) -> int:
    encode = load_tokenizer("gpt2").reference()
    return sum(len(encode(text)) for text in texts if text)


def test_records_of_several_sources_are_counted_by_source(tmp_path: Path) -> None:
    texts = [documents(60), ["", "one"], documents(40), [""]]
    sources = [write_jsonl(tmp_path / f"{i}.jsonl", some) for i, some in enumerate(texts)]
    with open(sources[1], "a", encoding="utf-8") as file:
        file.write('{"text": 7}\n')
    shardmill.prepare(sources, tmp_path / "out", val=0.3, max_bad="any")
    assert counted(tmp_path / "out") == [expected(some) for some in texts]


def test_tiny_files_good_empty_and_bad_are_counted_by_source(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(40):
        (tmp_path / "in" / f"{i:02}.txt").write_bytes(b"" if i % 7 == 3 else f"some words, number {i}".encode())
    shardmill.prepare(tmp_path / "in", tmp_path / "out", val=0.2)
    assert counted(tmp_path / "out") == [0 if i % 7 == 3 else expected([f"some words, number {i}"]) for i in range(40)]


@pytest.mark.parametrize("text", ["several words and more of them. " * 40_000, "x" * 3_000_000])
@pytest.mark.parametrize("options", [{"val": 0.3}, {"val": 0}, {"val": "tail:0.25"}, {"val": "first:1000"}])
def test_one_long_text_is_counted_whole_whatever_becomes_of_its_pieces(
    text: str, options: dict[str, Any], tmp_path: Path, small_chunks: None
) -> None:
    (tmp_path / "a.txt").write_text(text)
    made = shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", **options).manifest
    tokens = sum(split["tokens"] for split in made["splits"].values())
    assert counted(tmp_path / "out") == [tokens - made["documents"]]


@pytest.mark.parametrize("limit", ["7 documents", "500 tokens"])
def test_under_a_limit_only_what_was_taken_is_counted(limit: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(60))
    made = shardmill.prepare(source, tmp_path / "out", val=0, limit=limit).manifest
    assert counted(tmp_path / "out") == [made["splits"]["train"]["tokens"] - made["documents"]]
