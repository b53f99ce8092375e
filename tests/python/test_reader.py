"""The reader of text from Python against its slow twin: any items, any chunk size, entered after any chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.documents import FreeRoom, Position
from shardmill.documents.from_python import PythonReader
from shardmill.python_sources import PythonSource

texts = st.text(st.sampled_from("ab é漢😀\ud800"), max_size=12)
bad = st.sampled_from([None, 3, b"bytes", {"other": "a"}, {"text": None}, {"text": 1}])
good_texts = st.text(st.sampled_from("ab é漢😀"), max_size=12)
columns = st.lists(st.one_of(good_texts, st.none()), max_size=6).map(lambda column: pa.array(column, pa.string()))
kinds = st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.large_binary()])
tables = st.tuples(columns, kinds).map(lambda made: pa.table({"n": range(len(made[0])), "text": made[0].cast(made[1])}))
numbers = st.lists(st.one_of(st.integers(0, 2), st.none()), max_size=6).map(lambda made: pa.array(made, pa.int8()))
coded = numbers.map(lambda made: pa.table({"text": pa.DictionaryArray.from_arrays(made, pa.array(["é b", None, ""]))}))
batches = st.one_of(tables, coded).map(
    lambda table: (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]
)
items = st.lists(st.one_of(texts, texts.map(lambda text: {"text": text}), bad, tables, coded, batches), max_size=14)


def twin(given_items: list[Any]) -> list[bytes | None]:
    """Every document as its bytes, or None for a reject."""
    found = []
    for item in given_items:
        values = item["text"].to_pylist() if isinstance(item, (pa.Table, pa.RecordBatch)) else [item]
        for value in values:
            text = value.get("text") if isinstance(value, dict) else value
            if isinstance(value, bytes) and not isinstance(item, bytes):
                text = value.decode()
            fine = isinstance(text, str) and "\ud800" not in text
            found.append(text.encode() if fine else None)
    return found


class Stateful:
    def __init__(self, given_items: list[Any]) -> None:
        self.items, self.at = given_items, 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.items):
            self.at += 1
            yield self.items[self.at - 1]


WAYS = [lambda made: made, lambda made: lambda: iter(made), Stateful]


def read(source: Any, size: int, start: Any) -> Any:
    """The documents from a position on, and every position between two chunks."""
    reader = PythonReader(3, source.as_source(3), "text", FreeRoom(), source)
    found, positions, position = [], [], start
    for chunk in reader.chunks(start, size):
        assert (chunk.source, chunk.start) == (3, position.offset)
        documents = reader.read(chunk)
        data = documents.data.tobytes()
        rows: list[bytes | None] = [None] * documents.lines
        for row, (begin, end) in enumerate(pairwise(documents.offsets.tolist())):
            rows[documents.record(row)] = data[begin:end]
        assert [i for i, row in enumerate(rows) if row is None] == [reject.record for reject in documents.rejects]
        assert sum(len(row or b"") for row in rows) == chunk.lease.text
        found += rows
        position = chunk.after._replace(records=chunk.end)
        positions.append(position)
    return found, positions


@given(items, st.sampled_from([1, 40, 100, 1 << 20]), st.sampled_from(WAYS), st.sampled_from([1, 70, 1 << 20]))
@settings(max_examples=200)
def test_any_items_are_read_as_the_twin_reads_them_and_from_any_position_on(
    made: list[Any], size: int, way: Callable[..., Any] | type, later: int
) -> None:
    # What has the field comes first: a source in which no record has it is an error of its own.
    made = [{"text": "first"}, *made]
    expected = twin(made)
    found, positions = read(PythonSource(way(made)), size, Position())
    assert found == expected
    for position in positions:
        rest, _ = read(PythonSource(way(made)), later, position)
        assert rest == expected[position.offset :]
