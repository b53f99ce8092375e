"""CSV: rows that are wrong, long or strange, and headers."""

from __future__ import annotations

import csv
import io
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.documents import FreeRoom, Reading, delimited
from shardmill.errors import SourceError
from shardmill.storage.feeds import FileFeed
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
    monkeypatch.setattr(delimited, "BLOCK", 200)
    lines = [b"%d,text %d" % (i, i) if i % 7 else b"%d,too,many" % i for i in range(500)]
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"\n".join(lines) + b"\n")
    for size in (1, 50, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"text %d" % i for i in range(500) if i % 7]
        assert got.records == [i for i in range(500) if i % 7]
        assert [record for record, _ in got.rejects] == list(range(0, 500, 7))


def test_a_csv_with_long_runs_of_bad_rows_is_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCK", 1000)
    lines = [b"%d,good" % i if i in (3000, 9000, 9001) else b"%d,b,c" % i for i in range(12_000)]
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"\n".join(lines))
    got = read_path(path, 1000)
    assert got.records == [3000, 9000, 9001]
    assert [record for record, _ in got.rejects] == [i for i in range(12_000) if i not in got.records]
    assert got.chunks > 20


def test_a_csv_without_one_good_row_is_all_rejects_in_small_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"1,2,3\n" * 50_000)
    got = read_path(path, 1 << 18)
    assert not got.documents
    assert [record for record, _ in got.rejects] == list(range(50_000))
    assert got.chunks > 10


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_csv_field_larger_than_a_block_is_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCK", 64)
    rows = [f"{i},{'word ' * (i * 10)}" for i in range(40)]
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(COMPRESSIONS[ending](("id,text\n" + "\n".join(rows)).encode()))
    for size in (1, 100, 1 << 22):
        got = read_path(path, size)
        assert got.documents == [b"word " * (i * 10) for i in range(40)]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("quote", [b"", b'"'])
@pytest.mark.parametrize("block", [1 << 16, 1 << 21, 1 << 24])
def test_a_csv_row_larger_than_memory_allows_ends_the_run_with_its_place_and_size(
    tmp_path: Path, ending: str, quote: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK", block)
    path = tmp_path / f"a.csv{ending}"
    junk = quote + b"x" * (3 << 20) + quote
    rows = [b"id,text,more", b"0,a,z", b"1," + junk + b",z", b"2,b,z", b"3,c," + junk, junk + b",d,", b"5,e,z"]
    path.write_bytes(COMPRESSIONS[ending](b"\n".join(rows)))
    got = read_path(path, 100, room=FreeRoom(1 << 20))
    assert got.documents == [b"a", b"b", b"e"]
    assert [row for row, _ in got.rejects] == [1, 3, 4]
    assert got.too_large == [len(rows[row + 1]) for row in (1, 3, 4)]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_long_csv_row_is_parsed_whole_by_the_writers_thread(tmp_path: Path, ending: str, quote: bytes) -> None:
    path = tmp_path / f"a.csv{ending}"
    junk = quote + b"x" * (3 << 20) + quote
    rows = [b"id,text,more", b"0,a," + junk, junk + b",b,", b"2,c" + junk + b",x,too many", b"3,\xff," + junk]
    rows += [b"4,d,\xff" + junk, b"5," + junk + b"," + junk, b"6,e,"]
    path.write_bytes(COMPRESSIONS[ending](b"\n".join(rows)))
    got = read_path(path, 100, room=FreeRoom(1 << 20, 1 << 23))
    assert got.documents == [b"a", b"b", b"d", b"x" * (3 << 20), b"e"] and got.long == 6
    assert got.rejects == [(2, "4 fields where the header has 3"), (3, "invalid UTF-8")]


def test_a_text_of_csv_may_begin_with_a_byte_order_mark_wherever_a_block_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK", 20)
    texts = ["\ufeffabc".encode(), b"a", b"\xef\xbb"] * 20
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id\n" + b"".join(text + b",1\n" for text in texts))
    for size in (1, 1 << 20):
        got = read_path(path, size)
        assert got.documents == [text for text in texts if text != b"\xef\xbb"]


@pytest.mark.parametrize("last", [b'2,"open', b'2,"', b'"2,open', b'2,"a ""quote""', b'2,"a""', b'2,"two\n3,lines\n'])
def test_a_quote_that_is_not_closed_at_the_end_is_a_reject(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n0,a\n1,b\n" + last)
    for size in (1, 1 << 20):
        got = read_path(path, size)
        assert got.documents == [b"a", b"b"]
        [(row, reason)] = got.rejects
        assert row == 2 and "not closed" in reason and f"{len(last):,} bytes" in reason


def test_a_header_of_many_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    names = [f"column {i}" for i in range(30_000)]
    path.write_text(",".join([*names, "text"]) + "\r\n" + "," * 30_000 + "a\r\n")
    assert read_path(path).documents == [b"a"]


def test_a_csv_is_read_by_no_other_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread of a library that calls back while the interpreter ends aborts the process.
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"0,some words\n" * 400_000)
    threads = set()
    read = FileFeed.read

    def noted(self: FileFeed, start: int, end: int) -> bytes:
        threads.add(threading.get_ident())
        return read(self, start, end)

    monkeypatch.setattr(FileFeed, "read", noted)
    assert len(read_path(path).documents) == 400_000
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("names", [1, 1_500, 6_000, 20_000])
def test_a_row_after_the_header_may_be_longer_than_pythons_limit_for_a_field(tmp_path: Path, names: int) -> None:
    columns = [*(f"number {n}" for n in range(names)), "text"]
    rows = [["", *[""] * (names - 1), text] for text in ("long " * 60_000, "a\0b", "short")]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(",".join(row) for row in (columns, *rows)))
    got = read_path(path)
    assert got.documents == [row[-1].encode() for row in rows] and not got.rejects


