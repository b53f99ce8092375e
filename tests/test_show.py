"""`show`: what a person sees of a dataset."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from shardmill.cli import shardmill as command
from shardmill.dataset import show
from shardmill.errors import UsageError
from shardmill.tokens import load_tokenizer
from tests.datasets import make_dataset

TEXTS = ["Hello, world.", "你好", "one two three four", "the last"]


@pytest.fixture
def made():
    encode = load_tokenizer("gpt2").reference()
    return {"train": [np.array(encode(text), np.uint16) for text in TEXTS], "val": [np.array([1], np.uint16)]}


def test_documents_are_shown_with_their_token_boundaries(made, tmp_path):
    data = shardmill.open(make_dataset("npy", tmp_path / "out", made))
    lines = list(show(data, "train", documents=2))
    assert lines[0] == "train, document 0: 4 tokens"
    assert lines[1] == "Hello│,│ world│."
    assert lines[4].replace("│", "") == "\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd"
    assert list(show(data, "train", first=2, documents=1, tokens=2))[1] == "one│ two…"
    assert list(show(data, "train", documents=1, tokens=2, ids=True))[1] == "Hello⟨15496⟩│,⟨11⟩…"
    painted = list(show(data, "train", documents=1, paint=lambda i, text: f"<{i}{text}>"))
    assert painted[1] == "<0Hello><1,><2 world><3.>"


def test_without_documents_stretches_of_the_whole_are_shown(made, tmp_path):
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made, eot="none"))
    lines = list(show(data, "train", documents=1, tokens=4))
    total = sum(map(len, made["train"]))
    assert lines[:2] == [f"train, tokens 0 to 4 of {total}", "Hello│,│ world│."]


def test_a_split_or_document_that_is_not_there_is_named(made, tmp_path):
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made))
    with pytest.raises(UsageError, match="no split `test`"):
        list(show(data, "test"))
    with pytest.raises(UsageError, match="no document 4") as error:
        list(show(data, "train", first=4))
    assert "4, counted from 0" in error.value.hint


def test_the_commands_show_and_convert_do_what_the_functions_do(made, tmp_path):
    make_dataset("nanogpt", tmp_path / "out", made)
    shown = CliRunner().invoke(command, ["show", str(tmp_path / "out"), "--split", "train", "-d", "3", "-n", "5"])
    assert shown.exit_code == 0 and "the│ last" in shown.stdout
    told = ["convert", str(tmp_path / "out"), "-o", str(tmp_path / "new"), "-f", "megatron", "-f", "npy", "--name", "x"]
    done = CliRunner().invoke(command, [*told, "--json"])
    assert done.exit_code == 0, done.output
    assert '"tokens"' in done.stdout
    assert shardmill.open(tmp_path / "new")["train"].documents.text(2) == TEXTS[2]
    assert (tmp_path / "new" / "x_train_000001.npy").exists()
