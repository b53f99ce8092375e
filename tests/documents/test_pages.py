"""Parquet, page by page: the texts are those that pyarrow reads, whatever the encoding, codec and size of pages."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.documents import Reading
from shardmill.documents.parquet_pages import Damaged, pages
from shardmill.errors import SourceError
from tests.documents.twin import read_path

SIZES = (3000, 1 << 22)


def _texts(nulls: bool) -> list[str | None]:
    dice = random.Random(7)
    texts: list[str | None] = [*[f"row {i} é " * dice.randrange(12) for i in range(40)] * 2, *["same"] * 40]
    texts[50] = "long " * 2000
    dice.shuffle(texts)
    return [None if nulls and dice.random() < 0.2 else text for text in texts]


ENCODINGS: dict[str, dict[str, object]] = {
    "dictionary": {},
    "falls back": {"dictionary_pagesize_limit": 500, "write_batch_size": 8},
    "plain": {"use_dictionary": False},
    "delta length": {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    "delta bytes": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
}


def _encoding(name: str, column: str) -> dict[str, Any]:
    options = dict(ENCODINGS[name])
    if "column_encoding" in options:
        options["column_encoding"] = {column: options["column_encoding"]}
    return options


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pages_give_the_texts_that_pyarrow_reads(
    tmp_path: Path, encoding: str, codec: str, version: str, nulls: bool
) -> None:
    path = tmp_path / "a.parquet"
    texts = _texts(nulls)
    options = {"data_page_size": 500, "row_group_size": 70, "write_page_checksum": True, **_encoding(encoding, "text")}
    data = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(data, path, compression=codec, data_page_version=version, **options)
    wanted = pq.read_table(path, columns=["text"])["text"].to_pylist()
    for size in SIZES:
        got = read_path(path, size)
        assert got.documents == [text.encode() for text in wanted if text is not None]
        assert [row for row, _ in got.rejects] == [i for i, text in enumerate(wanted) if text is None]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tiny_row_groups_with_dictionaries_are_read(tmp_path: Path, codec: str) -> None:
    path, texts, dice = tmp_path / "a.parquet", _texts(nulls=True), random.Random(3)
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression=codec) as writer:
        at = 0
        while at < len(texts):
            end = at + dice.randrange(1, 4)
            writer.write_table(pa.table({"text": texts[at:end]}, schema))
            at = end
    assert pq.read_metadata(path).num_row_groups > 50
    for size in (*SIZES, 1):
        got = read_path(path, size)
        assert got.documents == [text.encode() for text in texts if text is not None]
        assert [row for row, _ in got.rejects] == [i for i, text in enumerate(texts) if text is None]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_texts_deep_in_structs_are_null_where_anything_above_them_is(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"b": {"c": f"text {i}"}} for i in range(50)] + [None, {"b": None}, {"b": {"c": None}}, {"b": {"c": "end"}}]
    pq.write_table(pa.table({"a": rows}), path, data_page_size=200, **_encoding(encoding, "a.b.c"))
    for size in SIZES:
        got = read_path(path, size, Reading(text_field="a.b.c"))
        assert got.documents == [b"text %d" % i for i in range(50)] + [b"end"]
        assert [row for row, _ in got.rejects] == [50, 51, 52]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ["dictionary", "plain"])
def test_a_page_with_a_wrong_checksum_is_an_error(tmp_path: Path, encoding: str, version: str) -> None:
    path = tmp_path / "a.parquet"
    options = ENCODINGS[encoding] | {"compression": "none", "data_page_version": version}
    pq.write_table(pa.table({"text": ["the first", "the second"]}), path, write_page_checksum=True, **options)
    raw = bytearray(path.read_bytes())
    at = raw.find(b"the second", raw.find(b"the first"))
    while at >= 0:  # wherever it stands, in statistics too
        raw[at + 4 : at + 10] = b"sixth!"
        at = raw.find(b"the second")
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"(?i)crc"):
        read_path(path)


@pytest.mark.parametrize("column", ["text", "a.text"])
def test_the_column_is_found_in_the_footer_by_its_path(tmp_path: Path, column: str) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"row {i}" for i in range(500)]
    other = [f"\x19\x18\x04text {i}" for i in range(500)]
    inside = pa.array([{"text": text} for text in texts])
    data = pa.table({"z": other, "a": inside}) if column == "a.text" else pa.table({"a": range(500), "text": texts})
    pq.write_table(data, path, row_group_size=20)
    got = read_path(path, 1000, Reading(text_field=column))
    assert got.documents == [text.encode() for text in texts]


def test_a_footer_whose_statistics_look_like_the_column_is_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"\x19\x18\x04text {i}" for i in range(100)]
    pq.write_table(pa.table({"a": texts, "text": texts[::-1]}), path, row_group_size=20)
    assert read_path(path, 1000).documents == [text.encode() for text in texts[::-1]]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"])
def test_texts_of_one_length_are_read_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    path, texts = tmp_path / "a.parquet", [b"%04d" % i for i in range(300)]
    data = pa.table({"text": pa.array(texts, pa.binary(4))})
    pq.write_table(data, path, use_dictionary=False, column_encoding={"text": encoding})
    assert read_path(path).documents == texts


@pytest.mark.parametrize(
    "raw", [b"", b"\x15", b"\x15\x80", b"\x1c" * 40, b"\x19\xff\xff\xff\xff", b"\x15" + b"\xff" * 12, b"\x15\0\0"]
)
def test_a_page_header_of_any_bytes_is_damage(raw: bytes) -> None:
    with pytest.raises(Damaged):
        list(pages(lambda start, end: raw[start:end], 0, len(raw), 1))


@pytest.mark.parametrize("bits", range(8))
def test_a_flipped_bit_in_the_footer_gives_documents_or_an_error(tmp_path: Path, bits: int) -> None:
    """Of a column that is damaged there, pyarrow's own objects end the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(60), "text": [f"row {i}" for i in range(60)]}), path, row_group_size=20)
    whole = path.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in random.Random(bits).sample(range(begin, len(whole)), 60):
        raw = bytearray(whole)
        raw[at] ^= 1 << bits
        path.write_bytes(raw)
        with contextlib.suppress(SourceError):
            read_path(path, 300)


def test_an_entry_of_a_dictionary_that_is_not_used_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = pa.array(["a", "bb" * 5000, "ccc"])
    rows = pa.DictionaryArray.from_arrays(pa.array([1, 1, None, 1] * 30, pa.int32()), words)
    pq.write_table(pa.table({"text": rows}), path, data_page_size=100, write_batch_size=10)
    for size in (1, 5000, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"bb" * 5000] * 90
        assert len(got.rejects) == 30
