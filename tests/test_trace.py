"""`trace` finds what a slow search through the decoded text finds, through every command that orders documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset import TracedDocument, TracedRow
from shardmill.errors import UsageError
from tests.datasets import make_dataset
from tests.foreign import DOCUMENTS

TEXTS = {
    name: [f"{name} number {i} says " + f"{name}{i * i} and " * (i * 7 % 30) for i in range(size)]
    for name, size in (("web", 200), ("books", 60))
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """prepare → shuffle → mix → convert, of two sources."""
    folder = tmp_path_factory.mktemp("made")
    for name, texts in TEXTS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        shardmill.prepare(folder / f"{name}.jsonl", folder / name, val="0.1", shard_tokens=1500)
        shardmill.shuffle(folder / name, folder / f"{name}-shuffled", seed=3)
    shardmill.mix({folder / "web-shuffled": 2, folder / "books-shuffled": 1}, folder / "mixed", seed=4, max_epochs=2)
    shardmill.convert(folder / "mixed", folder / "converted", format="llmc", shard_tokens=1000)
    return folder


KINDS = ("web", "web-shuffled", "mixed", "converted")


def text_of(document: TracedDocument) -> str:
    """The text of a traced document, by its source and record alone."""
    assert document.unit == "line"
    return TEXTS[Path(document.source).stem][document.record]


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_of_the_document_that_its_source_has_there(made: Path, kind: str) -> None:
    data = shardmill.open(made / kind)
    for split in data:
        for token in range(0, len(data[split]), 37):
            (found,) = data.trace(token=token, split=split)
            assert isinstance(found, TracedDocument) and found.start <= token < found.end
            tokens = [one for one in data[split][found.start : found.end].tolist() if one != data.eot_id]
            assert data.decode(np.array(tokens)) == text_of(found)
            assert found.bytes == len(text_of(found).encode())
            assert data.trace(document=found.document, split=split) == [found]


@pytest.mark.parametrize("kind", ["web", "mixed"])
@pytest.mark.parametrize(("order", "world_size"), [("shuffled", 1), ("shuffled", 3), ("sequential", 2), ("random", 2)])
def test_a_step_is_what_the_loader_gives(made: Path, kind: str, order: str, world_size: int) -> None:
    data = shardmill.open(made / kind)
    settings: dict[str, Any] = {"batch_size": 3, "block_size": 40, "seed": 9, "order": order, "world_size": world_size}
    given = [list(data["train"].batches(rank=rank, epochs=2, **settings)) for rank in range(world_size)]
    steps = range(0, len(given[0]), 5)
    for step in [*steps, len(given[0]) - 1]:
        found = data.trace(step=step, **settings)
        assert len(found) == sum(len(batches[step][0]) for batches in given)
        for row in found:
            assert isinstance(row, TracedRow)
            x = given[row.rank][step][0][row.row]
            assert x.tolist() == data["train"][row.start : row.end].tolist()
            texts = "".join(text_of(document) + "<|endoftext|>" for document in row.documents)
            assert data.decode(x) in texts, "the documents of a row, end to end, hold its text"
            assert row.documents[0].start <= row.start and row.end <= row.documents[-1].end


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_found_in_every_place_where_its_text_is(made: Path, kind: str) -> None:
    data = shardmill.open(made / kind)
    for name, record in (("web", 0), ("web", 123), ("books", 17)):
        text = TEXTS[name][record]
        slow = [
            (split, i)
            for split in data
            for i, tokens in enumerate(data[split].documents)
            if data.decode(tokens) == text
        ]
        if name not in kind and kind.startswith("web"):
            with pytest.raises(UsageError, match="none of the sources"):
                data.trace(source=f"{name}.jsonl", record=record)
            continue
        found = data.trace(source=f"{name}.jsonl", record=record)
        assert [(one.split, one.document) for one in found if isinstance(one, TracedDocument)] == slow
        assert slow or kind == "mixed" or kind == "converted", "a mixture may have left it out"
    assert data.trace(source="web.jsonl", record=10**6) == []


def test_a_record_is_found_in_the_rows_of_the_loader(made: Path) -> None:
    data = shardmill.open(made / "mixed")
    settings: dict[str, Any] = {"batch_size": 4, "block_size": 16, "seed": 2, "world_size": 3}
    found = data.trace(source="books.jsonl", record=17, split="train", **settings)
    batches = [list(data["train"].batches(rank=rank, **settings)) for rank in range(3)]
    wanted = {one.document for one in data.trace(source="books.jsonl", record=17, split="train")}
    for row in found:
        assert isinstance(row, TracedRow)
        assert wanted & {document.document for document in row.documents}
        x = batches[row.rank][row.step][0][row.row]
        assert x.tolist() == data["train"][row.start : row.end].tolist()
    places = {(row.step, row.rank, row.row) for row in found if isinstance(row, TracedRow)}
    for step in range(len(batches[0])):
        for row in data.trace(step=step, **settings):
            assert isinstance(row, TracedRow)
            here = bool(wanted & {document.document for document in row.documents})
            assert here == ((row.step, row.rank, row.row) in places)


def test_a_byte_of_plain_text_is_of_the_document_that_begins_before_it(tmp_path: Path) -> None:
    parts = [f"part {i} " * (i + 1) for i in range(20)]
    (tmp_path / "a.txt").write_text("\n\n".join(parts))
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", separator=r"\n\n", val="0")
    data = shardmill.open(tmp_path / "out")
    byte = len("\n\n".join(parts[:7])) + 12
    (found,) = data.trace(source="a.txt", record=byte)
    assert isinstance(found, TracedDocument) and data["train"].documents.text(found.document) == parts[7]


def test_what_cannot_be_traced_is_an_error_that_names_the_way_out(made: Path, tmp_path: Path) -> None:
    data = shardmill.open(made / "web")
    wrong: list[dict[str, Any]] = [
        {}, {"token": 1, "document": 1}, {"token": 10**9}, {"document": 10**9}, {"source": "web.jsonl"}, {"record": 1},
        {"step": 1}, {"step": 1, "batch_size": 4}, {"token": -1}, {"token": 1, "split": "test"},
        {"token": 1, "colour": "red"},
    ]  # fmt: skip
    for call in wrong:
        with pytest.raises(UsageError):
            data.trace(**call)
    old = shardmill.open(make_dataset("shards", tmp_path / "old", DOCUMENTS))
    with pytest.raises(UsageError, match="no documents table") as refused:
        old.trace(token=1)
    assert "shardmill convert" in str(refused.value.hint)


def test_the_command_counts_records_as_editors_do(made: Path) -> None:
    def said(*words: str) -> str:
        call = [sys.executable, "-m", "shardmill", "trace", str(made / "mixed"), *words]
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=60).stdout

    line = said("--token", "100").strip()
    assert line.startswith("document ") and ".jsonl, line " in line
    source, number = line.rsplit(": ", 1)[1].split(" (")[0].split(", line ")
    assert line in said("--source", source, "--record", number).splitlines()
    (found,) = json.loads(said("--token", "100", "--json"))
    assert found["record"] + 1 == int(number)
    rows = json.loads(said("--step", "2", "--batch-size", "2", "--block-size", "64", "--world-size", "2", "--json"))
    assert [(row["rank"], row["row"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
