"""Text from Python into `prepare`: whatever gives the documents, the dataset is that of a file that holds them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardmill
from shardmill.errors import MismatchError, SourceError, UsageError
from tests.corpus import contents, documents, write_jsonl
from tests.crashing import DIFFERENT
from tests.meter import metered_command
from tests.watching import interrupt_after, wait_until

pytestmark = pytest.mark.thorough

TEXTS = documents(1500, seed=4)


def table(texts: Sequence[str | None], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": range(len(texts)), "text": pa.array(texts, kind or pa.string())})


class Again:
    """An iterable that is no list, and counts how often it was begun."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.begun = texts, 0

    def __iter__(self) -> Iterator[str]:
        self.begun += 1
        yield from self.texts


WAYS = {
    "generator": lambda texts: (text for text in texts),
    "iterator": iter,
    "callable": lambda texts: lambda: iter(texts),
    "callable of a list": lambda texts: lambda: texts,
    "iterable": Again,
    "named list": shardmill.Source,
    "map": lambda texts: map(str, texts),
    "array of texts": lambda texts: np.array(texts, object),
    "list of mappings": lambda texts: [{"text": text} for text in texts],
    "mappings": lambda texts: ({"id": i, "text": text} for i, text in enumerate(texts)),
    "table": table,
    "large strings": lambda texts: table(texts, pa.large_string()),
    "string views": lambda texts: table(texts, pa.string_view()),
    "dictionary": lambda texts: table(texts).set_column(1, "text", pa.array(texts).dictionary_encode()),
    "bytes in Arrow": lambda texts: table([text.encode() for text in texts], pa.binary()),
    "column": lambda texts: pa.chunked_array([texts[:100], texts[100:]]),
    "reader": lambda texts: table(texts).to_reader(max_chunksize=170),
    "list of tables": lambda texts: [table(texts[:700]), table([]), table(texts[700:])],
    "batches": lambda texts: iter(table(texts).to_batches(max_chunksize=90)),
    "texts and tables": lambda texts: iter([*texts[:500], table(texts[500:900]), *texts[900:]]),
    "one batch at a time": lambda texts: lambda: (batch for batch in table(texts).to_batches(max_chunksize=1000)),
}
RESUMABLE = ["callable", "iterable", "list of mappings", "string views", "list of tables", "one batch at a time"]


