"""A shuffled dataset has the same documents in the order of a permutation, whatever the formats, memory and kills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import BudgetError, MismatchError, OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.permutation import Permutation
from tests.corpus import contents
from tests.crashing import crash_everywhere
from tests.datasets import EOT, make_dataset
from tests.foreign import DOCUMENTS, FOREIGN
from tests.meter import metered_command

pytestmark = pytest.mark.thorough

TEXTS = [f"document {i}: " + "words and numbers " * (i * 7 % 40) + str(i * i) for i in range(400)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def prepared(corpus: Path, out: Path, **options: Any) -> Path:
    shardmill.prepare(corpus, out, **{"val": "0.2", "shard_tokens": 2000, **options})
    return out


def listed(folder: Path, split: str) -> list[tuple[bytes, Any]]:
    """Each document with the place that it came from."""
    documents = shardmill.open(folder)[split].documents
    return [(np.asarray(documents[i], np.int64).tobytes(), documents.origin(i)) for i in range(len(documents))]


def check(before: Path, after: Path, seed: int, *, sample: int = 100) -> None:
    """The slow twin: every document at the place that the permutation says, with its source and record."""
    for split in shardmill.open(before):
        old = listed(before, split)
        order = Permutation(len(old), seed, split)(np.arange(len(old))).tolist()
        assert listed(after, split) == [old[i] for i in order]
    assert not verify(after, sample=sample).damage


@pytest.mark.parametrize("format", FORMATS)
def test_documents_of_every_format_come_in_the_order_of_the_permutation(
    corpus: Path, tmp_path: Path, format: str
) -> None:
    before = prepared(corpus, tmp_path / "before", format=format)
    result = shardmill.shuffle(before, tmp_path / "after", seed=3)
    check(before, tmp_path / "after", 3)
    assert result.manifest["format"] == format
    assert result.manifest["documents"] == len(TEXTS)


@pytest.mark.parametrize("format", FORMATS)
def test_the_result_may_have_any_format(corpus: Path, tmp_path: Path, format: str) -> None:
    before = prepared(corpus, tmp_path / "before")
    shardmill.shuffle(before, tmp_path / "after", seed=4, format=format)
    check(before, tmp_path / "after", 4)
    shardmill.convert(tmp_path / "after", tmp_path / "back", format="nanogpt")
    check(before, tmp_path / "back", 4)


@pytest.mark.parametrize(("before", "after"), [("after", "before"), ("before", "none"), ("none", "after")])
def test_end_of_text_tokens_go_where_they_are_wanted(corpus: Path, tmp_path: Path, before: str, after: str) -> None:
    made = prepared(corpus, tmp_path / "before", eot=before, format="shards")
    shardmill.shuffle(made, tmp_path / "after", seed=5, eot=after)
    check(made, tmp_path / "after", 5)
    assert shardmill.open(tmp_path / "after").eot == after


def test_a_document_that_is_cut_between_the_splits_is_closed_in_both(corpus: Path, tmp_path: Path) -> None:
    before = prepared(corpus, tmp_path / "before", val="first:1001")
    shardmill.shuffle(before, tmp_path / "after", seed=6)
    check(before, tmp_path / "after", 6)
    tokens = shardmill.open(tmp_path / "after")["val"]
    assert tokens[len(tokens) - 1] == 50256


def test_seed_and_documents_alone_choose_the_order(corpus: Path, tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    settings: list[dict[str, Any]] = [{}, {"format": "llmc"}, {"shard_tokens": 500}, {"workers": 1}]
    for number, options in enumerate(settings):
        before = prepared(corpus, tmp_path / f"before{number}", **options)
        after = tmp_path / f"after{number}"
        call = ["shuffle", str(before), "-o", str(after), "--seed", "7", "-f", "nanogpt"]
        # A process of its own: this one may hold more than the limit already.
        memory = f"{180 + 200 * number}MB"
        subprocess.run([sys.executable, "-m", "shardmill", *call, "--memory", memory], check=True, timeout=120)
        found = contents(after)
        found = {name: data for name, data in found.items() if name != "manifest.json"}
        expected = expected or found
        assert found == expected
    shardmill.shuffle(tmp_path / "before0", tmp_path / "other", seed=8, format="nanogpt")
    assert contents(tmp_path / "other")["train.bin"] != expected["train.bin"]


def test_killed_at_any_step_it_ends_with_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    before = prepared(corpus, tmp_path / "before", format="shards")
    left = crash_everywhere(before, tmp_path / "out", every=9, shuffle=True, seed=2)
    assert len(left) > 3


def test_splits_without_documents_stay_so(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"text": "the only document"}\n')
    shardmill.prepare(tmp_path / "one.jsonl", tmp_path / "before", val="0.1")
    shardmill.shuffle(tmp_path / "before", tmp_path / "after")
    check(tmp_path / "before", tmp_path / "after", 0)


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_of_other_tools_are_converted_and_then_shuffled(kind: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    FOREIGN[kind](tmp_path / "theirs")
    shardmill.convert(tmp_path / "theirs", tmp_path / "before", format="npy")
    shardmill.shuffle(tmp_path / "before", tmp_path / "after", seed=1)
    check(tmp_path / "before", tmp_path / "after", 1, sample=0)  # the tokens are not those of a text
    found = [one.tolist() for split in ("val", "train") for one in shardmill.open(tmp_path / "before")[split].documents]
    if "cut" not in kind:
        assert sorted(found) == sorted(one.tolist() for made in DOCUMENTS.values() for one in made)


def test_empty_documents_of_other_tools_are_shuffled_too(tmp_path: Path) -> None:
    np.array([EOT, 1, 2, EOT, EOT, 3, EOT], np.uint16).tofile(tmp_path / "train.bin")
    shardmill.convert(tmp_path / "train.bin", tmp_path / "ours")
    for eot, count in (("after", 4), ("before", 4), ("none", 2)):
        shardmill.shuffle(tmp_path / "ours", tmp_path / eot, eot=eot)
        found = [one.tolist() for one in shardmill.open(tmp_path / eot)["train"].documents]
        assert len(found) == count and sorted(filter(None, found)) == [[1, 2], [3]]
        assert not verify(tmp_path / eot, sample=0).damage


def test_a_dataset_without_a_table_has_to_be_converted_first(tmp_path: Path) -> None:
    old = make_dataset("shards", tmp_path / "old", DOCUMENTS)
    with pytest.raises(UsageError, match="no documents table") as refused:
        shardmill.shuffle(old, tmp_path / "after")
    assert "shardmill convert" in str(refused.value.hint) and "-f shards" in str(refused.value.hint)
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "train.bin")
    shardmill.convert(tmp_path / "train.bin", tmp_path / "bare", eot="none")
    with pytest.raises(UsageError, match="nothing says where documents end"):
        shardmill.shuffle(tmp_path / "bare", tmp_path / "after")
    assert not (tmp_path / "after" / "manifest.json").exists()


def test_the_memory_of_the_whole_command_stays_below_the_limit(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = np.array(["alpha ", "beta ", "gamma ", "delta ", "of ", "the ", "and\n", "zeta-"])
    with open(tmp_path / "big.jsonl", "w") as file:
        for i in range(60):
            text = "".join(words[random.integers(0, len(words), 4_000_000 if i == 30 else 600_000)].tolist())
            file.write(json.dumps({"text": text}) + "\n")
    shardmill.prepare(tmp_path / "big.jsonl", tmp_path / "before", val="0")
    call = [sys.executable, "-m", "shardmill", "shuffle", str(tmp_path / "before"), "-o", str(tmp_path / "after")]
    assert metered_command([*call, "--memory", "200MB"]).peak <= 200_000_000
    assert not list((tmp_path / "after").glob(".sorted*"))
    check(tmp_path / "before", tmp_path / "after", 0)


def test_what_cannot_work_is_an_error_that_names_the_way_out(corpus: Path, tmp_path: Path) -> None:
    before = prepared(corpus, tmp_path / "before")
    with pytest.raises(UsageError, match="its own folder"):
        shardmill.shuffle(before, before)
    with pytest.raises(BudgetError, match="does not suffice") as refused:
        shardmill.shuffle(before, tmp_path / "after", memory="20MB")
    assert "memory" in str(refused.value)
    shardmill.shuffle(before, tmp_path / "after", seed=1)
    assert shardmill.shuffle(before, tmp_path / "after", seed=1).already
    with pytest.raises(MismatchError, match="seed"):
        shardmill.shuffle(before, tmp_path / "after", seed=2)
    assert not shardmill.shuffle(before, tmp_path / "after", seed=2, overwrite=True).already
    with pytest.raises((UsageError, OutputError)):
        shardmill.shuffle(tmp_path, tmp_path / "none")


def test_the_command_shuffles_and_says_so(corpus: Path, tmp_path: Path) -> None:
    before = prepared(corpus, tmp_path / "before")
    call = [sys.executable, "-m", "shardmill", "shuffle", str(before), "-o", str(tmp_path / "after"), "--seed", "9"]
    said = subprocess.run([*call, "--json"], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(said.stdout)["documents"] == len(TEXTS)
    check(before, tmp_path / "after", 9)
