"""`convert` of files that other tools have made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange import arranging
from shardmill.arrange.inputs import InputSplit
from shardmill.arrange.placing import place_eot
from shardmill.dataset import verify
from shardmill.errors import DamageError, MismatchError, ShardmillError, UsageError
from shardmill.options import FORMATS
from shardmill.shards import TokenFile, TokenFiles, format_named
from shardmill.shards.token_files import EndsIndex
from shardmill.write import read_manifest
from tests.corpus import write_jsonl
from tests.datasets import EOT, make_dataset, with_eot
from tests.foreign import (
    DOCUMENTS,
    WRITERS,
    cut_inside,
    foreign_llmc,
    foreign_megatron,
    foreign_nanogpt,
    foreign_npy,
    write_megatron,
)
from tests.shards.driving import contents

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that documents straddle blocks in every way."""
    monkeypatch.setattr(arranging, "BLOCK_TOKENS", 61)


def files(folder: Path) -> dict[str, bytes]:
    """What the outputs have written: all but manifest, documents tables and working files."""
    others = ("manifest.json", "documents/", ".shardmill")
    return {name: data for name, data in contents(folder).items() if not name.startswith(others)}


def check_table(folder: Path, documents: int | None = None) -> None:
    """The slow twin: the tables list the documents between end-of-text tokens, by number; `documents`: of train."""
    manifest, data = read_manifest(folder), shardmill.open(folder)
    for split in data:
        table, tokens = np.load(folder / "documents" / f"{split}.npy"), data[split][:]
        marks = np.flatnonzero(tokens == EOT)
        ends = {"after": marks + 1, "before": marks[marks > 0], "none": table["end"]}[data.eot].tolist()
        assert table["end"].tolist() == sorted({*ends, len(tokens)} - {0})
        assert table["record"].tolist() == list(range(len(table)))
        assert not table["source"].any() and not table["bytes"].any()
        assert documents in (None, len(table))
        assert len(data[split].documents) == len(list(data[split].documents)) == len(table)
    assert [source["unit"] for source in manifest["sources"]] == ["document"]
    report = verify(folder, sample=0)  # the tokens are not those of a text
    assert not report.damage, report.text()


def converted(folder: Path, out: Path, **more: Any) -> tuple[list[int], dict[str, int]]:
    """The tokens of val and train, one after the other, and the documents of each split."""
    manifest = shardmill.convert(folder, out, **more).manifest
    data = shardmill.open(out)
    tokens = np.concatenate([data[split][:] for split in ("val", "train")])
    return tokens.tolist(), {split: described["documents"] for split, described in manifest["splits"].items()}


@pytest.mark.parametrize("to", ["nanogpt", "npy", "megatron"])
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("at", range(1, 14))
def test_a_stream_that_was_cut_inside_a_document_gets_no_token_more_and_no_document_more(
    at: int, kind: str, to: str, tmp_path: Path
) -> None:
    documents = [np.arange(n, dtype=np.uint16) + 10 * n for n in (3, 1, 4, 2)]
    write, eot = WRITERS[kind]
    (tmp_path / "theirs").mkdir()
    cut_inside(tmp_path / "theirs", write, at, eot, documents)
    tokens, counts = converted(tmp_path / "theirs", tmp_path / "ours", format=to)
    way = "before" if to == "npy" else "after"
    assert tokens == np.concatenate([with_eot(document, way) for document in documents]).tolist()
    assert sum(counts.values()) == len(documents)
    ends = np.cumsum([len(document) + 1 for document in documents])
    # Before a mark and after it are the same place between documents, but for the one token.
    assert counts["val"] == np.count_nonzero(ends <= at)
    check_table(tmp_path / "ours")


@pytest.mark.parametrize(
    ("start", "to"), [("npy", "nanogpt"), ("nanogpt", "npy"), ("megatron", "npy"), ("mds", "llmc")]
)
def test_a_dataset_whose_val_is_the_first_tokens_gets_no_token_more(start: str, to: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [f"some words and {i} more of them " * (1 + i % 7) for i in range(40)])
    one, other = (
        shardmill.prepare(tmp_path / "a.jsonl", tmp_path / format, format=format, val="first:500").manifest
        for format in (start, to)
    )
    tokens, counts = converted(tmp_path / start, tmp_path / "converted", format=to)
    data = shardmill.open(tmp_path / to)
    assert tokens == np.concatenate([data[split][:] for split in ("val", "train")]).tolist()
    assert counts == {split: described["documents"] for split, described in one["splits"].items()}
    assert not verify(tmp_path / "converted").damage
    assert other["documents"] == sum(counts.values())