def files(folder: Path) -> dict[str, bytes]:
    """The dataset but for its manifest, which names the sources."""
    return {name: data for name, data in contents(folder).items() if name != "manifest.json"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset of the same documents in a file."""
    folder = tmp_path_factory.mktemp("whole")
    source = write_jsonl(folder / "a.jsonl", TEXTS)
    shardmill.prepare(source, folder / "out", val=0.1, format="shards", shard_tokens=20_000, name="data")
    return files(folder / "out")


OPTIONS: dict[str, Any] = {"val": 0.1, "format": "shards", "shard_tokens": 20_000, "name": "data"}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_documents_makes_the_same_dataset(tmp_path: Path, whole: dict[str, bytes], way: str) -> None:
    result = shardmill.prepare(WAYS[way](TEXTS), tmp_path / "out", **OPTIONS)
    assert files(tmp_path / "out") == whole
    assert result.manifest["documents"] + result.manifest["empty"] == len(TEXTS)
    assert next(iter(result.manifest["sources"]))["name"] == "documents"


@pytest.mark.parametrize("way", RESUMABLE)
def test_an_interrupted_run_goes_on_after_the_last_document(
    tmp_path: Path, whole: dict[str, bytes], way: str, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    interrupt_after(3, WAYS[way](TEXTS), tmp_path / "out", **OPTIONS)
    assert shardmill.prepare(WAYS[way](TEXTS), tmp_path / "out", workers=1, **OPTIONS).resumed
    assert files(tmp_path / "out") == whole


@pytest.mark.parametrize("form", DIFFERENT)
def test_every_format_takes_text_from_python(tmp_path: Path, form: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS[:300])
    shardmill.prepare(source, tmp_path / "file", format=form, name="data")
    shardmill.prepare((text for text in TEXTS[:300]), tmp_path / "out", format=form, name="data")
    assert files(tmp_path / "out") == files(tmp_path / "file")


def test_paths_and_text_from_python_stand_beside_each_other(tmp_path: Path) -> None:
    parts = [write_jsonl(tmp_path / f"{i}.jsonl", TEXTS[i * 100 : (i + 1) * 100]) for i in range(3)]
    shardmill.prepare(parts, tmp_path / "files", val=0)
    made = shardmill.prepare([parts[0], table(TEXTS[100:200]), parts[2]], tmp_path / "mixed", val=0)
    assert files(tmp_path / "mixed") == files(tmp_path / "files")
    names = [source["name"] for source in made.manifest["sources"]]
    assert names == [str(parts[0]), "documents", str(parts[2])]
    two = shardmill.prepare([Again(["one"]), Again(["two"])], tmp_path / "two", val=0)
    assert [source["name"] for source in two.manifest["sources"]] == ["documents", "documents-2"]


BAD = {
    None: "not text but null",
    b"bytes": "not text but bytes",
    7: "not text but a number",
    (1, 2): "not text but a tuple",
    "a \ud800 b": "lone surrogate in the text",
}
BAD_FIELDS = [
    ({}, "field `text` is missing"),
    ({"text": None}, "field `text` is null"),
    ({"text": b"bytes"}, "field `text` is bytes, not a string"),
    ({"text": 1.5}, "field `text` is a number, not a string"),
    ({"text": ["a"]}, "field `text` is an array, not a string"),
    ({"text": "\udfff"}, "lone surrogate in field `text`"),
]


@pytest.mark.parametrize("good", ["text", {"text": "text"}])
def test_what_is_no_document_is_a_reject_with_its_number_and_its_reason(
    tmp_path: Path, good: str | dict[str, str], small_chunks: None
) -> None:
    bad = [*BAD.items(), *BAD_FIELDS]
    given = []
    for value, _ in bad:
        given += [good, good, value]
    result = shardmill.prepare(lambda: iter(given), tmp_path / "out", val=0)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(line["source"], line["document"], line["reason"]) for line in lines] == [
        ("documents", 3 * i + 3, reason) for i, (_, reason) in enumerate(bad)
    ]
    assert result.manifest["documents"] == 2 * len(bad) and result.manifest["rejected"] == len(bad)
    assert lines[1]["excerpt"] == "bytes" and lines[4]["excerpt"] == "a ? b"


def test_nulls_and_bad_bytes_in_arrow_are_rejects_with_their_numbers(tmp_path: Path) -> None:
    column = pa.array([b"one", None, b"\xff\xfe", b"", b"two"], pa.binary())
    made = shardmill.prepare(iter([pa.table({"text": column})] * 2), tmp_path / "out", val=0)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [line["document"] for line in lines] == [2, 3, 7, 8]
    assert (made.manifest["documents"], made.manifest["empty"], made.manifest["rejected"]) == (4, 2, 4)


def test_a_field_may_be_named_and_nested(tmp_path: Path) -> None:
    given = [{"a": {"b": "one"}}, {"a": None}, {"a": 3}, {"a.b": "two"}]
    made = shardmill.prepare(given, tmp_path / "out", val=0, text_field="a.b")
    lines = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert lines == ["field `a.b` is null", "field `a.b` is missing: what should hold it is a number"]
    assert made.manifest["documents"] == 2
    nested = pa.table({"a": [{"b": "one"}, {"b": "two"}]})
    assert shardmill.prepare(nested, tmp_path / "arrow", val=0, text_field="a.b").manifest["documents"] == 2


def test_too_many_bad_documents_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="documents are bad") as error:
        shardmill.prepare(lambda: iter(["good", *[None] * 200]), tmp_path / "out", val=0)
    assert "document 20" in error.value.place


@pytest.mark.parametrize("given", [[{"body": "a"}, {"body": "b"}], pa.table({"body": ["a"]})])
def test_a_field_that_no_record_has_is_an_error_that_names_those_there_are(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SourceError, match="`text`") as error:
        shardmill.prepare(given, tmp_path / "out")
    assert "`body`" in error.value.hint


def test_records_without_the_field_are_rejects_where_others_have_it_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*[{"other": "x"}] * 90, {"text": "one"}, *[{"other": "x"}] * 5]
    for size in (1, 1 << 16):
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", size)
        monkeypatch.setattr("shardmill.run.budget.LARGEST", size)
        made = shardmill.prepare(given, tmp_path / str(size), val=0)
        assert (made.manifest["documents"], made.manifest["rejected"]) == (1, 95)
        for many in (10, 100, 300):
            with pytest.raises(SourceError, match="no record has"):
                shardmill.prepare([{"other": "x"}] * many, tmp_path / "none", val=0, overwrite=True)
            with pytest.raises(SourceError, match="no record has"):
                shardmill.prepare([{"other": "x"}] * many, tmp_path / "none", val=0)


def test_the_iterable_runs_in_one_thread_and_is_asked_only_as_fast_as_tokens_are_written(
    tmp_path: Path, small_chunks: None
) -> None:
    from shardmill.write.writer import Writer

    threads, ahead, written = set(), [], [0]
    write = Writer.write

    def counted(self: Any, batch: Any) -> None:
        write(self, batch)
        written[0] = sum(self.ledger.counts.totals[name] for name in ("documents", "empty"))

    def given() -> Iterator[str]:
        for i in range(12_000):
            threads.add(threading.get_ident())
            ahead.append(i - written[0])
            yield f"document {i} " * 50

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write", counted)
        shardmill.prepare(given, tmp_path / "out", val=0, workers=2)
    assert len(threads) == 1 and threading.get_ident() not in threads
    # The queue holds 16 chunks of 64 KiB, about 100 documents each; without back-pressure it would be all 12,000.
    assert max(ahead) < 6000


class Sad(Exception):
    pass


def test_an_exception_of_the_iterable_comes_with_its_own_traceback_and_the_run_can_be_resumed(
    tmp_path: Path, whole: dict[str, bytes], small_chunks: None
) -> None:
    asked = []

    def given(fails: bool) -> Iterator[str]:
        for i, text in enumerate(TEXTS):
            if fails and i == 1000:
                raise Sad("no more")
            asked.append(i)
            yield text

    with pytest.raises(Sad, match="no more") as error:
        shardmill.prepare(lambda: given(True), tmp_path / "out", **OPTIONS)
    assert any(frame.name == "given" for frame in traceback.extract_tb(error.value.__traceback__))
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    # All that came before is kept, but for a chunk that was not full yet.
    assert json.loads(journal[-1])["state"]["position"]["offset"] > 700
    assert shardmill.prepare(lambda: given(False), tmp_path / "out", **OPTIONS).resumed
    assert files(tmp_path / "out") == whole


def test_an_iterator_is_refused_for_an_unfinished_run_and_taken_for_a_new_one(
    tmp_path: Path, whole: dict[str, bytes], small_chunks: None
) -> None:
    out = tmp_path / "out"
    given = (text for text in TEXTS)
    interrupt_after(2, given, out, **OPTIONS)
    for again in (given, iter(TEXTS), [write_jsonl(tmp_path / "a.jsonl", ["a"]), iter(TEXTS)]):
        with pytest.raises(MismatchError) as error:
            shardmill.prepare(again, out, **OPTIONS)
        assert "second time" in str(error.value) or "other sources or options" in str(error.value)
    given.close()
    with pytest.raises(UsageError, match="used already"):
        shardmill.prepare(given, out, overwrite=True, **OPTIONS)
    shardmill.prepare(iter(TEXTS), out, overwrite=True, **OPTIONS)
    assert files(out) == whole


def test_an_iterator_that_the_feeder_may_have_begun_is_refused_too(tmp_path: Path, small_chunks: None) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    interrupt_after(2, [source, iter(TEXTS)], tmp_path / "out", **OPTIONS)
    with pytest.raises(MismatchError, match="second time"):
        shardmill.prepare([source, iter(TEXTS)], tmp_path / "out", **OPTIONS)


def test_a_callable_that_gives_the_rest_of_a_generator_is_refused(tmp_path: Path) -> None:
    given = iter(TEXTS)
    started = (text for text in given)
    next(started)
    with pytest.raises(UsageError, match="used already"):
        shardmill.prepare(lambda: started, tmp_path / "out")
    with pytest.raises(UsageError, match="returned a int"):
        shardmill.prepare(lambda: 3, tmp_path / "out", overwrite=True)


def test_fewer_documents_than_before_are_noticed(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    interrupt_after(5, Again(TEXTS), tmp_path / "out", **OPTIONS)
    with pytest.raises(SourceError, match="there are 10 documents, and"):
        shardmill.prepare(Again(TEXTS[:10]), tmp_path / "out", **OPTIONS)


def test_name_and_version_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    made = shardmill.prepare(shardmill.Source(["one"], name="crawl", version="1"), tmp_path / "out", val=0)
    again = shardmill.Source(["one"], name="crawl", version="1")
    assert shardmill.prepare(again, tmp_path / "out", val=0).already
    for name, version in (("crawl", "2"), ("other", "1")):
        with pytest.raises(MismatchError):
            shardmill.prepare(shardmill.Source(["x"], name=name, version=version), tmp_path / "out", val=0)
    assert next(iter(made.manifest["sources"]))["name"] == "crawl"


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": 3}, {"version": 2}])
def test_name_and_version_are_texts(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        shardmill.Source(["one"], **wrong)


@pytest.mark.parametrize("wrong", ["text", b"text", 3, None, int, dict])
def test_what_gives_no_documents_is_no_source(wrong: Any) -> None:
    with pytest.raises(UsageError, match="gives no documents"):
        shardmill.Source(wrong)


class Counting:
    """Gives documents, knows how far it is, and tells what it has produced."""

    def __init__(self, texts: Sequence[str], produced: list[int]) -> None:
        self.texts, self.produced, self.at = texts, produced, 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[str]:
        while self.at < len(self.texts):
            self.produced.append(self.at)
            self.at += 1
            yield self.texts[self.at - 1]


class Forgetful(Counting):
    """Its state cannot be written down, so it is not used."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": object()}


