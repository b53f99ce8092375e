"""Parquet, page by page: the texts are those that pyarrow reads, whatever the encoding, codec and size of pages."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import core
from shardmill.documents import Reading, page_texts, pages
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


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_without_the_core_the_texts_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, version: str
) -> None:
    path, texts = tmp_path / "a.parquet", _texts(nulls=True)
    options = {"data_page_size": 500, "row_group_size": 70, **_encoding(encoding, "text")}
    pq.write_table(pa.table({"text": texts}), path, data_page_version=version, **options)
    monkeypatch.setattr(core, "available", lambda: False)
    for size in SIZES:
        assert read_path(path, size).documents == [text.encode() for text in texts if text is not None]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"])
def test_texts_of_one_length_are_read_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    path, texts = tmp_path / "a.parquet", [b"%04d" % i for i in range(300)]
    data = pa.table({"text": pa.array(texts, pa.binary(4))})
    pq.write_table(data, path, use_dictionary=False, column_encoding={"text": encoding})
    assert read_path(path).documents == texts


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_lz4_is_read_as_hadoop_writes_it_and_raw(blocks: int) -> None:
    text = b"some text, and some text more, " * 30
    step = -(-len(text) // max(1, blocks))
    raw = b""
    for at in range(0, len(text), step):
        block = pa.compress(text[at : at + step], "lz4_raw", asbytes=True)
        raw += struct.pack(">II", len(text[at : at + step]), len(block)) * (blocks > 0) + block
    page = pages.Page(pages.DICTIONARY_PAGE, 0, 0, 0, len(raw), len(text), 0, 0, codec=page_texts.LZ4)
    assert page_texts._content(page, raw).tobytes() == text


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ({"encoding": 4}, "BIT_PACKED"),
        ({"encoding": 77}, "encoding 77"),
        ({"codec": 3}, "codec 3"),
        ({"encoding": 8}, "needs a dictionary, and there is none"),
    ],
)
def test_what_cannot_be_decoded_is_named(page: dict[str, Any], wrong: str) -> None:
    good = pages.Page(pages.DATA, pages.PLAIN, 0, 0, 5, 5, 1, 0, codec=0)
    leaf = pages.Leaf(pages.BYTE_ARRAY, 0, 0, text=True)
    texts = page_texts.PageTexts(good, b"\1\0\0\0x", leaf, None)
    assert [found.tolist() for found in texts.measure(1)] == [[1], [True]] and texts.text(0, 1).tobytes() == b"x"
    with pytest.raises(pages.Damaged, match=wrong):
        page_texts.PageTexts(good._replace(**page), b"\1\0\0\0x", leaf, None)
    # Where there are no levels, some writers name an encoding of them that was given up long ago.
    odd = good._replace(level_encoding=4)
    page_texts.PageTexts(odd, b"\1\0\0\0x", leaf, None)
    with pytest.raises(pages.Damaged, match="BIT_PACKED"):
        page_texts.PageTexts(odd, b"\1\0\0\0x", leaf._replace(levels=1), None)


@pytest.mark.parametrize(
    "raw", [b"", b"\x15", b"\x15\x80", b"\x1c" * 40, b"\x19\xff\xff\xff\xff", b"\x15" + b"\xff" * 12]
)
def test_headers_of_any_bytes_end_in_an_error_that_is_expected(raw: bytes) -> None:
    with pytest.raises((IndexError, pages.Damaged)):
        pages.parsed(raw)