def test_a_csv_without_a_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="no header"):
        read_path(path)


def test_a_csv_column_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id,text\na,0,b\n")
    with pytest.raises(SourceError, match="the header has the column `text` 2 times"):
        read_path(path)
    # Another column may.
    assert read_path(path, 10, Reading(text_field="id")).documents == [b"0"]


def test_a_csv_in_utf_16_with_a_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\n1,é😀\n".encode("utf-16"))
    assert read_path(path).documents == ["é😀".encode()]
    path.write_bytes(b"\xef\xbb\xbftext,id\na,1\n")
    assert read_path(path).documents == [b"a"]


# What rows are made of where something may go wrong: quotes in all places, all line ends, what is not UTF-8.
_PARTS = [
    b",", b",", b"\n", b"\r\n", b"\r", b'"', b'""', b',"', b'",', b'"\n', b"a", b"bc", b"\t", b" ", b"\xff",
    "é😀".encode(), b"\xef\xbb\xbf",
]  # fmt: skip
_HEADERS = [b"text", b"id,text", b'text,"i""d"', b'a,"text",c', b"\xef\xbb\xbftext,b", b"\n\r\nid,text"]


def _twin(data: bytes, delimiter: str) -> tuple[list[bytes], list[int], list[int]]:
    """Texts, their rows and the rows that are rejects, by Python's own parser. Latin-1 stands for any byte."""
    rows = csv.reader(io.StringIO(data.decode("latin-1"), newline=""), delimiter=delimiter)
    header = next(rows)
    texts, records, bad = [], [], []
    for number, row in enumerate(row for row in rows if row):
        try:
            if len(row) != len(header):
                raise ValueError
            texts.append(row[header.index("text")].encode("latin-1"))
            texts[-1].decode()
            records.append(number)
        except UnicodeDecodeError:
            texts.pop()
            bad.append(number)
        except ValueError:
            bad.append(number)
    return texts, records, bad


def _ends_in_quotes(data: bytes, delimiter: str) -> bool:
    """Whether one more letter would still stand in quotes: then a line break after it would not end the row."""
    rows = list(csv.reader(io.StringIO(data.decode("latin-1") + "x\n", newline=""), delimiter=delimiter))
    return bool(rows and rows[-1] and rows[-1][-1].endswith("x\n"))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.sampled_from(_HEADERS),
    body=st.lists(st.sampled_from(_PARTS), max_size=60).map(b"".join),
    tabs=st.booleans(),
    block=st.sampled_from([1, 2, 3, 7, 20, 1 << 20]),
    size=st.sampled_from([1, 5, 1 << 20]),
)
def test_any_csv_is_read_as_pythons_parser_reads_it_whatever_the_blocks(
    tmp_path: Path, header: bytes, body: bytes, tabs: bool, block: int, size: int
) -> None:
    delimiter = "\t" if tabs else ","
    data = header + b"\n" + body
    if tabs:
        data = data.translate(bytes.maketrans(b",\t", b"\t,"))
    texts, records, bad = _twin(data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n"), delimiter)
    path = tmp_path / ("a.tsv" if tabs else "a.csv")
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delimited, "BLOCK", block)
        patched.setattr(delimited, "DENSE_BLOCK", max(1, block // 2))
        got = read_path(path, size)
    if _ends_in_quotes(data, delimiter):
        number, reason = got.rejects.pop()
        assert "not closed" in reason
        texts = [text for text, record in zip(texts, records, strict=True) if record != number]
        records, bad = [record for record in records if record != number], [row for row in bad if row != number]
    assert got.documents == texts
    assert got.records == records
    assert [record for record, _ in got.rejects] == bad
