"""The examples run, and give what the dataset holds."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from tests.corpus import documents, write_jsonl
from tests.datasets import EOT

EOT_TEXT = "<|endoftext|>"
EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_nanogpts_way(prepared: Path) -> None:
    x, y = example("read_nanogpt").batch(str(prepared))
    whole = shardmill.open(prepared)["train"][:].tolist()
    assert x.shape == y.shape == (4, 64) and (x[:, 1:] == y[:, :-1]).all()
    text = " ".join(map(str, whole))
    assert all(" ".join(map(str, row)) in text for row in x.tolist())


def test_build_nanogpts_way(prepared: Path) -> None:
    pairs = list(example("read_build_nanogpt").batches(str(prepared)))
    first = shardmill.open(prepared, "npy")["train"][: 4 * 64 + 1]
    assert np.array_equal(pairs[0][0].ravel(), first[:-1]) and np.array_equal(pairs[0][1].ravel(), first[1:])
    assert len(pairs) > 10


def test_llmcs_way(prepared: Path) -> None:
    parts = example("read_llmc").tokens(str(prepared))
    assert len(parts) > 2
    assert np.array_equal(np.concatenate(parts), shardmill.open(prepared, "llmc")["train"][:])


def test_modded_nanogpts_way(prepared: Path) -> None:
    documents = example("read_modded_nanogpt").documents(str(prepared))
    known = {bytes(d) for d in shardmill.open(prepared, "llmc")["train"].documents}
    assert all(document[0] == EOT for document in documents)
    whole = [bytes(d[1:]) in known for d in documents]
    assert sum(whole) > 0.9 * len(known)  # all but those that a shard's end cuts


def test_megatrons_way(prepared: Path) -> None:
    prefix = str(prepared / "mill-train_text_document")
    data = shardmill.open(prepared, "megatron")["train"]
    for i in (0, 5, len(data.documents) - 1):
        assert np.array_equal(example("read_megatron").document(prefix, i)[:-1], data.documents[i])


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_gpt_learns_from_the_dataset(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only wait for each other
    losses = example("tiny_gpt").train(str(prepared), 20)
    torch.set_num_threads(threads)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 1
    assert "loss" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_torchs_loader_gives_the_batches_and_goes_on(prepared: Path) -> None:
    pytest.importorskip("torch")
    steps = example("torch_loader").steps
    expected = [x.tolist() for x, _ in shardmill.open(prepared)["train"].batches(batch_size=4, block_size=64, seed=1)]
    found = [x.tolist() for x, _ in steps(str(prepared), workers=1)]
    assert found == expected and len(found) > 5
    assert [x.tolist() for x, _ in steps(str(prepared), done=3, workers=0)] == expected[3:]


_GRAIN = """
import sys, shardmill
sys.path.insert(0, sys.argv[1])
from grain_loader import batches
made = iter(batches(sys.argv[2]))
tokens = shardmill.open(sys.argv[2])["train"]
count = (len(tokens) - 1) // 64
known = {tuple(tokens[i * 64 : i * 64 + 64].tolist()) for i in range(count)}
first = [next(made) for _ in range(count // 4)]
assert first and all((x[:, 1:] == y[:, :-1]).all() for x, y in first)
seen = [tuple(row.tolist()) for x, _ in first for row in x]
assert len(seen) == len(set(seen)) and set(seen) <= known
state, following = made.get_state(), next(made)
again = iter(batches(sys.argv[2]))
again.set_state(state)
assert (next(again)[0] == following[0]).all()
"""


def test_grains_pipeline_gives_every_block_once_and_goes_on(prepared: Path) -> None:
    for name in ("grain", "jax"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # In a process of its own: jax starts threads, and warns of every fork after that.
    call = [sys.executable, "-c", _GRAIN, str(EXAMPLES), str(prepared)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Two files of JSON Lines, and the documents of at least 200 characters."""
    folder = tmp_path_factory.mktemp("texts")
    made = documents(300, seed=2)
    for i in range(2):
        write_jsonl(folder / f"{i}.jsonl", made[i * 150 : (i + 1) * 150])
    return folder, [text for text in made if len(text) >= 200]


def written(folder: Path) -> list[str]:
    """The documents of a dataset, decoded; those of val come last."""
    data = shardmill.open(folder)
    return [data[split].documents.text(i) for split in data for i in range(len(data[split].documents))]


def test_documents_are_filtered_between_read_and_prepare(texts: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, kept = texts
    made = example("filter_documents").prepare(str(tmp_path / "out"), str(folder))
    assert made.manifest["documents"] == len(kept)
    assert sorted(written(tmp_path / "out")) == sorted(kept)


@pytest.mark.filterwarnings("ignore")
def test_a_streamed_dataset_of_hugging_face_becomes_token_files(
    texts: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    folder, kept = texts
    files = [str(path) for path in sorted(folder.iterdir())]
    made = example("from_datasets").prepare(str(tmp_path / "out"), *files)
    assert made.manifest["documents"] == len(kept)
    assert sorted(written(tmp_path / "out")) == sorted(kept)


@pytest.mark.filterwarnings("ignore")
def test_a_datatrove_pipeline_ends_in_token_files(texts: tuple[Path, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("datatrove", reason="datatrove is not installed")
    folder, kept = texts
    example("datatrove_step").prepare(str(tmp_path / "out"), str(folder))
    assert sorted(written(tmp_path / "out/00000") + written(tmp_path / "out/00001")) == sorted(kept)


def test_the_readme_names_every_example() -> None:
    named = set(re.findall(r"`(\w+\.py)`", (EXAMPLES / "README.md").read_text()))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}


def test_conversations_become_documents_by_a_template(tmp_path: Path) -> None:
    turns = [("user", "Who?"), ("assistant", "A mill.")]
    records = [
        {"messages": [{"role": role, "content": content} for role, content in turns]},
        {"conversations": [{"from": role, "value": content} for role, content in turns]},
        {"instruction": "Who?", "input": "", "output": "A mill."},
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, records)))
    chat = example("chat_records")
    result = chat.prepare(str(tmp_path / "out"), str(tmp_path / "chat.jsonl"), val=0)
    assert result.manifest["documents"] == 3
    wanted = "".join(chat.TEMPLATE.format(role=role, content=content) for role, content in turns)
    made = shardmill.open(tmp_path / "out")
    assert [made.decode(document).removesuffix(EOT_TEXT) for document in made["train"].documents] == [wanted] * 3
