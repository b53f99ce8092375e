"""Which documents go to val: by content, as the first tokens, or as the tail of each file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardmill
from tests.corpus import documents, write_jsonl
from tests.reference import check, gpt2, twin

EOT = 50256


def test_duplicates_fall_on_one_side_and_the_split_stays_when_data_is_added(tmp_path):
    texts = [t for t in documents(400, seed=9) if t]
    write_jsonl(tmp_path / "a.jsonl", texts)
    write_jsonl(tmp_path / "b.jsonl", documents(200, seed=10) + texts[::-1])
    shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "one", val=0.3)
    shardmill.prepare([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], tmp_path / "both", val=0.3)
    one, both = _dealt(tmp_path / "one"), _dealt(tmp_path / "both")
    assert not set(both["train"]) & set(both["val"])
    assert set(one["val"]) <= set(both["val"])
    assert set(one["train"]) <= set(both["train"])
    assert 0.2 < len(one["val"]) / len(texts) < 0.4


def test_another_seed_gives_another_split(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    for seed in (0, 1):
        shardmill.prepare(source, tmp_path / f"{seed}", val=0.5, seed=seed)
    assert set(_dealt(tmp_path / "0")["val"]) != set(_dealt(tmp_path / "1")["val"])


@pytest.mark.parametrize("separator", [None, "\n\n"])
def test_the_first_tokens_are_val_when_that_is_wanted(tmp_path, separator):
    source = tmp_path / "a.txt"
    source.write_text("\n\n".join(t for t in documents(500) if t))
    shardmill.prepare(source, tmp_path / "out", val="first:10k", separator=separator)
    whole = twin(source, separator=separator).stream()
    assert np.array_equal(np.fromfile(tmp_path / "out" / "val.bin", np.uint16), whole[:10_000])
    assert np.array_equal(np.fromfile(tmp_path / "out" / "train.bin", np.uint16), whole[10_000:])


def test_the_tail_of_each_text_file_is_val_when_that_is_wanted(tmp_path):
    sources = []
    for i in (1, 2):
        sources.append(tmp_path / f"{i}.txt")
        sources[-1].write_text(" ".join(documents(300, i)))
    result = shardmill.prepare(sources, tmp_path / "out", val="tail:0.1", eot="none")
    train, val = (np.fromfile(tmp_path / "out" / f"{s}.bin", np.uint16) for s in ("train", "val"))
    whole = [np.array(gpt2()(path.read_bytes().decode())) for path in sources]
    cut = np.flatnonzero(train == whole[1][0])
    assert len(train) + len(val) == len(whole[0]) + len(whole[1])
    assert any(
        np.array_equal(np.concatenate([train[:c], val[: len(whole[0]) - c]]), whole[0])
        and np.array_equal(np.concatenate([train[c:], val[len(whole[0]) - c :]]), whole[1])
        for c in cut
    )
    size = sum(path.stat().st_size for path in sources)
    assert (
        abs(result.manifest["splits"]["val"]["bytes"] / size - 0.1) < 0.02
    )  # a run of 5,000 letters has no place to cut


def test_text_without_a_separator_is_dealt_in_spans_that_are_together_the_whole(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text(" ".join(documents(8000)))
    shardmill.prepare(source, tmp_path / "out", val=0.4, workers=2)
    expected = twin(source)
    manifest = check(tmp_path / "out", expected)
    assert manifest["documents"] == 1
    assert 0.1 < manifest["splits"]["val"]["tokens"] / len(expected.stream()) < 0.8
    assert manifest["splits"]["val"]["bytes"] + manifest["splits"]["train"]["bytes"] == source.stat().st_size


def _dealt(out: Path) -> dict[str, list[bytes]]:
    """The documents of each split, as bytes of tokens."""
    splits = {}
    for split in ("train", "val"):
        tokens = np.fromfile(out / f"{split}.bin", np.uint16)
        parts = np.split(tokens, np.flatnonzero(tokens == EOT) + 1)
        splits[split] = [part.tobytes() for part in parts if len(part)]
    return splits
