"""Parquet, Arrow and CSV: rows in, the same documents out, whatever the types, batches and chunk sizes."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core import CoreError, gathered
from shardmill.documents import FreeRoom, Reading
from shardmill.documents.columns import ROW_TEXT
from shardmill.errors import SourceError
from tests.documents.twin import (
    COMPRESSIONS,
    arrow_bytes,
    csv_bytes,
    jsonl_bytes,
    parquet_bytes,
    read_path,
    table,
)

TEXTS: list[str | None] = [
    "plain", "", "two\nlines", "é 日本語 😀", 'quoted "text", with a comma', "tab\there", "x" * 500, " white ",
    "\u2028", "NA", "null", "\r\n", *[f"row {i} " * (i % 5) for i in range(60)],
]  # fmt: skip
SIZES = (1, 10, 100, 1000, 1 << 22)

WRITERS = {
    "a.parquet": lambda data: parquet_bytes(data),
    "one-group.parquet": lambda data: parquet_bytes(data, rows=10_000),
    "plain.parquet": lambda data: parquet_bytes(data, use_dictionary=False, compression="zstd"),
    "v2.parquet": lambda data: parquet_bytes(data, data_page_version="2.0", data_page_size=64),
    "a.arrow": lambda data: arrow_bytes(data),
    "lz4.feather": lambda data: arrow_bytes(data, compression="lz4"),
    "zstd.arrow": lambda data: arrow_bytes(data, stream=True, compression="zstd"),
    "stream.arrow": lambda data: arrow_bytes(data, stream=True),
    "a.csv": lambda data: csv_bytes(data),
    "a.tsv": lambda data: csv_bytes(data, "\t"),
    "a.jsonl": lambda data: jsonl_bytes(data["text"].to_pylist()),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_every_format_in_every_compression_gives_the_same_documents(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(COMPRESSIONS[ending](WRITERS[name](table(TEXTS))))
    if ending and "parquet" in name:
        with pytest.raises(SourceError, match="parquet cannot be read from a stream") as caught:
            read_path(path)
        assert caught.value.hint
        return
    wanted = [(text or "").encode() for text in TEXTS]
    for size in SIZES:
        got = read_path(path, size)
        assert got.documents == wanted
        assert got.records == list(range(len(TEXTS)))
        assert not got.rejects
        assert all(cost <= max(2 * size, 600) for cost in got.costs[:-1]) or name.endswith("jsonl")


@pytest.mark.parametrize("name", [name for name in WRITERS if "csv" not in name and "tsv" not in name])
@pytest.mark.parametrize("where", [0, 30, -1])
def test_a_null_is_a_reject_with_its_row(tmp_path: Path, name: str, where: int) -> None:
    texts = list(TEXTS)
    texts[where] = None
    path = tmp_path / name
    path.write_bytes(WRITERS[name](table(texts)))
    row = where % len(texts)
    for size in SIZES:
        got = read_path(path, size)
        assert got.documents == [text.encode() for text in texts if text is not None]
        assert got.rejects == [(row, "field `text` is null")]
        assert got.records == [i for i in range(len(texts)) if i != row]


KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "small dictionary": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_text_column_is_read(tmp_path: Path, form: str, kind: str) -> None:
    texts = ["a", "", None, "é" * 20, "b", None, "a", "a"] * 5
    column = pa.array(texts, pa.large_string()).cast(KINDS[kind].value_type if "dict" in kind else KINDS[kind])
    column = column.dictionary_encode().cast(KINDS[kind]) if "dict" in kind else column
    data = pa.table({"text": column, "n": range(len(texts))})
    path = tmp_path / f"a.{form}"
    try:
        path.write_bytes(parquet_bytes(data) if form == "parquet" else arrow_bytes(data))
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow cannot write it")
    for size in (1, 50, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [text.encode() for text in texts if text is not None]
        assert [record for record, _ in got.rejects] == [i for i, text in enumerate(texts) if text is None]


def test_a_column_of_fixed_width_bytes_is_read(tmp_path: Path) -> None:
    data = pa.table({"text": pa.array([b"abcd", b"efgh", b"\xff\xff\xff\xff"], pa.binary(4))})
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet_bytes(data))
    got = read_path(path)
    assert got.documents == [b"abcd", b"efgh"] and got.rejects == [(2, "invalid UTF-8")]


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("where", [0, 20, 39])
def test_a_row_that_is_not_utf_8_is_a_reject(tmp_path: Path, form: str, where: int) -> None:
    rows = [b"row %d" % i for i in range(40)]
    rows[where] = b"bad \xff row"
    data = pa.table({"text": pa.array(rows, pa.binary())})
    made = {
        "parquet": lambda: parquet_bytes(data),
        "arrow": lambda: arrow_bytes(data),
        "csv": lambda: b"text\n" + b"\n".join(rows),
    }
    path = tmp_path / f"a.{form}"
    path.write_bytes(made[form]())
    for size in (1, 50, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [row for i, row in enumerate(rows) if i != where]
        assert got.rejects == [(where, "invalid UTF-8")]


def test_a_string_column_that_lies_about_utf_8_is_not_believed(tmp_path: Path) -> None:
    rows = pa.array([b"a", b"\xff", b"b"], pa.binary())
    lying = pa.StringArray.from_buffers(3, rows.buffers()[1], rows.buffers()[2])
    path = tmp_path / "a.arrow"
    path.write_bytes(arrow_bytes(pa.table({"text": lying})))
    got = read_path(path)
    assert got.documents == [b"a", b"b"] and got.rejects == [(1, "invalid UTF-8")]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_nested_column_is_read(tmp_path: Path, form: str) -> None:
    rows = [{"b": "x", "c": 1}, {"b": None, "c": 2}, None, {"b": "y", "c": 3}]
    data = pa.table({"a": pa.array(rows), "d": [1, 2, 3, 4]})
    path = tmp_path / f"a.{form}"
    path.write_bytes(parquet_bytes(data) if form == "parquet" else arrow_bytes(data))
    for size in (1, 1 << 22):
        got = read_path(path, size, Reading(text_field="a.b"))
        assert got.documents == [b"x", b"y"]
        assert got.rejects == [(1, "field `a.b` is null"), (2, "field `a.b` is null")]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_column_whose_name_has_a_dot_is_read(tmp_path: Path, form: str) -> None:
    data = pa.table({"a.b": ["x", "y"]})
    path = tmp_path / f"a.{form}"
    path.write_bytes(parquet_bytes(data) if form == "parquet" else arrow_bytes(data))
    assert read_path(path, 10, Reading(text_field="a.b")).documents == [b"x", b"y"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow", "a.csv", "a.tsv"])
def test_a_missing_column_is_an_error_that_names_the_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(WRITERS[name](table(TEXTS)))
    with pytest.raises(SourceError, match="no column `content`") as caught:
        read_path(path, 10, Reading(text_field="content"))
    assert caught.value.hint and "`id`, `text`" in caught.value.hint


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_column_of_numbers_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(WRITERS[name](table(TEXTS)))
    with pytest.raises(SourceError, match="holds int64, not text"):
        read_path(path, 10, Reading(text_field="id"))


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith("jsonl")])
def test_no_rows_are_no_documents(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(WRITERS[name](table([])))
    got = read_path(path)
    assert not got.documents and not got.rejects


def test_a_dictionary_of_long_values_is_cut_into_chunks_of_the_right_size(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts: list[str | None] = ["x" * 100_000, "y"] * 500
    path.write_bytes(parquet_bytes(table(texts), rows=10_000))
    assert path.stat().st_size < 100_000
    got = read_path(path, 1_000_000)
    assert got.documents == [text.encode() for text in texts if text]
    assert max(got.costs) <= 1_100_000


def test_a_dictionary_of_a_few_long_values_among_many_is_weighed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rare: list[str | None] = [f"{i:09}" * 200 for i in range(3000)]
    texts = [*["x" * 300_000] * 100, *rare, *["x" * 300_000] * 100]
    path.write_bytes(parquet_bytes(table(texts), rows=10_000))
    assert path.stat().st_size < 10_000_000
    got = read_path(path, 1_000_000)
    assert got.documents == [text.encode() for text in texts if text]
    assert max(got.costs) <= 2_000_000


def test_a_dictionary_that_repeats_a_long_value_is_read_in_small_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts: list[str | None] = ["x" * 900_000] * 100
    path.write_bytes(parquet_bytes(table(texts), rows=10_000))
    got = read_path(path, 1_000_000)
    assert got.documents == [b"x" * 900_000] * 100
    assert max(got.costs) == 900_000


def test_rows_that_grow_within_a_row_group_do_not_make_chunks_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts: list[str | None] = [*["a"] * 5000, *(f"{i:05}" * 4000 for i in range(200))]
    path.write_bytes(parquet_bytes(table(texts), rows=100_000, use_dictionary=False))
    got = read_path(path, 100_000)
    assert got.documents == [text.encode() for text in texts if text]
    assert max(got.costs) <= 120_000


def test_a_row_group_of_many_empty_rows_is_cut_by_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(arrow_bytes(table([""] * 1000), rows=1000))
    got = read_path(path, 100 * ROW_TEXT)
    assert got.documents == [b""] * 1000 and got.chunks == 10


def test_only_the_text_column_of_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 10, "junk": ["j" * 1000] * 10}), path, compression=None)
    data = bytearray(path.read_bytes())
    at = data.find(b"j" * 1000)
    data[at : at + 1000] = b"\xff" * 1000
    path.write_bytes(data)
    assert read_path(path).documents == [b"a"] * 10


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_of_an_arrow_batch_larger_than_memory_allows_only_a_row_that_is_too_large_ends_the_run(
    tmp_path: Path, compression: str | None, ending: str
) -> None:
    path = tmp_path / f"a.arrow{ending}"
    texts: list[str | None] = ["a" * 60_000, "b" * 90_000, "c" * 3_000_000, "d" * 90_000] * 2
    path.write_bytes(COMPRESSIONS[ending](arrow_bytes(table(texts), rows=100, compression=compression)))
    got = read_path(path, 100, room=FreeRoom(100_000))
    assert got.documents == [text.encode() for text in texts if text and len(text) < 100_000]
    assert got.too_large == [3_000_000] * 2 and [record for record, _ in got.rejects] == [2, 6]


def test_two_parquet_columns_of_one_dotted_name_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for columns in ({"a.b": ["x"], "a": [{"b": "y"}]}, {"a": [{"b": "y"}], "a.b": ["x"]}):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(SourceError, match=r"two columns `a\.b`"):
            read_path(path, 100, Reading(text_field="a.b"))
    pq.write_table(pa.table({"a": [{"c": "y"}], "a.b": ["x"]}), path)
    assert read_path(path, 100, Reading(text_field="a.b")).documents == [b"x"]


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_two_columns_of_one_name_are_an_error_that_says_so(tmp_path: Path, ending: str) -> None:
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(twice, path)
    else:
        path.write_bytes(arrow_bytes(twice))
    with pytest.raises(SourceError, match="two columns `text`"):
        read_path(path)


@pytest.mark.parametrize("footer", ["plain", "encrypted"])
def test_encrypted_parquet_is_not_called_damaged(tmp_path: Path, footer: str) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[name-defined]
        def wrap_key(self, key: bytes, master: str) -> bytes:
            return base64.b64encode(key)

    rows = pa.table({"text": ["x"] * 100, "other": ["y"] * 100})
    settings = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=footer == "plain"
    )
    keys = encryption.CryptoFactory(lambda _: Keys())
    made = keys.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema, encryption_properties=made) as writer:
        writer.write_table(rows)
    with pytest.raises(SourceError, match="is encrypted"):
        read_path(tmp_path / "a.parquet")
    if footer == "plain":
        assert read_path(tmp_path / "a.parquet", 100, Reading(text_field="other")).documents == [b"y"] * 100


@pytest.mark.parametrize(
    ("starts", "lengths"), [([0, 8], [4, 3]), ([11], [0]), ([-2], [2]), ([4], [-1]), ([0, 4], [1 << 62, 1 << 62])]
)
def test_texts_outside_of_their_data_are_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(CoreError):
        gathered(np.arange(10, dtype=np.uint8), np.array(starts, np.int64), np.array(lengths, np.int64))


def test_texts_are_copied_one_after_another() -> None:
    data = np.frombuffer(b"0123456789", np.uint8)
    assert gathered(data, np.array([4, 0, 9, 2]), np.array([2, 4, 1, 0])).tobytes() == b"4501239"
    assert len(gathered(data, np.array([], np.int64), np.array([], np.int64))) == 0
