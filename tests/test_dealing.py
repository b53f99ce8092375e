"""Which documents go to val: by content, as the first tokens, or as the tail of each file."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.cluster.planning import plan_parts
from shardmill.errors import UsageError
from shardmill.run.budget import Budget
from tests.corpus import documents, write_jsonl
from tests.reference import Twin, check, dealt, gpt2, twin

pytestmark = pytest.mark.thorough

EOT = 50256


def test_duplicates_fall_on_one_side_and_the_split_stays_when_data_is_added(tmp_path: Path) -> None:
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


def test_another_seed_gives_another_split(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    for seed in (0, 1):
        shardmill.prepare(source, tmp_path / f"{seed}", val=0.5, seed=seed)
    assert set(_dealt(tmp_path / "0")["val"]) != set(_dealt(tmp_path / "1")["val"])


@pytest.mark.parametrize("separator", [None, "\n\n"])
def test_the_first_tokens_are_val_when_that_is_wanted(tmp_path: Path, separator: str | None) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\n\n".join(t for t in documents(500) if t))
    shardmill.prepare(source, tmp_path / "out", val="first:10k", separator=separator)
    whole = twin(source, separator=separator).stream()
    assert np.array_equal(np.fromfile(tmp_path / "out" / "val.bin", np.uint16), whole[:10_000])
    assert np.array_equal(np.fromfile(tmp_path / "out" / "train.bin", np.uint16), whole[10_000:])


def test_the_tail_of_each_text_file_is_val_when_that_is_wanted(tmp_path: Path) -> None:
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


def test_the_bytes_of_documents_that_cannot_be_encoded_are_not_counted_whatever_the_chunks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"words of document {i} " * 40 for i in range(600)]
    good = [text for i, text in enumerate(texts) if i % 2]
    source = write_jsonl(tmp_path / "a.jsonl", [text if text in good else text + "<|endoftext|>" for text in texts])
    for chunk in (1 << 16, 1 << 17):
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", chunk)
        monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
        options: dict[str, Any] = {"val": 0.3, "specials": "error", "max_bad": "any"}
        manifest = shardmill.prepare(source, tmp_path / f"{chunk}", **options).manifest
        assert (manifest["documents"], manifest["rejected"]) == (300, 300)
        assert sum(split["bytes"] for split in manifest["splits"].values()) == sum(map(len, good))


def test_one_text_without_a_separator_is_dealt_in_spans_that_are_together_the_whole(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text(" ".join(documents(8000)))
    shardmill.prepare(source, tmp_path / "out", val=0.4, workers=2)
    expected = twin(source)
    manifest = check(tmp_path / "out", expected)
    assert manifest["documents"] > 10
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


def _parts(stream: np.ndarray, eot: str) -> list[np.ndarray]:
    """The documents of a stream, without their end-of-text tokens."""
    ends = np.flatnonzero(stream == EOT)
    assert len(ends) and ends[-1 if eot == "after" else 0] == (len(stream) - 1 if eot == "after" else 0)
    return [part[part != EOT] for part in np.split(stream, ends + 1 if eot == "after" else ends) if len(part)]


@pytest.mark.parametrize("eot", ["after", "before"])
@pytest.mark.parametrize("files", [1, 2, 5])
@pytest.mark.parametrize("settings", [{"workers": 1}, {"workers": 2, "chunk": 1 << 16}])
def test_with_a_tail_each_file_is_a_document_of_train_and_one_of_val(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eot: str, files: int, settings: dict[str, int]
) -> None:
    if chunk := settings.get("chunk"):
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", chunk)
        monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(files):
        texts = [text for text in documents(150 + 400 * (i % 2), i) if len(text) < 900]
        (folder / f"{i}.txt").write_text(" ".join(texts))
    made = shardmill.prepare(folder, tmp_path / "out", val="tail:0.25", eot=eot, workers=settings["workers"])
    manifest = made.manifest
    found = {split: np.fromfile(tmp_path / "out" / f"{split}.bin", np.uint16) for split in ("train", "val")}
    heads, tails = (_parts(found[split], eot) for split in ("train", "val"))
    expected = twin(folder)
    assert len(heads) == len(tails) == files
    for head, tail, whole, text in zip(heads, tails, expected.tokens, expected.texts, strict=True):
        assert np.array_equal(np.concatenate([head, tail]), whole)
        size, val = len(text.encode()), len(shardmill.open(tmp_path / "out").decode(tail).encode())
        assert size * 0.25 - 200 < val <= size * 0.25
    counts = {name: split["documents"] for name, split in manifest["splits"].items()}
    assert counts == {"train": files, "val": files} and manifest["documents"] == 2 * files
    # Without end-of-text tokens nothing else changes.
    shardmill.prepare(folder, tmp_path / "bare", val="tail:0.25", eot="none")
    for split, parts in (("train", heads), ("val", tails)):
        assert np.array_equal(np.fromfile(tmp_path / "bare" / f"{split}.bin", np.uint16), np.concatenate(parts))


@pytest.mark.parametrize("text", ["", "a", "hello", "a|", "|", "a<|endoftext|>", "a<|endoftext|>b"])
@pytest.mark.parametrize("separator", ["|", "<|endoftext|>"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_may_be_shorter_than_the_separator(tmp_path: Path, text: str, separator: str, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    expected = twin(tmp_path / "a.txt", separator=separator)
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", val=0.5, separator=separator)
    check(tmp_path / "out", expected)


@pytest.mark.parametrize("name", ["utf-16.txt", "utf-32.txt", "gzip.txt", "lines"])
def test_a_source_without_a_tail_whose_name_does_not_say_so_is_refused(tmp_path: Path, name: str) -> None:
    content = {
        "utf-16.txt": "some text".encode("utf-16"),
        "utf-32.txt": "some text".encode("utf-32"),
        "gzip.txt": gzip.compress(b"some text"),
        "lines": b'{"text": "a"}\n',
    }
    (tmp_path / name).write_bytes(content[name])
    with pytest.raises(UsageError, match="only for plain text"):
        shardmill.prepare(tmp_path / name, tmp_path / "out", val="tail:0.1")


@pytest.mark.parametrize(
    ("name", "parts"),
    [*itertools.product(["b.txt.gz", "b.jsonl", "b.parquet"], [False, True]), ("from Python", False)],
)
def test_a_source_without_a_tail_is_refused_before_those_that_have_one_are_read(
    tmp_path: Path, name: str, parts: bool
) -> None:
    for each in ("a.txt", name):
        (tmp_path / each).write_bytes(b"some text")
    given: Any = [{"text": "a"}] if name == "from Python" else tmp_path / name
    begin: Any = plan_parts if parts else shardmill.prepare
    with pytest.raises(UsageError, match="only for plain text") as error:
        begin([tmp_path / "a.txt", given], tmp_path / "out", val="tail:0.1")
    assert error.value.kept is None and not list(tmp_path.glob("out/*.partial"))


def test_a_stretch_without_a_cut_goes_where_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 16)

    class Small(Budget):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.largest = 1 << 17

    monkeypatch.setattr("shardmill.run.encoded_text.Budget", Small)
    words, stretch = "some words " * 20_000, "a" * 1_000_000
    (tmp_path / "a.txt").write_text(words + stretch)
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", val="tail:0.9")
    found = {split: np.fromfile(tmp_path / "out" / f"{split}.bin", np.uint16) for split in ("train", "val")}
    data = shardmill.open(tmp_path / "out")
    assert set(data.decode(found["train"][:-1])) <= set("some words ")
    assert data.decode(found["val"][-1000:-1]).strip("a") == ""


@pytest.mark.parametrize("eot", ["after", "before", "none"])
@pytest.mark.parametrize("val", ["0", "0.4", "first:2k", "tail:0.3"])
@pytest.mark.parametrize("kind", ["text", "separated", "jsonl", "parquet"])
def test_documents_and_what_stands_between_them_are_exact_over_several_files(
    tmp_path: Path, kind: str, val: str, eot: str
) -> None:
    if val.startswith("tail") and kind not in ("text", "separated"):
        with pytest.raises(shardmill.ShardmillError, match="text"):
            _prepare_several(tmp_path, kind, val, eot)
        return
    if val.startswith("tail") and kind == "text":
        return  # the test above: there each file becomes two documents
    expected = _prepare_several(tmp_path, kind, val, eot)
    train, val_tokens = (
        np.fromfile(path, np.uint16) if (path := tmp_path / "out" / f"{split}.bin").exists() else np.empty(0, np.uint16)
        for split in ("train", "val")
    )
    if val.startswith("first"):
        assert np.array_equal(np.concatenate([val_tokens, train]), expected.stream(eot))
    else:
        # Whole documents with their end-of-text tokens, in order, each in one split; short files are one span each.
        assert dealt(expected.documents(eot), train, val_tokens)
        assert len(val_tokens) > 0 or val == "0"


def _prepare_several(folder: Path, kind: str, val: str, eot: str) -> Twin:
    texts = [[text[:2000] for text in documents(12, seed) if text.strip()] for seed in range(9)]
    sources = folder / "sources"
    sources.mkdir()
    for i, some in enumerate(texts):
        if kind == "jsonl":
            write_jsonl(sources / f"{i}.jsonl", some)
        elif kind == "parquet":
            pq.write_table(pa.table({"text": some}), sources / f"{i}.parquet")
        else:
            (sources / f"{i}.txt").write_text("\x1e".join(some), newline="")
    options: dict[str, Any] = {"separator": "\x1e"} if kind == "separated" else {}
    shardmill.prepare(sources, folder / "out", val=val, eot=eot, **options)
    return twin(sources, **options)
