"""`show`: what a person sees of a dataset."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from shardmill.cli import shardmill as command
from shardmill.dataset import show, show_text
from shardmill.errors import UsageError
from shardmill.options import FORMATS
from shardmill.tokens import load_tokenizer
from tests.datasets import make_dataset, random_documents
from tests.meter import SHARDMILL

TEXTS = ["Hello, world.", "你好", "one two three four", "the last"]


@pytest.fixture
def made() -> dict[str, list[np.ndarray]]:
    encode = load_tokenizer("gpt2").reference()
    return {"train": [np.array(encode(text), np.uint16) for text in TEXTS], "val": [np.array([1], np.uint16)]}


def test_documents_are_shown_with_their_token_boundaries(made: dict[str, list[np.ndarray]], tmp_path: Path) -> None:
    data = shardmill.open(make_dataset("npy", tmp_path / "out", made))
    lines = list(show(data, "train", documents=2))
    assert lines[0] == "train, document 0: 4 tokens"
    assert lines[1] == "Hello│,│ world│."
    assert lines[4].replace("│", "") == "\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd"
    assert list(show(data, "train", first=2, documents=1, tokens=2))[1] == "one│ two…"
    assert list(show(data, "train", documents=1, tokens=2, ids=True))[1] == "Hello⟨15496⟩│,⟨11⟩…"
    painted = list(show(data, "train", documents=1, paint=lambda i, text: f"<{i}{text}>"))
    assert painted[1] == "<0Hello><1,><2 world><3.>"


def test_a_document_cannot_control_the_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\x1b[2J \u202egnp.exe\x00 a\u200db\tc\nd"
    made = {"train": [np.array(load_tokenizer("gpt2").reference()(text), np.uint16)]}
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made))
    for shown in ("".join(show(data, "train", documents=1)), "".join(show_text(text, ["gpt2", "p50k_base"]))):
        assert not set("\x1b\x07\x00\u202e") & set(shown)
        assert "\\x1b" in shown and "owned" in shown and "\\x00" in shown


def test_without_documents_stretches_of_the_whole_are_shown(made: dict[str, list[np.ndarray]], tmp_path: Path) -> None:
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made, eot="none"))
    lines = list(show(data, "train", documents=1, tokens=4))
    total = sum(map(len, made["train"]))
    assert lines[:2] == [f"train, tokens 0 to 4 of {total}", "Hello│,│ world│."]


def test_a_split_or_document_that_is_not_there_is_named(made: dict[str, list[np.ndarray]], tmp_path: Path) -> None:
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made))
    with pytest.raises(UsageError, match="no split `test`"):
        list(show(data, "test"))
    with pytest.raises(UsageError, match="no document 4") as error:
        list(show(data, "train", first=4))
    assert "4, counted from 0" in error.value.hint


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_any_document_to_the_last_is_shown_and_none_that_is_not_there(
    made: dict[str, list[np.ndarray]], tmp_path: Path, format: str, eot: str
) -> None:
    data = shardmill.open(make_dataset(format, tmp_path / "out", made | {"val": []}, eot=eot))
    for at in range(len(data["train"])):
        assert list(show(data, "train", at=at))
    assert list(show(data, "train", first=3, tokens=3))
    for wrong in ({"split": "train", "first": 1000}, {"split": "val"}, {"split": "val", "random": True}):
        with pytest.raises(UsageError, match="has no document"):
            list(show(data, **wrong))


def test_the_commands_show_and_convert_do_what_the_functions_do(
    made: dict[str, list[np.ndarray]], tmp_path: Path
) -> None:
    make_dataset("nanogpt", tmp_path / "out", made)
    shown = CliRunner().invoke(command, ["show", str(tmp_path / "out"), "--split", "train", "-d", "3", "-n", "5"])
    assert shown.exit_code == 0 and "the│ last" in shown.stdout
    told = ["convert", str(tmp_path / "out"), "-o", str(tmp_path / "new"), "-f", "megatron", "-f", "npy", "--name", "x"]
    done = CliRunner().invoke(command, [*told, "--json"])
    assert done.exit_code == 0, done.output
    assert '"tokens"' in done.stdout
    assert shardmill.open(tmp_path / "new")["train"].documents.text(2) == TEXTS[2]
    assert (tmp_path / "new" / "x_train_000001.npy").exists()


def test_random_documents_are_those_of_the_seed_and_each_once(
    made: dict[str, list[np.ndarray]], tmp_path: Path
) -> None:
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", random_documents(1, 50)))
    first = list(show(data, "train", random=True, seed=1, documents=10))
    assert first == list(show(data, "train", random=True, seed=1, documents=10))
    assert first != list(show(data, "train", random=True, seed=2, documents=10))
    numbers = [int(line.split()[2]) for line in first[::3]]
    assert numbers == sorted(set(numbers)) and len(numbers) == 10
    assert len(list(show(data, "train", random=True, documents=80))) == 3 * 50
    bare = shardmill.open(make_dataset("nanogpt", tmp_path / "bare", made, eot="none"))
    assert next(iter(show(bare, "train", random=True, seed=1, documents=2, tokens=3))).startswith("train, tokens ")


@pytest.mark.parametrize("format", FORMATS)
def test_the_document_around_a_token_is_found_in_every_format(format: str, tmp_path: Path) -> None:
    data = shardmill.open(make_dataset(format, tmp_path / "out", random_documents(3, 12, 40), shard_tokens=150))
    documents = list(data["train"].documents)
    bounds = [data["train"].documents.bounds(i) for i in range(len(documents))]
    for at in range(0, len(data["train"]), 7):
        heading, text = list(show(data, "train", at=at, documents=1, tokens=1000))[:2]
        number = max(i for i, (start, _) in enumerate(bounds) if start <= at or i == 0)
        assert f"token {at:,} is token" in heading and f"of document {number};" in heading
        assert text.startswith("│".join(list(show(data, "train", first=number, documents=1))[1].split("│")[:3]))


def test_a_token_in_the_middle_of_a_long_document_is_shown_with_what_is_around_it(tmp_path: Path) -> None:
    made = {"train": [np.arange(1, 1000, dtype=np.uint16)]}
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made))
    heading, text = list(show(data, "train", at=500, documents=1, tokens=10, ids=True))[:2]
    assert "from token 495 on" in heading and text.count("⟨") == 10 and "⟨501⟩" in text
    with pytest.raises(UsageError, match="no token 1,000"):
        list(show(data, "train", at=1000))


def test_a_text_is_shown_as_tokenizers_split_it() -> None:
    lines = list(show_text("Hello, 你 world", ["gpt2"]))
    assert lines == ["gpt2: 6 tokens, 2.67 bytes per token", "", "Hello│,│ │\\xe4\\xbd│\\xa0│ world"]
    both = list(show_text("a        b\nc", ["gpt2", "p50k_base"]))
    assert both[0].startswith("gpt2: 11 tokens") and both[1].startswith("p50k_base: 5 tokens")
    (differs,) = [line for line in both if line.startswith("≠")]
    assert differs == "≠ ·│·│·│·│·│·│·  ·······"  # seven spaces, as seven tokens and as one
    assert [line.split() for line in both[-2:]] == [["⏎", "⏎"], ["c", "c"]]
    assert next(iter(show_text("", ["gpt2"]))) == "gpt2: 0 tokens"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["DIR", "--text", "a"],
        ["DIR", "-t", "gpt2"],
        ["DIR", "--at", "1", "--random"],
        ["--at", "1"],
        ["DIR", "--seed", "1"],
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], made: dict[str, list[np.ndarray]], tmp_path: Path
) -> None:
    make_dataset("nanogpt", tmp_path / "out", made)
    told = [str(tmp_path / "out") if word == "DIR" else word for word in words]
    assert CliRunner().invoke(command, ["show", *told]).exit_code == 2


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
@pytest.mark.parametrize(("documents", "paged"), [(1, False), (200, True)])
def test_on_a_terminal_a_long_answer_is_paged_and_a_short_one_is_not(
    documents: int, paged: bool, tmp_path: Path
) -> None:
    make_dataset("nanogpt", tmp_path / "out", random_documents(1, 200))
    main, other = pty.openpty()
    words = ["show", str(tmp_path / "out"), "--split", "train", "-n", str(documents), "--tokens", "5"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PAGER", "LESS", "NO_COLOR")}
    run = subprocess.Popen(
        [*SHARDMILL, *words], stdin=other, stdout=other, stderr=other, env={**environment, "TERM": "xterm"}
    )
    os.close(other)
    seen, until = b"", time.monotonic() + 150
    try:
        while time.monotonic() < until and run.poll() is None:
            if select.select([main], [], [], 0.2)[0]:
                try:
                    seen += os.read(main, 65536)
                except OSError:  # nobody is at the other end any more
                    break
                if paged and seen.rstrip().endswith((b":", b":\x1b[K")):
                    break
        if paged:
            assert run.poll() is None and b"document 199" not in seen
            os.write(main, b"q")
        assert run.wait(60) == 0
        assert b"document 0" in seen and b"\x1b[" in seen
    finally:
        run.kill()
        run.wait()
        os.close(main)