@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_the_user_can_say_where_eot_stands_in_files_of_other_tools(eot: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    stream = np.array([EOT, 1, 2, EOT, 3, EOT], np.uint16)
    stream.tofile(tmp_path / "theirs" / "train.bin")
    kept = shardmill.convert(tmp_path / "theirs", tmp_path / "kept", eot=eot, source_eot=eot)
    assert shardmill.open(tmp_path / "kept")["train"][:].tolist() == stream.tolist()
    assert kept.manifest["splits"]["train"]["documents"] == {"after": 2, "before": 2, "none": 1}[eot]
    assert (tmp_path / "kept" / "documents").exists() == (eot != "none")
    if eot != "none":
        check_table(tmp_path / "kept")
        bare = shardmill.convert(tmp_path / "theirs", tmp_path / "bare", eot="none", source_eot=eot)
        assert bare.manifest["splits"]["train"]["tokens"] == 3
        check_table(tmp_path / "bare", 2)
        shardmill.convert(tmp_path / "kept", tmp_path / "bare again", eot="none")
        again = np.load(tmp_path / "bare again" / "documents" / "train.npy")
        assert again["end"].tolist() == [2, 3]
        assert again["record"].tolist() == {"after": [1, 2], "before": [0, 1]}[eot]  # as in the first conversion
        assert not verify(tmp_path / "bare again", sample=0).damage
        shardmill.convert(tmp_path / "theirs", tmp_path / "moved", eot="before", source_eot=eot)
        moved = shardmill.open(tmp_path / "moved")["train"][:].tolist()
        assert moved == {"after": [EOT, EOT, 1, 2, EOT, 3], "before": stream.tolist()}[eot]
    with pytest.raises(MismatchError):
        shardmill.convert(tmp_path / "theirs", tmp_path / "kept", eot=eot)
    with pytest.raises(UsageError, match="says itself"):
        shardmill.convert(tmp_path / "kept", tmp_path / "out", source_eot=eot)
    with pytest.raises(UsageError, match="no place for EOT"):
        shardmill.convert(tmp_path / "theirs", tmp_path / "out", source_eot="behind")


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("make", [foreign_nanogpt, foreign_npy, foreign_llmc, foreign_megatron])
def test_files_that_other_tools_have_made_are_taken(make: Callable[..., Any], to: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    make(tmp_path / "theirs")
    result = shardmill.convert(tmp_path / "theirs", tmp_path / "out", format=to, shard_tokens=500, name="web")
    assert files(tmp_path / "out") == files(make_dataset(to, tmp_path / "expected", DOCUMENTS))
    assert {name: split["documents"] for name, split in result.manifest["splits"].items()} == {
        name: len(made) for name, made in DOCUMENTS.items()
    }
    check_table(tmp_path / "out")
    for split, made in DOCUMENTS.items():
        listed = shardmill.open(tmp_path / "out")[split].documents
        assert [document.tolist() for document in listed] == [document.tolist() for document in made]
        assert str(listed.origin(3)) == f"{tmp_path / 'theirs'}, document 4"


@pytest.mark.parametrize("way", ["after", "before", "none"])
@pytest.mark.parametrize("start", ["nanogpt", "npy", "megatron", "mds"])
def test_a_dataset_without_a_table_gets_one(start: str, way: str, tmp_path: Path) -> None:
    made = make_dataset(start, tmp_path / "old", DOCUMENTS)
    shardmill.convert(made, tmp_path / "new", eot=way)
    check_table(tmp_path / "new")
    for split, documents in DOCUMENTS.items():
        found = shardmill.open(tmp_path / "new")[split].documents
        assert [document.tolist() for document in found] == [document.tolist() for document in documents]
    shardmill.convert(tmp_path / "new", tmp_path / "newer", format="npy")
    check_table(tmp_path / "newer")


def test_a_single_file_is_taken_as_train(tmp_path: Path) -> None:
    foreign_nanogpt(tmp_path)
    result = shardmill.convert(tmp_path / "train.bin", tmp_path / "out", format="megatron")
    assert list(result.manifest["splits"]) == ["train"]
    assert sorted(files(tmp_path / "out")) == ["train_text_document.bin", "train_text_document.idx"]


@pytest.mark.parametrize(
    ("name", "split"),
    [("train", "train"), ("medieval_train_000001", "train"), ("train_web_val_000000", "val"), ("x_valid_y", "val"),
     ("fineweb", "train"), ("my-validation_text_document", "val")],
)  # fmt: skip
def test_the_split_of_a_file_is_the_last_word_of_its_name_that_says_so(name: str, split: str, tmp_path: Path) -> None:
    with_eot(np.arange(50, dtype=np.uint16), "after").tofile(tmp_path / f"{name}.bin")
    result = shardmill.convert(tmp_path / f"{name}.bin", tmp_path / "out", format="nanogpt")
    assert list(result.manifest["splits"]) == [split]


def test_megatron_documents_of_several_sequences_or_none_are_found(tmp_path: Path) -> None:
    sequences = [np.full(n, n, np.int32) for n in (3, 4, 5, 6)]
    write_megatron(tmp_path / "x_text_document", sequences, [0, 2, 2, 3, 4])
    path = tmp_path / "x_text_document.bin"
    tokens = TokenFiles([TokenFile(path, 18)], np.dtype("<i4"))
    index = format_named("megatron").index(tokens)
    assert index is not None
    assert [index.bounds(i) for i in range(len(index))] == [(0, 7), (7, 7), (7, 12), (12, 18)]
    for start in range(18):
        for stop in range(start + 1, 19):
            expected = [end for end in (7, 12, 18) if start < end <= stop]
            assert index.ends(start, stop, np.empty(0)).tolist() == expected


def test_what_is_damaged_or_unknown_is_said(tmp_path: Path) -> None:
    def refused(kind: type[ShardmillError], words: str, **more: Any) -> ShardmillError:
        with pytest.raises(kind, match=words) as error:
            shardmill.convert(theirs, tmp_path / "out", **more)
        assert not (tmp_path / "out" / "manifest.json").exists()
        return error.value

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    refused(UsageError, "no dataset and no token files")
    (theirs / "train.bin").write_bytes(b"odd")
    assert "train.bin" in refused(DamageError, "not whole tokens").place
    (theirs / "train.bin").unlink()
    foreign_llmc(theirs)
    data = (theirs / "fineweb_val_000000.bin").read_bytes()
    (theirs / "fineweb_val_000000.bin").write_bytes(data[:-2])
    refused(DamageError, "where its head says")
    (theirs / "fineweb_val_000000.bin").unlink()
    np.save(theirs / "x_train_1.npy", np.arange(5, dtype=np.uint16))
    refused(UsageError, "several kinds")
    for path in theirs.iterdir():
        path.unlink()
    np.arange(100, dtype=np.uint16).tofile(theirs / "train.bin")
    refused(UsageError, "nothing says where documents end", format="npy")
    shardmill.convert(theirs, tmp_path / "bare", format="npy", eot="none")
    assert np.array_equal(shardmill.open(tmp_path / "bare")["train"][:], np.arange(100))
    assert not (tmp_path / "bare" / "documents").exists()
    write_megatron(theirs / "bad", [np.array([1, 70_000, EOT])], [0, 1])
    (theirs / "train.bin").unlink()
    assert "token 1" in refused(DamageError, "70,000 is no token of `gpt2`").place


def test_a_document_of_an_index_that_is_only_eot_keeps_its_end(tmp_path: Path) -> None:
    np.array([11, EOT, EOT, 12, EOT], np.uint16).tofile(tmp_path / "a.bin")
    tokens = TokenFiles([TokenFile(tmp_path / "a.bin", 5)], np.dtype(np.uint16))
    index = EndsIndex(tokens, [3], lambda file: np.array([2, 3, 5]))
    ((_, block),) = InputSplit("train", tokens, "after", EOT, index=index).blocks(0, 5)
    rows, found = place_eot("train", *block, "after", EOT, ["before"])["before"]
    assert found["train"].tolist() == [EOT, 11, EOT, EOT, 12]
    assert rows.length.tolist() == [2, 1, 2] and rows.closes.all()
