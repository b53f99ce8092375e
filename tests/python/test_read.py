"""`shardmill.read`: the readers alone give every document once, in order, with its place, in bounded memory."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.errors import SourceError, UsageError
from tests.corpus import contents, documents, write_jsonl
from tests.meter import metered_command
from tests.reference import twin
from tests.watching import interrupt_after

TEXTS = documents(1200, seed=8)


def rows(read: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    batches = list(read)
    assert all(batch.schema.names == ["text", "source", "place", "reject"] for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def make(folder: Path) -> list[str]:
    """Sources of every kind, and the texts that are in them."""
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", TEXTS[:300])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    pq.write_table(pa.table({"text": TEXTS[300:800]}), folder / "c.parquet", row_group_size=70)
    pa.feather.write_feather(pa.table({"text": TEXTS[800:]}), folder / "d.feather", chunksize=50)
    for i in range(5):
        (folder / f"e{i}.txt").write_text(f"file {i}", newline="")
    return [*TEXTS[:300], *TEXTS[:300], *TEXTS[300:], *(f"file {i}" for i in range(5))]


def test_every_document_comes_once_in_order_with_its_source_and_place(tmp_path: Path, small_chunks: None) -> None:
    expected = make(tmp_path / "in")
    read = shardmill.read(tmp_path / "in")
    found = rows(read)
    assert [row["text"] for row in found] == expected
    names = {row["source"].rsplit("/")[-1]: row for row in found}
    assert list(names) == ["a.jsonl", "b.jsonl.gz", "c.parquet", "d.feather", *(f"e{i}.txt" for i in range(5))]
    places = [names[name]["place"] for name in list(names)[:5]]
    assert places == ["line 300", "line 300", "row 500", "row 400", "document 1"]
    assert rows(read) == found, "it can be read again"
    assert not any(row["reject"] for row in found)


def test_several_sources_and_a_separator(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree")
    (tmp_path / "b.txt").write_text("four")
    found = rows(shardmill.read(tmp_path / "a.txt", tmp_path / "b.txt", separator=r"\n\n"))
    assert [(row["text"], row["place"]) for row in found] == [
        ("one", "document 1"), ("two", "document 2"), ("three", "document 3"), ("four", "document 1"),
    ]  # fmt: skip
    assert rows(shardmill.read([tmp_path / "a.txt", tmp_path / "b.txt"], separator=r"\n\n")) == found


def test_a_bad_record_has_no_text_and_the_reason_stands_beside_it(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one"}\nnot json\n\n{"text": null}\n{"text": ""}\n{"text": "two"}\n')
    found = rows(shardmill.read(source))
    assert [(row["text"], row["place"]) for row in found] == [
        ("one", "line 1"), (None, "line 2"), (None, "line 4"), ("", "line 5"), ("two", "line 6"),
    ]  # fmt: skip
    assert [bool(row["reject"]) for row in found] == [False, True, True, False, False]


def test_what_is_read_is_what_prepare_would_encode(tmp_path: Path, small_chunks: None) -> None:
    make(tmp_path / "in")
    shardmill.prepare(tmp_path / "in", tmp_path / "direct", val=0.1)
    shardmill.prepare(shardmill.read(tmp_path / "in"), tmp_path / "read", val=0.1)
    direct, read = contents(tmp_path / "direct"), contents(tmp_path / "read")
    # What is read has another source: manifest and documents tables name it.
    for name in ("manifest.json", "documents/train.npy", "documents/val.npy"):
        assert direct.pop(name) != read.pop(name)
    assert direct and direct == read


def test_a_filter_between_read_and_prepare_keeps_the_promises(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    expected = make(tmp_path / "in")

    def long_ones() -> Iterator[pa.RecordBatch]:
        for batch in shardmill.read(tmp_path / "in"):
            yield batch.filter(pc.greater(pc.utf8_length(batch["text"]), 200))

    kept = [text for text in expected if len(text) > 200]
    shardmill.prepare(write_jsonl(tmp_path / "kept.jsonl", kept), tmp_path / "whole", val=0.1)
    source = shardmill.Source(long_ones, name="long", version=shardmill.read(tmp_path / "in").fingerprint)
    interrupt_after(3, source, tmp_path / "out", val=0.1)
    made = shardmill.prepare(source, tmp_path / "out", val=0.1, workers=1)
    assert made.resumed and made.manifest["documents"] == len(kept)
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_its_fingerprint_knows_of_a_changed_source(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one"])
    before = shardmill.read(source)
    shardmill.prepare(before, tmp_path / "out", val=0)
    assert shardmill.read(source).fingerprint == before.fingerprint
    assert shardmill.read(source, text_field="id").fingerprint != before.fingerprint
    write_jsonl(source, ["one", "two"])
    assert shardmill.read(source).fingerprint != before.fingerprint
    with pytest.raises(SourceError, match="changed"):
        list(before)
    with pytest.raises(shardmill.ShardmillError, match="other sources or options"):
        shardmill.prepare(shardmill.read(source), tmp_path / "out", val=0)


def test_it_is_an_arrow_stream_for_others(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS[:50])
    assert pa.table(shardmill.read(source))["text"].to_pylist() == TEXTS[:50]


@pytest.mark.parametrize("call", [lambda: shardmill.read(), lambda: shardmill.read("nowhere.txt"),
                                  lambda: shardmill.read("a", val=0), lambda: shardmill.read(3)])  # fmt: skip
def test_a_wrong_call_is_refused_at_once(call: Callable[..., Any]) -> None:
    with pytest.raises(UsageError):
        call()


_READ = """
import sys, pyarrow.compute as pc, shardmill
count = 0
for batch in shardmill.read(sys.argv[1], separator=sys.argv[2] or None, memory="300MB"):
    count += pc.sum(pc.binary_length(batch["text"])).as_py()
print(count)
"""


def test_memory_is_bounded_and_a_document_without_room_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    with open(source, "w") as file:
        file.writelines("so many words that nobody reads them\n" * 100_000 for _ in range(40))
    run = metered_command([sys.executable, "-c", _READ, str(source), r"\n"])
    assert run.code == 0, run.err
    assert int(run.out) == source.stat().st_size - 4_000_000 and run.peak < 300_000_000
    run = metered_command([sys.executable, "-c", _READ, str(source), ""])
    assert run.code == 1 and "a document of 148,000,000 bytes is larger than the memory allows" in run.err
    assert run.peak < 300_000_000


def test_within_a_run_it_reads_in_the_memory_of_the_run(tmp_path: Path) -> None:
    from shardmill.run.budget import thread_budget

    source, seen = write_jsonl(tmp_path / "a.jsonl", TEXTS), []

    def given(**options: Any) -> Iterator[pa.RecordBatch]:
        for batch in shardmill.read(source, **options):
            seen.append((thread_budget().memory, batch.num_rows))
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
        patch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
        shardmill.prepare(given, tmp_path / "out", memory="4GB", workers=1)
        assert {memory for memory, _ in seen} == {4_000_000_000} and len(seen) > 3
    assert thread_budget() is None


def test_the_twin_reads_the_same(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS[:200])
    with open(source, "a") as file:
        file.write(json.dumps({"id": 3}) + "\n")
    expected = twin(source)
    found = rows(shardmill.read(source))
    assert [row["text"] for row in found if row["text"]] == expected.texts
    assert sum(row["reject"] is not None for row in found) == expected.rejected
