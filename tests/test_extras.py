"""What is not installed is named, with the way to get it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import UsageError
from shardmill.extras import packages
from tests.tokens.vocabularies import gpt2_rules, write_json


@pytest.mark.parametrize(
    ("library", "extra", "source", "out", "options"),
    [
        ("huggingface_hub", "hf", "hf://datasets/some/set", "out", {}),
        ("obstore", "s3", "s3://bucket/a.jsonl", "out", {}),
        ("obstore", "gcs", "gs://bucket/a.jsonl", "out", {}),
        ("obstore", "azure", "abfss://bucket@account.dfs.core.windows.net/a.jsonl", "out", {}),
        ("botocore", "s3", "s3://bucket/a.jsonl", "out", {}),
        ("obstore", "s3", "a.txt", "s3://bucket/folder", {}),
        ("obstore", "gcs", "a.txt", "gs://bucket/folder", {}),
        ("obstore", "azure", "a.txt", "az://bucket/folder", {}),
        ("botocore", "s3", "a.txt", "s3://bucket/folder", {}),
        ("tokenizers", "hf", "a.txt", "out", {"tokenizer": "tokenizer.json"}),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    extra: str,
    source: str,
    out: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some text")
    made = write_json("lowercase", {**gpt2_rules(), "normalizer": {"type": "Lowercase"}}) / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_bytes(made.read_bytes())
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        UsageError, match=f"the package `{library}`, which is required for .*, is not installed"
    ) as caught:
        shardmill.prepare(source, out, **options)
    assert packages(extra)
    assert caught.value.hint == "pip install " + " ".join(f"'{one}'" for one in packages(extra))
