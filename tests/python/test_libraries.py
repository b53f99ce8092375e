"""Text out of the real libraries that people keep it in; each is skipped where it is not installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardmill
from shardmill.documents.chunks import Position
from shardmill.documents.iterating import Items
from tests.corpus import documents, write_jsonl
from tests.watching import interrupt_after

TEXTS = documents(1200, seed=5)
OPTIONS: dict[str, Any] = {"val": 0.1, "name": "data"}

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    shardmill.prepare(write_jsonl(folder / "a.jsonl", TEXTS), folder / "out", **OPTIONS)
    return bins(folder / "out")


def bins(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


def missing(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def from_polars() -> Any:
    polars = missing("polars")
    return polars.DataFrame({"id": range(len(TEXTS)), "text": TEXTS})


def from_lazy_polars() -> Any:
    frame = from_polars()
    return lambda: frame.lazy().collect().iter_slices(100)


def from_lazy_frame() -> Any:
    return from_polars().lazy()


def from_polars_categories() -> Any:
    polars = missing("polars")
    return polars.DataFrame({"text": polars.Series(TEXTS, dtype=polars.Categorical)})


def from_pandas() -> Any:
    return missing("pandas").DataFrame({"text": TEXTS})


def from_pandas_objects() -> Any:
    # A column of several kinds beside the texts: of that there is no Arrow.
    pandas = missing("pandas")
    return pandas.DataFrame({"text": pandas.Series(TEXTS, dtype=object), "other": [1, "two"] * (len(TEXTS) // 2)})


def from_duckdb() -> Any:
    connection = missing("duckdb").connect()
    connection.register("given", pa.table({"id": range(len(TEXTS)), "text": TEXTS}))
    return connection.sql("select text from given order by id")


def from_dataset() -> Any:
    return missing("datasets").Dataset.from_dict({"text": TEXTS, "id": list(range(len(TEXTS)))})


def from_selected_dataset() -> Any:
    datasets = missing("datasets")
    return datasets.Dataset.from_dict({"text": ["none of these", *TEXTS[::-1]]}).select(range(len(TEXTS), 0, -1))


def from_transformed_dataset() -> Any:
    rows = missing("datasets").Dataset.from_dict({"body": [text[::-1] for text in TEXTS]})
    return rows.with_transform(lambda batch: {"text": [text[::-1] for text in batch["body"]]})


def from_formatted_dataset() -> Any:
    return from_dataset().with_format("numpy", columns=["id"])


def from_iterable_dataset() -> Any:
    return from_dataset().to_iterable_dataset(num_shards=3)


def from_mapped_dataset() -> Any:
    rows = missing("datasets").IterableDataset.from_generator(lambda: ({"body": text} for text in TEXTS))
    return rows.map(lambda row: {"text": row["body"]}, remove_columns="body")


def from_dataset_with_nulls() -> Any:
    def given() -> Iterator[dict[str, Any]]:
        yield from ({"text": text, "score": None if i % 3 else i} for i, text in enumerate(TEXTS))

    return missing("datasets").IterableDataset.from_generator(given)


def from_typed_generator() -> Any:
    datasets = missing("datasets")
    types = datasets.Features({"text": datasets.Value("string"), "id": datasets.Value("int64")})
    rows = [{"text": text, "id": i} for i, text in enumerate(TEXTS)]
    return datasets.IterableDataset.from_generator(lambda: iter(rows), features=types)


WAYS = [from_polars, from_lazy_polars, from_lazy_frame, from_polars_categories, from_pandas, from_pandas_objects,
        from_duckdb, from_dataset, from_selected_dataset, from_transformed_dataset, from_formatted_dataset,
        from_iterable_dataset, from_mapped_dataset, from_dataset_with_nulls, from_typed_generator]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_library_gives_the_same_dataset_as_a_file_whole_and_resumed(
    tmp_path: Path,
    whole: dict[str, bytes],
    way: Callable[..., Any],
    small_chunks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    given = way()
    interrupt_after(3, given, tmp_path / "out", **OPTIONS)
    made = shardmill.prepare(way(), tmp_path / "out", workers=1, **OPTIONS)
    assert made.resumed and bins(tmp_path / "out") == whole


def rejects(folder: Path) -> list[str]:
    return [json.loads(line)["reason"] for line in (folder / "rejects.jsonl").read_text().splitlines()]


def test_what_is_no_text_in_a_frame_or_a_dataset_is_a_reject(tmp_path: Path) -> None:
    pandas, datasets = missing("pandas"), missing("datasets")
    values = ["one", None, 3, float("nan"), "two"] * 30
    frame = pandas.DataFrame({"text": pandas.Series(values, dtype=object)})
    rows = datasets.IterableDataset.from_generator(lambda: ({"text": value} for value in values))
    for name, given in (("pandas", frame), ("column", frame["text"]), ("datasets", rows)):
        made = shardmill.prepare(given, tmp_path / name, val=0)
        assert (made.manifest["documents"], made.manifest["rejected"]) == (60, 90)
        reasons = {"field `text` is null", "field `text` is a number, not a string"}
        assert set(rejects(tmp_path / name)) == reasons


def test_a_frame_without_the_column_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    frame = missing("pandas").DataFrame({"body": ["one"]})
    with pytest.raises(shardmill.ShardmillError, match="no record has the field `text`") as error:
        shardmill.prepare(frame, tmp_path / "out")
    assert "`body`" in error.value.hint


def test_a_dataset_is_entered_by_number_and_only_the_texts_are_read(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = missing("datasets")

    # Of the other column a slice would take more than any memory allows.
    rows = datasets.Dataset.from_dict({"text": TEXTS, "picture": [b"x" * 10_000] * len(TEXTS)})
    asked = []
    monkeypatch.setattr(
        "shardmill.documents.iterating._slices", lambda count, first, rows: asked.append((count, first)) or iter([])
    )
    list(Items(shardmill.Source(rows), "text", Position(700, 700)))
    assert asked == [(len(TEXTS), 700)]
    monkeypatch.undo()
    batches = list(Items(shardmill.Source(rows), "text", Position(700, 700)))
    assert [text for batch in batches for text in batch["text"].to_pylist()] == TEXTS[700:]
    assert {tuple(batch.schema.names) for batch in batches} == {("text",)}
    with pytest.raises(shardmill.ShardmillError, match="there are 1,200 documents, and 1,300 were read"):
        list(Items(shardmill.Source(rows), "text", Position(1300, 1300)))


def test_long_rows_of_a_dataset_come_in_small_slices(tmp_path: Path) -> None:

    rows = missing("datasets").Dataset.from_dict({"text": ["x" * 1_000_000] * 200})
    sizes = [batch.nbytes for batch in Items(shardmill.Source(rows), "text", Position())]
    assert sum(sizes) > 200_000_000 and max(sizes[1:]) < 3_000_000


def one_row_tables() -> Any:
    return pa.concat_tables([pa.table({"text": [text]}) for text in TEXTS])


def large_one_row_tables() -> Any:
    return pa.concat_tables([pa.table({"text": [f"{text} {i} " * 40]}) for i, text in enumerate(TEXTS)])


def shuffled_dataset() -> Any:
    return from_dataset().shuffle(seed=7)


def filtered_dataset() -> Any:
    return from_dataset().filter(lambda row: len(row["text"]) % 2)


@pytest.mark.parametrize("source", [one_row_tables, large_one_row_tables, shuffled_dataset, filtered_dataset])
def test_rows_that_lie_apart_do_not_each_become_a_chunk(source: Callable[[], Any], tmp_path: Path) -> None:
    given = source()
    texts = list(given["text"]) if "dataset" in source.__name__ else given["text"].to_pylist()
    items = list(Items(shardmill.Source(given), "text", Position(0)))
    assert [text for item in items for text in item["text"].to_pylist()] == texts
    assert len(items) < len(texts) / 50
    assert max(item.nbytes for item in items) < 8_000_000
    shardmill.prepare(given, tmp_path / "a", **OPTIONS)
    shardmill.prepare(shardmill.Source(texts), tmp_path / "b", **OPTIONS)
    assert bins(tmp_path / "a") == bins(tmp_path / "b")


def streamed(shards: int = 12) -> Any:
    """An IterableDataset of several shards."""
    datasets = missing("datasets")

    def given(numbers: list[int]) -> Iterator[dict[str, str]]:
        for number in numbers:
            yield from ({"text": text} for text in TEXTS[number * 100 : (number + 1) * 100])

    return datasets.IterableDataset.from_generator(given, gen_kwargs={"numbers": list(range(shards))})


def test_the_state_of_a_streamed_dataset_is_not_used_for_it_may_forget_a_buffer(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)

    def shuffled() -> Any:
        return streamed().shuffle(seed=3, buffer_size=200)

    shardmill.prepare(shuffled(), tmp_path / "whole", **OPTIONS)
    interrupt_after(3, shuffled(), tmp_path / "out", **OPTIONS)
    shardmill.prepare(shuffled(), tmp_path / "out", **OPTIONS)
    assert bins(tmp_path / "out") == bins(tmp_path / "whole")


def test_what_is_read_goes_into_a_data_frame(tmp_path: Path) -> None:
    polars = missing("polars")
    frame = polars.DataFrame(shardmill.read(write_jsonl(tmp_path / "a.jsonl", TEXTS)))
    assert frame["text"].to_list() == TEXTS
