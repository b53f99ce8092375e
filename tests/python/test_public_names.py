"""The package as people type it: names that completion finds, objects in place of names, short errors."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.errors import UsageError, as_keywords
from shardmill.tokens import load_tokenizer
from tests.corpus import documents, write_jsonl
from tests.tokens.vocabularies import gpt2_rules, write_json


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", documents(60))


def test_dir_shows_the_public_names_and_each_of_them_exists() -> None:
    shown = dir(shardmill)
    assert {"prepare", "open", "read", "inspect", "verify", "Source", "tokenizer"} <= set(shown)
    assert "annotations" not in shown and "lazily" not in shown
    for name in shown:
        assert getattr(shardmill, name) is not None


def test_a_result_has_its_counts_and_opens_its_dataset(source: Path, tmp_path: Path) -> None:
    result = shardmill.prepare(source, tmp_path / "out", val=0.3)
    data = result.open()
    assert result.tokens == sum(len(data[split]) for split in data)
    assert result.documents == sum(len(data[split].documents) for split in data) > 0
    assert not shardmill.verify(result.out).damage


@pytest.mark.parametrize("format", ["nanogpt", "shards", "mds"])
def test_asarray_of_a_split_is_all_its_tokens(source: Path, tmp_path: Path, format: str) -> None:
    shardmill.prepare(source, tmp_path / "out", val=0, format=format, shard_tokens=1000)
    split = shardmill.open(tmp_path / "out")["train"]
    tokens = np.asarray(split)
    assert tokens.dtype == np.uint16 and np.array_equal(tokens, split[:])
    assert np.asarray(split, dtype=np.int64).dtype == np.int64
    if format == "nanogpt":
        assert not tokens.flags.owndata  # the memory map itself: no token is read


def _tiktoken(specials: dict[str, int]) -> Any:
    gpt2 = load_tokenizer("gpt2")
    ranks = {gpt2.token_bytes(i): i for i in range(50256)}
    tiktoken = pytest.importorskip("tiktoken")
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)


def _rules() -> str:
    return str(write_json("object", gpt2_rules()) / "tokenizer.json")


def _transformers(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=_rules(), eos_token="<|endoftext|>")
    made.save_pretrained(folder)
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def test_a_tokenizer_object_stands_for_its_name(source: Path, tmp_path: Path) -> None:
    expected = shardmill.prepare(source, tmp_path / "expected", val=0).out
    own = shardmill.tokenizer("gpt2")
    for number, given in enumerate([own, _tiktoken({"<|endoftext|>": 50256}), _transformers(tmp_path / "stored")]):
        made = shardmill.prepare(source, tmp_path / str(number), val=0, tokenizer=given)
        assert (Path(made.out) / "train.bin").read_bytes() == (Path(expected) / "train.bin").read_bytes()
        assert not shardmill.verify(made.out).damage
    parse = shardmill.prepare(source, tmp_path / "p", val=0, tokenizer=shardmill.tokenizer("gpt2", specials="parse"))
    assert parse.manifest["options"]["specials"] == "parse"


def test_a_tokenizer_object_that_nothing_stored_stands_for_is_refused(source: Path, tmp_path: Path) -> None:
    changed = _transformers(tmp_path / "stored")
    changed.add_tokens(["plain words"])
    library = pytest.importorskip("tokenizers").Tokenizer.from_file(_rules())
    for given, hint in [
        (_tiktoken({"<|endoftext|>": 50300}), ".tiktoken"),
        (changed, "save_pretrained"),
        (library, "save("),
    ]:
        with pytest.raises(UsageError) as refused:
            shardmill.prepare(source, tmp_path / "out", tokenizer=given)
        assert hint in str(refused.value) and not (tmp_path / "out").exists()


def test_progress_true_shows_in_a_script_what_the_command_shows(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)

    def slowly() -> Any:
        for text in documents(3):
            time.sleep(0.01)
            yield text

    monkeypatch.setattr("shardmill.write.progress._EVERY", 0.0)
    shardmill.prepare(slowly, tmp_path / "out", val=0, progress=True)
    assert "tokens" in shown.getvalue()
    shown.truncate(0)
    shardmill.prepare(slowly, tmp_path / "quiet", val=0)
    assert shown.getvalue().strip("\0") == ""
    with pytest.raises(UsageError, match="`progress` must be"):
        shardmill.prepare(slowly, tmp_path / "wrong", progress="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "keywords"),
    [
        ("add `--max-bad any`", 'add `max_bad="any"`'),
        ("start anew with `--overwrite`", "start anew with `overwrite=True`"),
        ("more than `--max-bad` allows", "more than `max_bad` allows"),
        ("`--val 0.1` or `--val first:2M`", '`val=0.1` or `val="first:2M"`'),
        ("add `--separator '<|endoftext|>'`", "add `separator='<|endoftext|>'`"),
        ("--seed was `0` and is now `1`", "seed was `0` and is now `1`"),
        ("`shardmill plan --keep-parts` does it", "`shardmill plan --keep-parts` does it"),
        ("a--b and -- and `x`", "a--b and -- and `x`"),
    ],
)
def test_options_are_written_as_keywords(typed: str, keywords: str) -> None:
    assert as_keywords(typed) == keywords


def test_an_error_names_options_as_the_caller_writes_them(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": 1}\n' * 300)
    with pytest.raises(shardmill.ShardmillError) as refused:
        shardmill.prepare(bad, tmp_path / "out")
    assert 'max_bad="any"' in str(refused.value) and "--" not in str(refused.value)
    assert "--max-bad any" in refused.value.command_text()


def test_an_expected_error_is_short_in_a_notebook(tmp_path: Path) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shown: list[str] = []
    shell._showtraceback = lambda kind, value, lines: shown.extend(lines)
    shell.run_cell(f"import shardmill\nshardmill.open({str(tmp_path)!r})")
    assert len(shown) == 1 and shown[0].startswith("UsageError: ") and "Traceback" not in shown[0]


def test_an_inspection_is_a_table_in_a_notebook(source: Path) -> None:
    shown = shardmill.inspect(source)._repr_html_()
    assert "<td>jsonl</td>" in shown and "<td>60</td>" in shown and "\\xa0" not in shown
