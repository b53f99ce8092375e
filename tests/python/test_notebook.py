"""Cells of a notebook that are run again: the same data is complete, and changed data never gives the old dataset."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardmill
from shardmill.errors import MismatchError, SourceError
from tests.corpus import contents, documents
from tests.watching import interrupt_after

TEXTS = [text for text in documents(120, seed=3) if text]
Container = Callable[[list[Any]], Any]


def _pandas(texts: list[Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame({"text": texts, "id": range(len(texts))})


def _polars(texts: list[Any]) -> Any:
    return pytest.importorskip("polars").DataFrame({"text": texts, "id": range(len(texts))})


def _dataset(texts: list[Any]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict({"text": texts, "id": list(range(len(texts)))})


def _chunked(texts: list[Any]) -> pa.Table:
    """A table of batches of random sizes, some empty."""
    draw, parts, first = random.Random(len(texts)), [], 0
    while first < len(texts):
        count = draw.randrange(9)
        parts.append(pa.table({"text": pa.array(texts[first : first + count], pa.string())}))
        first += count
    return pa.concat_tables(parts)


CONTAINERS: dict[str, Container] = {
    "list of texts": lambda texts: shardmill.Source(list(texts)),
    "tuple of texts": lambda texts: shardmill.Source(tuple(texts)),
    "list of dicts": lambda texts: [{"text": text, "id": i} for i, text in enumerate(texts)],
    "table": lambda texts: pa.table({"text": texts}),
    "table of large strings": lambda texts: pa.table({"text": pa.array(texts, pa.large_string())}),
    "table of many batches": _chunked,
    "slice of a table": lambda texts: pa.table({"text": ["before", *texts, "after"]}).slice(1, len(texts)),
    "list of record batches": lambda texts: _chunked(texts).to_batches(),
    "column": lambda texts: pa.array(texts, pa.string()),
    "pandas": _pandas,
    "polars": _polars,
    "datasets": _dataset,
}
CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "one letter": lambda texts: [*texts[:50], texts[50] + "s", *texts[51:]],
    "shorter": lambda texts: texts[:50],
    "one more": lambda texts: [*texts, "more"],
    "another order": lambda texts: [texts[1], texts[0], *texts[2:]],
    "another border": lambda texts: [texts[0][:-1], texts[0][-1] + texts[1], *texts[2:]],
    "a null": lambda texts: [*texts[:50], None, *texts[51:]],
    "an empty one": lambda texts: ["", *texts],
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_cell_that_is_run_again_is_complete_and_changed_data_is_refused(tmp_path: Path, kind: str) -> None:
    make, out = CONTAINERS[kind], tmp_path / "out"
    options: dict[str, Any] = {"val": 0.1, "max_bad": "any"}
    shardmill.prepare(make(TEXTS), out, **options)
    made = contents(out)
    assert shardmill.prepare(make(TEXTS), out, **options).already
    for change, edit in CHANGES.items():
        with pytest.raises(MismatchError) as error:
            shardmill.prepare(make(edit(TEXTS)), out, **options)
        said = "documents, now" if len(edit(TEXTS)) != len(TEXTS) else "other text or another order"
        assert said in str(error.value), change
        assert "overwrite=True" in str(error.value)
        assert contents(out) == made
    shardmill.prepare(make(TEXTS[:50]), out, **options, overwrite=True)
    shardmill.prepare(make(TEXTS[:50]), tmp_path / "alone", **options)
    assert contents(out) == contents(tmp_path / "alone") != made
    assert shardmill.prepare(make(TEXTS[:50]), out, **options).already


@pytest.mark.parametrize(
    "texts", [TEXTS, ["a", None, "", "é\U0001f600" * 9, None], ["only"]], ids=["many", "odd", "one"]
)
def test_the_same_content_in_another_container_is_complete(tmp_path: Path, texts: list[Any]) -> None:
    options: dict[str, Any] = {"val": 0, "max_bad": "any"}
    shardmill.prepare(pa.table({"text": texts}), tmp_path / "out", **options)
    for kind, make in CONTAINERS.items():
        if None in texts and kind in ("list of texts", "tuple of texts"):
            continue  # a None that is no field's has another reason in `rejects.jsonl`
        assert shardmill.prepare(make(texts), tmp_path / "out", **options).already, kind


def test_other_columns_do_not_matter_and_the_text_field_does(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS, "title": [f"title {i}" for i in range(len(TEXTS))]})
    shardmill.prepare(table, tmp_path / "out")
    assert shardmill.prepare(table.select(["text"]), tmp_path / "out").already
    with pytest.raises(MismatchError):
        shardmill.prepare(table, tmp_path / "out", text_field="title")


def test_data_that_was_changed_in_place_is_refused(tmp_path: Path) -> None:
    texts = list(TEXTS)
    source = shardmill.Source(texts)
    shardmill.prepare(source, tmp_path / "out")
    texts[3] += "!"
    with pytest.raises(MismatchError, match="other text"):
        shardmill.prepare(source, tmp_path / "out")


@pytest.mark.parametrize("kind", ["list of texts", "table of many batches", "pandas", "datasets"])
def test_an_interrupted_run_is_resumed_with_the_same_data_only(tmp_path: Path, small_chunks: None, kind: str) -> None:
    make, out = CONTAINERS[kind], tmp_path / "out"
    texts = [text for text in documents(800, seed=4) if text]
    interrupt_after(2, make(texts), out)
    for edit in CHANGES.values():
        with pytest.raises(MismatchError, match="an unfinished run of other sources or options"):
            shardmill.prepare(make(edit(texts)), out, max_bad="any")
    assert shardmill.prepare(make(texts), out).resumed
    shardmill.prepare(make(texts), tmp_path / "alone")
    assert contents(out) == contents(tmp_path / "alone")


def _code(texts: list[Any]) -> dict[str, Any]:
    """Sources that run code of the caller's."""

    class Iterable:
        def __iter__(self) -> Iterator[Any]:
            return iter(texts)

    return {
        "generator": (text for text in texts),
        "function": lambda: iter(texts),
        "function that returns a list": lambda: texts,
        "object": Iterable(),
        "reader": pa.table({"text": texts}).to_reader(),
    }


