"""Text out of the real libraries that people keep it in; each is skipped where it is not installed."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import shardmill
from tests.corpus import documents, write_jsonl
from tests.watching import interrupt_after

TEXTS = documents(1200, seed=5)
OPTIONS = {"val": 0.1, "name": "data"}

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    shardmill.prepare(write_jsonl(folder / "a.jsonl", TEXTS), folder / "out", **OPTIONS)
    return bins(folder / "out")


def bins(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


def missing(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def from_polars():
    polars = missing("polars")
    return polars.DataFrame({"id": range(len(TEXTS)), "text": TEXTS})


def from_lazy_polars():
    frame = from_polars()
    return lambda: frame.lazy().collect().iter_slices(100)


def from_pandas():
    return missing("pandas").DataFrame({"text": TEXTS})


def from_duckdb():
    connection = missing("duckdb").connect()
    connection.register("given", pa.table({"id": range(len(TEXTS)), "text": TEXTS}))
    return connection.sql("select text from given order by id")


def from_dataset():
    return missing("datasets").Dataset.from_dict({"text": TEXTS, "id": list(range(len(TEXTS)))})


def from_selected_dataset():
    datasets = missing("datasets")
    return datasets.Dataset.from_dict({"text": ["none of these", *TEXTS[::-1]]}).select(range(len(TEXTS), 0, -1))


def from_iterable_dataset():
    return from_dataset().to_iterable_dataset(num_shards=3)


def from_mapped_dataset():
    rows = missing("datasets").IterableDataset.from_generator(lambda: ({"body": text} for text in TEXTS))
    return rows.map(lambda row: {"text": row["body"]}, remove_columns="body")


WAYS = [from_polars, from_lazy_polars, from_pandas, from_duckdb, from_dataset, from_selected_dataset,
        from_iterable_dataset, from_mapped_dataset]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_library_gives_the_same_dataset_as_a_file_whole_and_resumed(
    tmp_path, whole, way, small_chunks, monkeypatch
):
    monkeypatch.setattr("shardmill.run.checkpoints._EVERY", 0.0)
    given = way()
    interrupt_after(3, given, tmp_path / "out", **OPTIONS)
    made = shardmill.prepare(way(), tmp_path / "out", workers=1, **OPTIONS)
    assert made.resumed and bins(tmp_path / "out") == whole


def streamed(produced, shards=12):
    """An IterableDataset of several shards that tells what was produced."""
    datasets = missing("datasets")

    def given(numbers):
        for number in numbers:
            for text in TEXTS[number * 100 : (number + 1) * 100]:
                produced.append(text)
                yield {"text": text}

    return datasets.IterableDataset.from_generator(given, gen_kwargs={"numbers": list(range(shards))})


def test_the_state_of_an_iterable_dataset_is_used(tmp_path, whole, small_chunks, monkeypatch):
    monkeypatch.setattr("shardmill.run.checkpoints._EVERY", 0.0)
    monkeypatch.setattr("shardmill.documents.from_python._ASKED", 20)
    interrupt_after(6, streamed([]), tmp_path / "out", **OPTIONS)
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    recorded = json.loads(journal[-1])["state"]["position"][0]
    produced = []
    shardmill.prepare(streamed(produced), tmp_path / "out", **OPTIONS)
    assert bins(tmp_path / "out") == whole
    # Not from the beginning: the dataset enters the shard in which it was, and at most that is produced again.
    assert recorded > 150 and len(produced) <= len(TEXTS) - recorded + 100


def test_the_state_of_a_shuffled_dataset_is_not_used_for_it_forgets_its_buffer(tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr("shardmill.run.checkpoints._EVERY", 0.0)

    def shuffled():
        return streamed([]).shuffle(seed=3, buffer_size=200)

    shardmill.prepare(shuffled(), tmp_path / "whole", **OPTIONS)
    interrupt_after(3, shuffled(), tmp_path / "out", **OPTIONS)
    shardmill.prepare(shuffled(), tmp_path / "out", **OPTIONS)
    assert bins(tmp_path / "out") == bins(tmp_path / "whole")


def test_what_is_read_goes_into_a_data_frame(tmp_path):
    polars = missing("polars")
    frame = polars.DataFrame(shardmill.read(write_jsonl(tmp_path / "a.jsonl", TEXTS)))
    assert frame["text"].to_list() == TEXTS
