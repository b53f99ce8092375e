"""CSV: rows that are wrong, long or strange, and headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.documents import Reading, delimited
from shardmill.errors import SourceError
from tests.documents.twin import (
    COMPRESSIONS,
    read_path,
)


def test_rows_of_csv_with_too_many_or_too_few_fields_are_rejects(tmp_path: Path) -> None:
    lines = [b"id,text", b"0,a", b"1,b,c", b"", b'3,"x\ny"', b"4", b"5,e", b"6,f,g,h", b"7", b"8,i", b"9"]
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n".join(lines))
    for size in (1, 3, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"a", b"x\ny", b"e", b"i"]
        assert got.records == [0, 2, 4, 7]
        assert got.rejects == [
            (1, "3 fields where the header has 2"),
            (3, "1 field where the header has 2"),
            (5, "4 fields where the header has 2"),
            (6, "1 field where the header has 2"),
            (8, "1 field where the header has 2"),
        ]


def test_a_csv_row_that_is_wrong_in_two_ways_is_one_reject(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n0,a\n1,b\xff,c\n2,d\xe2\x82\n3,\xf0\x9f\x98\x80\n")
    for size in (1, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"a", "😀".encode()]
        assert got.rejects == [(1, "3 fields where the header has 2"), (2, "invalid UTF-8")]


def test_a_csv_with_bad_rows_in_every_block_is_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "FIRST_BLOCK", 200)
    lines = [b"%d,text %d" % (i, i) if i % 7 else b"%d,too,many" % i for i in range(500)]
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"\n".join(lines) + b"\n")
    for size in (1, 50, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"text %d" % i for i in range(500) if i % 7]
        assert got.records == [i for i in range(500) if i % 7]
        assert [record for record, _ in got.rejects] == list(range(0, 500, 7))


def test_a_csv_with_long_runs_of_bad_rows_is_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "FIRST_BLOCK", 1000)
    monkeypatch.setattr(delimited, "MANY_BAD", 100)
    lines = [b"%d,good" % i if i in (3000, 9000, 9001) else b"%d,b,c" % i for i in range(12_000)]
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"\n".join(lines))
    got = read_path(path, 1000)
    assert got.records == [3000, 9000, 9001]
    assert [record for record, _ in got.rejects] == [i for i in range(12_000) if i not in got.records]
    assert got.chunks > 20


def test_a_csv_without_one_good_row_in_a_long_time_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MOST_BAD", 100)
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"1,2,3\n" * 200)
    with pytest.raises(SourceError, match="cannot be told apart"):
        read_path(path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_csv_field_larger_than_a_block_is_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "FIRST_BLOCK", 64)
    rows = [f"{i},{'word ' * (i * 10)}" for i in range(40)]
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(COMPRESSIONS[ending](("id,text\n" + "\n".join(rows)).encode()))
    for size in (1, 100, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"word " * (i * 10) for i in range(40)]


def test_a_csv_row_larger_than_memory_allows_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n0,a\n1," + b"x" * (3 << 20) + b"\n")
    with pytest.raises(SourceError, match="a row is larger than") as caught:
        read_path(path, 100, Reading(largest=1 << 20))
    assert caught.value.hint and "--memory" in caught.value.hint


def test_a_csv_without_a_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="no header"):
        read_path(path)


def test_a_csv_column_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,text\na,b\n")
    with pytest.raises(SourceError):
        read_path(path)


def test_a_csv_in_utf_16_with_a_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\n1,é😀\n".encode("utf-16"))
    assert read_path(path).documents == ["é😀".encode()]
    path.write_bytes(b"\xef\xbb\xbftext,id\na,1\n")
    assert read_path(path).documents == [b"a"]
