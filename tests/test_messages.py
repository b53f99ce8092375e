"""Messages for frequent mistakes name the way out, and the way out works."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import shardmill
from shardmill.errors import ShardmillError, SourceError, UsageError
from shardmill.run import usable_memory
from shardmill.tokens import load_tokenizer
from tests.tokens.vocabularies import rank_file

TEXTS = ["one text", "another text"]


def command(*arguments: str, stdin: bytes = b"") -> str:
    """What a call that fails says on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *arguments], input=stdin, capture_output=True, timeout=120
    )
    assert done.returncode in (1, 2), done.stderr
    return done.stderr.decode()


def test_what_is_missing_in_a_call_is_named() -> None:
    assert "no `--out DIR` was given" in command("prepare", "a.txt")
    assert "no SOURCE was given" in command("prepare", "-o", "out")
    assert "no SOURCE was given" in command("prepare")


@pytest.mark.parametrize("flag", ["--dry-run", "--dryrun"])
def test_a_dry_run_is_called_inspect(flag: str) -> None:
    assert "`shardmill inspect SOURCE…`" in command("prepare", "a.txt", "-o", "out", flag)


def test_a_folder_of_other_sources_is_not_said_to_be_of_another_plan(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out")
    with pytest.raises(ShardmillError, match="other sources or options") as refused:
        shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", seed=1)
    assert "plan" not in str(refused.value)


def test_one_document_is_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    call = [sys.executable, "-m", "shardmill", "prepare", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "out")]
    for _ in range(2):
        said = subprocess.run(call, capture_output=True, text=True, check=True, timeout=120).stderr
        assert "1 document" in said and "1 documents" not in said and "1 tokens" not in said
    assert "1 documents" not in repr(shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out"))


def test_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(ShardmillError, match=r"more than the .* of RAM") as refused:
        shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", memory=f"{usable_memory() // 10**6 + 1}MB")
    enough = refused.value.hint.split("--memory ")[1].strip("`")
    # A process of its own: this one holds what other tests have loaded, and the amount must cover that too.
    call = [sys.executable, "-m", "shardmill", "prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]
    subprocess.run([*call, "--memory", enough], check=True, timeout=120)


ONE_VALUE = {
    "array of strings": json.dumps(TEXTS),
    "array of strings over lines": json.dumps(TEXTS, indent=1),
    "array of objects": json.dumps([{"text": text} for text in TEXTS]),
    "array of objects over lines": json.dumps([{"text": text} for text in TEXTS], indent=2),
    "object over lines": json.dumps({"n": {"a": [1, 2]}, "text": "one text"}, indent=2),
    "objects over lines": "\n".join(json.dumps({"text": text}, indent=4) for text in TEXTS),
    "object with an array over lines": json.dumps({"version": 1, "data": [{"text": text} for text in TEXTS]}, indent=2),
    "long object over lines": json.dumps({"n": list(range(50_000)), "text": "one text"}, indent=2),
}


@pytest.mark.parametrize("kind", ONE_VALUE)
def test_json_that_is_not_one_object_a_line_is_read_after_the_hint(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a b.json").write_text(ONE_VALUE[kind])
    with pytest.raises(SourceError, match="not JSON Lines") as refused:
        shardmill.prepare(tmp_path / "a b.json", tmp_path / "out")
    hint = refused.value.hint.split("`")[1]
    assert shlex.split(hint)[:2] == ["jq", "-c"]
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed, so the hint cannot be tried")
    subprocess.run(hint, shell=True, check=True, timeout=60)
    result = shardmill.prepare(tmp_path / "a b.jsonl", tmp_path / "out", overwrite=True)
    assert (result.manifest["documents"], result.manifest["rejected"]) == (ONE_VALUE[kind].count(' text"'), 0)


def test_a_first_line_that_is_damaged_is_a_reject_and_not_a_value_over_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "cut o\n' + '{"text": "a"}\n' * 9)
    assert shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out").manifest["rejected"] == 1


CHAT = {
    "messages": {"messages": [{"role": "user", "content": "Who?"}]},
    "conversations": {"id": 1, "conversations": [{"from": "human", "value": "Who?"}]},
    "alpaca": {"instruction": "Who?", "input": "", "output": "A mill."},
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("kind", CHAT)
def test_conversations_need_a_template_and_not_a_text_field(kind: str, name: str, tmp_path: Path) -> None:
    if name == "a.jsonl":
        (tmp_path / name).write_text(json.dumps(CHAT[kind]) + "\n")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist([CHAT[kind]]), tmp_path / name)
    with pytest.raises(SourceError) as refused:
        shardmill.prepare(tmp_path / name, tmp_path / "out")
    assert "callable" in refused.value.hint and "--text-field" not in refused.value.hint
    (example,) = (word for word in refused.value.hint.split() if word.startswith("examples/"))
    assert (Path(__file__).parent.parent / example).is_file()


@pytest.mark.parametrize(
    ("written", "name"),
    [("GPT2", "gpt2"), ("gpt-2", "gpt2"), ("R50K", "r50k_base"), ("p50k", "p50k_base"), ("gpt4", "cl100k_base"),
     ("cl100k", "cl100k_base"), ("GPT-3.5-turbo", "cl100k_base"), ("gpt-4o", "o200k_base"), ("o200k", "o200k_base")],
)  # fmt: skip
def test_tokenizers_have_their_usual_names(written: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = rank_file(f"{name}.tiktoken").read_bytes() if name[0] in "co" else b""
    monkeypatch.setattr("tiktoken.load.read_file_cached", lambda url, sha256: ranks)
    assert load_tokenizer(written).name == name


@pytest.mark.parametrize(
    ("written", "meant"),
    [("llama3", "meta-llama/"), ("Llama-2", "meta-llama/Llama-2"), ("mistral", "mistralai/"), ("qwen2.5", "Qwen/"),
     ("gtp2", "`gpt2`"), ("cl10k_base", "`cl100k_base`")],
)  # fmt: skip
def test_an_unknown_tokenizer_is_answered_with_what_was_meant(written: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_tokenizer(written)
    assert refused.value.hint.startswith("did you mean") and meant in refused.value.hint


def test_a_run_from_a_pipe_says_what_it_takes_to_resume(tmp_path: Path) -> None:
    lines = b'{"text": "some words"}\n' * 200_000
    said = command("prepare", "-", "-o", str(tmp_path / "out"), "--max-bad", "5", stdin=lines + b"{\n" * 9)
    assert "kept" in said and "if the pipe delivers the same text again" in said