@pytest.mark.parametrize("kind", _code([]))
def test_code_needs_a_version_where_there_is_a_dataset(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    shardmill.prepare(_code(TEXTS)[kind], out)
    made = contents(out)
    for texts in (TEXTS, TEXTS[:50]):
        with pytest.raises(MismatchError) as error:
            shardmill.prepare(_code(texts)[kind], out)
        assert "version=" in str(error.value) and "overwrite=True" in str(error.value)
    assert contents(out) == made
    shardmill.prepare(shardmill.Source(_code(TEXTS)[kind], version="1"), out, overwrite=True)
    assert contents(out)["train.bin"] == made["train.bin"]
    assert shardmill.prepare(shardmill.Source(_code(TEXTS)[kind], version="1"), out).already
    with pytest.raises(MismatchError, match="another version"):
        shardmill.prepare(shardmill.Source(_code(TEXTS)[kind], version="2"), out)


@pytest.mark.parametrize("kind", ["function", "function that returns a list", "object"])
@pytest.mark.parametrize("later", [1 << 12, 1 << 20])
def test_an_interrupted_run_of_code_goes_on_only_if_it_gives_the_same_documents_again(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch, kind: str, later: int
) -> None:
    texts = [text for text in documents(800, seed=4) if text]
    out = tmp_path / "out"
    interrupt_after(2, _code(texts)[kind], out)
    monkeypatch.setattr("shardmill.run.budget.LARGEST", later)
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", later)
    for changed in (["other", *texts[1:]], texts[1:], [texts[1], texts[0], *texts[2:]], texts[:3]):
        with pytest.raises(SourceError, match="when this run began") as error:
            shardmill.prepare(_code(changed)[kind], out)
        assert "overwrite=True" in str(error.value)
    assert shardmill.prepare(_code(texts)[kind], out).resumed
    shardmill.prepare(_code(texts)[kind], tmp_path / "alone")
    assert contents(out) == contents(tmp_path / "alone")


def test_the_fingerprint_of_what_is_read_depends_on_the_content_of_data() -> None:
    found = {shardmill.read(pa.table({"text": texts})).fingerprint for texts in (TEXTS, TEXTS[1:], TEXTS[::-1])}
    assert len(found) == 3
    assert shardmill.read(_chunked(TEXTS)).fingerprint == shardmill.read(pa.table({"text": TEXTS})).fingerprint
