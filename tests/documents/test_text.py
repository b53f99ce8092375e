"""Text files: documents, pieces and spans are the same for every chunk size."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.documents import FreeRoom, Position, Reading, SourceReader
from shardmill.errors import SourceError, UsageError
from shardmill.sources import find_sources
from tests.documents.twin import COMPRESSIONS, SIZES, cut, read_path, read_source, text_documents

SEPARATORS = (b"\n", b"\n\n", b"\n\n\n", b"\n---\n", b"abab", "é".encode(), b"\0", "\ufffd".encode(), b"\xff")
HARD = {
    "empty": b"",
    "one newline": b"\n",
    "only newlines": b"\n" * 37,
    "plain": b"one two three\n\nfour five six\n\nseven eight nine ten eleven",
    "ends with a separator": b"one two\n\nthree four\n\n",
    "runs of newlines": b"\n\n\na b\n\n\n\n\nc d e\n\n\n\n\n\n\n",
    "overlapping dashes": b"a\n---\n---\nb\n---\n---\n---\nc d e",
    "abab": b"xabababyabababababzabab ab abab",
    "mark": b"\xef\xbb\xbfone two\n\nthree",
    "only a mark": b"\xef\xbb\xbf",
    "mark inside": b"one\xef\xbb\xbf two\n\n\xef\xbb\xbfthree four",
    "invalid": b"one \xff two\n\n\xe2\x82 three\n\n\xf0\x9f\x98\n\n\xed\xa0\x80 x \xc0\xaf \x80\x80",
    "cut short": b"one two \xe2\x82",
    "wide": "naïve café 日本語 テキスト 😀 emoji é\n\né zwei\n\nдва слова".encode(),
    "replacement": "a \ufffd b\n\n\ufffd c".encode() + b" \xff d",
    "carriage returns": b"a b\r\n\r\nc d\r\re f",
    "nul": b"a b\0c d\0\0e f",
    "long": b"word " * 3000 + b"\n\n" + b"x" * 2000 + b" y\n\n" + b"tail of it all",
}


@pytest.mark.parametrize("separator", [None, *SEPARATORS])
@pytest.mark.parametrize("name", HARD)
def test_documents_are_the_same_for_every_chunk_size(tmp_path: Path, name: str, separator: bytes | None) -> None:
    data = HARD[name]
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    wanted = text_documents(data, separator)
    bad = sum(row.count("\ufffd".encode()) for row in wanted) - sum(
        piece.count("\ufffd".encode()) for piece in (data.split(separator) if separator else [data])
    )
    for size in SIZES if len(data) < 1000 else SIZES[4:]:
        for safe in (cut, None):
            got = read_path(path, size, Reading(separator=separator, cut=safe))
            assert got.documents == wanted, (size, safe)
            assert got.replaced == bad
            assert not got.rejects


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_compressed_text_gives_the_same_documents(tmp_path: Path, ending: str) -> None:
    data = b"\xef\xbb\xbf" + HARD["runs of newlines"] + HARD["long"] + HARD["invalid"]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](data))
    for separator in (None, b"\n\n"):
        for size in (7, 61, 1000, 1 << 22):
            got = read_path(path, size, Reading(separator=separator, cut=cut))
            assert got.documents == text_documents(data, separator)


def test_a_small_chunk_size_really_cuts_a_long_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"word " * 1000)
    assert read_path(path, 100, Reading(cut=cut)).chunks > 40
    assert read_path(path, 100, Reading(cut=None)).chunks == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_utf_16_and_utf_32_with_a_mark_are_decoded(tmp_path: Path, encoding: str, ending: str) -> None:
    text = "erste Zeile ü\n\nдва слова 😀\n\n日本語 テキスト " * 50
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending]((mark + text).encode(encoding)))
    for size in (3, 100, 1 << 22):
        got = read_path(path, size, Reading(separator=b"\n\n", cut=cut))
        assert got.documents == text_documents(text.encode(), b"\n\n")
        assert got.replaced == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("marks", [1, 2, 3])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_of_several_byte_order_marks_only_the_first_is_one(
    tmp_path: Path, encoding: str, marks: int, ending: str
) -> None:
    text = "\ufeff" * (marks - 1) + "two words"
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](("\ufeff" + text).encode(encoding)))
    for size in (3, 1 << 22):
        assert read_path(path, size, Reading(cut=cut)).documents == [text.encode()]


def test_a_lone_surrogate_in_utf_16_is_replaced_and_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe" + "ab".encode("utf-16-le") + b"\x00\xd8" + "c\n".encode("utf-16-le") + b"\x00")
    got = read_path(path, 5)
    assert got.documents == ["ab\ufffdc\n\ufffd".encode()]
    assert got.replaced == 2


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_many_threads_may_read_at_once(tmp_path: Path, name: str) -> None:
    lines = [b'{"text": "%d"}' % i for i in range(30_000)]
    path = tmp_path / name
    path.write_bytes(COMPRESSIONS[".gz" if name.endswith("gz") else ""](b"\n".join(lines)))
    [source] = find_sources([str(path)])
    reader = SourceReader(0, source, Reading(separator=b"\n"), FreeRoom())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda chunk: reader.read(chunk).packed(), reader.chunks(Position(), 20_000)))
    rows = [d.data[d.offsets[i] : d.offsets[i + 1]].tobytes() for d in found for i in range(len(d))]
    assert rows == ([b"%d" % i for i in range(30_000)] if name.endswith("jsonl") else lines)


def test_an_empty_separator_is_a_wrong_call(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    with pytest.raises(UsageError):
        read_path(path, 10, Reading(separator=b""))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("separator", [None, b"\n\n"])
def test_a_stretch_without_a_cut_beyond_the_largest_record_is_read_in_pieces(
    tmp_path: Path, ending: str, separator: bytes | None
) -> None:
    data = b"a few words first\n\n" + b"x" * 9000 + "é€😀".encode() * 500 + b"\xff" + b" and then\n\nthe end of it"
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](data))
    for size in (1, 100, 2000):
        got = read_path(path, size, Reading(separator=separator, cut=cut), room=FreeRoom(4000))
        assert got.documents == text_documents(data, separator)
        assert got.long == 1
        assert max(got.costs[:-1] + got.costs[-1:]) >= 9000


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_document_too_large_for_a_tokenizer_without_cuts_is_told_by_its_size(
    tmp_path: Path, ending: str, where: str
) -> None:
    giant = b"word " * 2000
    pieces = {"first": [giant, b"a", b"b"], "middle": [b"a", giant, b"b"], "last": [b"a", b"b", giant]}[where]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](b"\n\n".join(pieces)))
    for size in (1, 100, 3000):
        got = read_path(path, size, Reading(separator=b"\n\n"), room=FreeRoom(4000))
        assert got.documents == [b"a", b"b"]
        [(_, reason)] = got.rejects
        assert reason == f"a document of {len(giant):,} bytes is larger than the memory allows"
        assert got.too_large == [len(giant)]
        assert got.reject_bytes == [{"first": 0, "middle": 3, "last": 6}[where]]


def test_a_long_stretch_of_a_pipe_is_an_error_with_its_place(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"x" * 20000)
    os.close(write_end)
    try:
        [source] = find_sources([f"/dev/fd/{read_end}"])
        assert source.size is None
        with pytest.raises(SourceError, match="no place where it may be cut") as caught:
            read_source(source, 100, Reading(cut=cut), room=FreeRoom(4000))
        assert caught.value.place and "byte 0" in caught.value.place
    finally:
        os.close(read_end)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(
        st.sampled_from([b"\n", b"\n\n", b"ab", b"abab", b" ", b"word ", b"a", b"\xff", b"\xe2\x82", b"\xac", b"\0"])
    ).map(b"".join),
    separator=st.sampled_from([None, b"\n", b"\n\n", b"abab", b"aba", b" "]),
    size=st.integers(1, 40),
    ending=st.sampled_from(["", ".gz"]),
)
def test_any_bytes_are_read_as_the_twin_reads_them(
    tmp_path: Path, data: bytes, separator: bytes | None, size: int, ending: str
) -> None:
    path = tmp_path / f"fuzz.txt{ending}"
    path.write_bytes(COMPRESSIONS[ending](data))
    got = read_path(path, size, Reading(separator=separator, cut=cut))
    assert got.documents == text_documents(data, separator)
