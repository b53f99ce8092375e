"""The examples run, and give what the dataset holds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import shardmill
from tests.datasets import EOT

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    random = np.random.default_rng(0)
    words = ["tokens", "shards", "of", "the", "mill", "turn", "grain", "into", "flour", "and", "text"]
    documents = [" ".join(random.choice(words, random.integers(20, 200))) for _ in range(200)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    shardmill.prepare(
        folder / "corpus.txt", folder / "data", separator=r"\n\n", val=0.1, shard_tokens=4000, name="mill",
        format=["nanogpt", "npy", "llmc", "megatron"],
    )  # fmt: skip
    return folder / "data"


def test_nanogpts_way(prepared):
    x, y = example("read_nanogpt").batch(str(prepared))
    whole = shardmill.open(prepared)["train"][:].tolist()
    assert x.shape == y.shape == (4, 64) and (x[:, 1:] == y[:, :-1]).all()
    text = " ".join(map(str, whole))
    assert all(" ".join(map(str, row)) in text for row in x.tolist())


def test_build_nanogpts_way(prepared):
    pairs = list(example("read_build_nanogpt").batches(str(prepared)))
    first = shardmill.open(prepared, "npy")["train"][: 4 * 64 + 1]
    assert np.array_equal(pairs[0][0].ravel(), first[:-1]) and np.array_equal(pairs[0][1].ravel(), first[1:])
    assert len(pairs) > 10


def test_llmcs_way(prepared):
    parts = example("read_llmc").tokens(str(prepared))
    assert len(parts) > 2
    assert np.array_equal(np.concatenate(parts), shardmill.open(prepared, "llmc")["train"][:])


def test_modded_nanogpts_way(prepared):
    documents = example("read_modded_nanogpt").documents(str(prepared))
    known = {bytes(d) for d in shardmill.open(prepared, "llmc")["train"].documents}
    assert all(document[0] == EOT for document in documents)
    whole = [bytes(d[1:]) in known for d in documents]
    assert sum(whole) > 0.9 * len(known)  # all but those that a shard's end cuts


def test_megatrons_way(prepared):
    prefix = str(prepared / "mill-train_text_document")
    data = shardmill.open(prepared, "megatron")["train"]
    for i in (0, 5, len(data.documents) - 1):
        assert np.array_equal(example("read_megatron").document(prefix, i)[:-1], data.documents[i])


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_gpt_learns_from_the_dataset(prepared, capsys):
    pytest.importorskip("torch")
    losses = example("tiny_gpt").train(str(prepared), 20)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 1
    assert "loss" in capsys.readouterr().out


def test_the_readme_names_every_example():
    named = set(re.findall(r"`(\w+\.py)`", (EXAMPLES / "README.md").read_text()))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}