def test_a_state_is_used_so_that_nothing_recorded_is_produced_twice(
    tmp_path: Path, whole: dict[str, bytes], small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    interrupt_after(5, Counting(TEXTS, []), tmp_path / "out", **OPTIONS)
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    recorded = json.loads(journal[-1])["state"]["position"]["offset"]
    produced: list[int] = []
    assert recorded > 100
    assert shardmill.prepare(Counting(TEXTS, produced), tmp_path / "out", **OPTIONS).resumed
    assert produced == list(range(recorded, len(TEXTS)))
    assert files(tmp_path / "out") == whole


def test_a_state_that_cannot_be_written_down_is_not_used(
    tmp_path: Path, whole: dict[str, bytes], small_chunks: None
) -> None:
    interrupt_after(5, Forgetful(TEXTS, []), tmp_path / "out", **OPTIONS)
    produced: list[int] = []
    shardmill.prepare(Forgetful(TEXTS, produced), tmp_path / "out", **OPTIONS)
    assert produced == list(range(len(TEXTS))) and files(tmp_path / "out") == whole


def test_a_state_within_tables_and_long_texts_is_exact(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    items = [
        *TEXTS[:200],
        "long words " * 30_000,
        table(TEXTS[200:1300]),
        "short",
        "longer words " * 30_000,
        *TEXTS[1300:],
    ]
    shardmill.prepare(Again(items), tmp_path / "whole", val=0.1)
    for chunks in (1, 3, 5, 8):
        out = tmp_path / str(chunks)
        interrupt_after(chunks, Counting(items, []), out, val=0.1)
        shardmill.prepare(Counting(items, []), out, val=0.1)
        assert files(out) == files(tmp_path / "whole"), chunks


_LARGE = """
import sys, pyarrow as pa, shardmill
texts = ["first", "second", "many words " * 3_000_000, "last"]
given = shardmill.Source({"texts": texts, "table": pa.table({"text": texts})}[sys.argv[1]])
try:
    shardmill.prepare(given, sys.argv[2], val=0, memory="340MB", workers=1)
except shardmill.ShardmillError as error:
    print(error)
made = shardmill.prepare(given, sys.argv[2], val=0, memory="1200MB", workers=1)
print(made.resumed, made.manifest["documents"])
"""


@pytest.mark.parametrize("kind", ["texts", "table"])
def test_a_document_larger_than_the_memory_ends_the_run_with_its_place_and_with_more_it_goes_on(
    tmp_path: Path, kind: str
) -> None:
    run = metered_command([sys.executable, "-c", _LARGE, kind, str(tmp_path / "out")])
    assert run.code == 0, run.err
    assert "larger than the memory allows" in run.out and "place: documents, document 3" in run.out
    assert '`memory="' in run.out and run.out.endswith("True 4\n")


def test_the_end_of_text_from_python_cannot_be_set_aside(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only for plain text"):
        shardmill.prepare(Again(["one"]), tmp_path / "out", val="tail:0.1")


def test_an_iterator_of_paths_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(UsageError, match="gives paths") as error:
        shardmill.prepare(tmp_path.glob("*.jsonl"), tmp_path / "out")
    assert "list" in error.value.hint


def test_limit_and_first_count_documents_from_python(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    limits: list[dict[str, Any]] = [{"limit": 700}, {"limit": "9000 tokens"}, {"val": "first:5000"}]
    for number, options in enumerate(limits):
        shardmill.prepare(source, tmp_path / f"file{number}", **options)
        shardmill.prepare(Again(TEXTS), tmp_path / f"out{number}", **options)
        assert files(tmp_path / f"out{number}") == files(tmp_path / f"file{number}")


_GIVEN = """
import sys, shardmill
from tests.corpus import documents
texts = documents(300, seed=9)

def given():
    for i in range(500):
        for text in texts:
            yield f"{text} {i}"

if __name__ == "__main__":
    shardmill.prepare(given, sys.argv[1], val=0.1, format="shards", shard_tokens=300_000, name="data",
                      memory=sys.argv[2], workers=int(sys.argv[3]))
"""


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    script = tmp_path / "given.py"
    script.write_text(_GIVEN)
    command = [sys.executable, str(script)]
    project = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    subprocess.run([*command, str(tmp_path / "whole"), "1GB", "2"], check=True, env=project)
    out, kills, draw = tmp_path / "out", 0, random.Random(1)
    journal = out / ".shardmill" / "journal.jsonl"

    def size() -> int:
        return journal.stat().st_size if journal.exists() else 0

    while not (out / "manifest.json").exists():
        before, settings = size(), [("400MB", "1"), ("1GB", "2")][kills % 2]
        with subprocess.Popen([*command, str(out), *settings], env=project) as run:
            wait_until(lambda: run.poll() is not None or size() not in (0, before))  # noqa: B023 - called within this turn
            try:
                run.wait(timeout=draw.random() / 10 if kills < 4 else None)
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
    assert kills > 0
    assert contents(out) == contents(tmp_path / "whole")


_FAST = """
import sys, numpy as np, pyarrow as pa, shardmill
text = "so many words that nobody reads them, 12345 numbers. " * 60
kind, out = sys.argv[1], sys.argv[2]

def texts():
    for i in range(30_000):
        yield f"{i} {text}"

def batches():
    for i in range(30):
        yield pa.record_batch({"text": [f"{i} {k} {text}" for k in range(1000)], "more": np.zeros(1000)})

shardmill.prepare({"texts": texts, "batches": batches}[kind], out, memory="400MB", val=0, workers=2)
"""


@pytest.mark.parametrize("kind", ["texts", "batches"])
def test_memory_is_bounded_whatever_the_iterable_gives(tmp_path: Path, kind: str) -> None:
    run = metered_command([sys.executable, "-c", _FAST, kind, str(tmp_path / "out")])
    assert run.code == 0, run.err
    assert run.peak < 400_000_000
