"""What a run asks of a tokenizer's own library, seen from outside: many texts in a call, and the same tokens all along.

The library is the real one. A folder before it in the module path notes its calls, bears another release's number, and
changes its tokens where a test wants that.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus import contents, documents, write_jsonl
from tests.tokens.vocabularies import gpt2_rules, write_json

_BEFORE = """
import importlib, os, sys
sys.path.remove(os.environ["BEFORE"])
mine, name = sys.modules.pop(__name__), __name__
real = importlib.import_module(name)
sys.path.insert(0, os.environ["BEFORE"])
real.__spec__ = mine.__spec__  # the release is looked for beside it

def noted(encode):
    def call(texts, **settings):
        alone = isinstance(texts, str)
        with open(os.environ["CALLS"], "a") as file:
            file.write("1\\n" if alone else f"{len(texts)}\\n")
        if os.environ.get("OTHER"):
            texts = texts.replace("w", "v") if alone else [text.replace("w", "v") for text in texts]
        return encode(texts, **settings)
    return call

class Noted:
    def __init__(self, *given, **settings):
        self.__dict__["made"] = given[0] if given else original(**settings)
    def __getattr__(self, name):
        found = getattr(self.made, name)
        return noted(found) if name.startswith("encode") and callable(found) else found
    def __setattr__(self, name, value):
        setattr(self.made, name, value)
    @classmethod
    def from_file(cls, path):
        return cls(original.from_file(path))

kind = {"tokenizers": "Tokenizer", "sentencepiece": "SentencePieceProcessor"}[name]
original = getattr(real, kind)
setattr(real, kind, Noted)
"""

# A checkpoint whenever something was written, so that a run that stops has recorded some of it.
_OFTEN = "from shardmill.write import checkpoints as c; c._EVERY = 0; from shardmill.__main__ import main; main()"


@pytest.fixture(params=["tokenizers", "sentencepiece"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "before" / request.param).mkdir(parents=True)
    (tmp_path / "before" / request.param / "__init__.py").write_text(_BEFORE)
    return request.param


@pytest.fixture
def tokenizer(library: str, tmp_path: Path) -> Path:
    """One that only its library can encode."""
    if library == "tokenizers":
        return write_json("lower", {**gpt2_rules(), "normalizer": {"type": "Lowercase"}})
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(
        sentence_iterator=iter(documents(300)), model_writer=model, vocab_size=400, model_type="bpe",
        character_coverage=0.98, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "small.model").write_bytes(model.getvalue())
    return tmp_path / "small.model"


def _called(tmp_path: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    before = str(tmp_path / "before")
    path = os.pathsep.join([before, *filter(None, [os.environ.get("PYTHONPATH")])])
    known = {**os.environ, "PYTHONPATH": path, "BEFORE": before, "CALLS": str(tmp_path / "calls"), **environment}
    return subprocess.run(
        [sys.executable, "-c", _OFTEN, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, env=known,
    )  # fmt: skip


def test_a_run_gives_the_library_many_documents_in_a_call(tmp_path: Path, tokenizer: Path) -> None:
    # A call for each document holds the GIL before and after it, so that workers wait for each other.
    source = write_jsonl(tmp_path / "a.jsonl", documents(6000))
    done = _called(tmp_path, "prepare", source, "-o", tmp_path / "out", "-t", tokenizer, "--workers", "2")
    assert done.returncode == 0, done.stderr
    calls = [int(line) for line in (tmp_path / "calls").read_text().split()]
    assert sum(calls) >= 5000 and len(calls) < sum(calls) / 20, f"{len(calls)} calls for {sum(calls)} texts"


@pytest.mark.parametrize("tokens", ["equal", "other"])
def test_a_run_goes_on_with_another_release_only_if_that_gives_the_same_tokens(
    tmp_path: Path, library: str, tokenizer: Path, tokens: str
) -> None:
    texts = [text or "Some words." for text in documents(8000)]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("not json\n" * 150 + json.dumps({"text": "the last words"}) + "\n")
    arguments = ["prepare", source, tmp_path / "b.jsonl.gz", "-t", tokenizer, "--val", "0", "-q", "-f", "npy"]
    arguments += ["--shard-tokens", "100K"]
    stopped = _called(tmp_path, *arguments, "-o", tmp_path / "out")
    assert stopped.returncode == 1 and "documents are bad" in stopped.stderr
    assert (tmp_path / "out" / ".shardmill" / "journal.jsonl").stat().st_size
    (tmp_path / "before" / f"{library}-9.9.dist-info").mkdir()
    more = {"OTHER": "yes"} if tokens == "other" else {}
    again = _called(tmp_path, *arguments, "--max-bad", "any", "-o", tmp_path / "out", **more)
    if tokens == "other":
        assert again.returncode == 1 and f"{library} 9.9 gives other tokens" in again.stderr, again.stderr
        assert not (tmp_path / "out" / "manifest.json").exists()
        return
    assert again.returncode == 0, again.stderr
    whole = _called(tmp_path, *arguments, "--max-bad", "any", "-o", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
