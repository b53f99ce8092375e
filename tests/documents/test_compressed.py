"""Compressed sources: all members, bounded blocks, and an error with its place for every kind of damage."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import zstandard

from shardmill.documents import Reading
from shardmill.errors import SourceError
from shardmill.storage import Scanner, StreamFeed
from shardmill.storage.compressed import decompressed
from tests.documents.twin import COMPRESSIONS, compress_zstd, read_path

TEXT = b"".join(b"line %d of the text\n" % i for i in range(3_000))
REAL = {ending: make for ending, make in COMPRESSIONS.items() if ending}
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


@pytest.mark.parametrize("ending", REAL)
@pytest.mark.parametrize("members", [1, 2, 7])
def test_all_members_are_read(tmp_path: Path, ending: str, members: int) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(REAL[ending](TEXT) * members)
    assert read_path(path, 5_000, Reading(separator=b"\n")).documents == (TEXT * members).split(b"\n")[:-1]


@pytest.mark.parametrize("ending", REAL)
def test_empty_members_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(REAL[ending](b"") + REAL[ending](b"abc") + REAL[ending](b""))
    assert read_path(path).documents == [b"abc"]
    path.write_bytes(REAL[ending](b""))
    assert read_path(path).documents == [b""]


@pytest.mark.parametrize("ending", REAL)
@pytest.mark.parametrize("share", [0.0001, 0.3, 0.9])
@pytest.mark.parametrize("size", [1000, 1 << 22])
@pytest.mark.parametrize("members", [1, 2])
def test_a_truncated_stream_is_an_error_with_its_place(
    tmp_path: Path, ending: str, share: float, size: int, members: int
) -> None:
    whole = REAL[ending](TEXT)
    path = tmp_path / f"a.txt{ending}"
    for cut_off in (int(len(whole) * share) + 1, 1, 5):
        path.write_bytes(whole * (members - 1) + whole[: len(whole) - cut_off])
        with pytest.raises(SourceError) as caught:
            read_path(path, size, Reading(separator=b"\n"))
        assert "too early" in caught.value.message or "damaged" in caught.value.message
        assert caught.value.place and f"a.txt{ending}, near compressed byte" in caught.value.place


@pytest.mark.parametrize("ending", REAL)
def test_any_cut_of_a_small_stream_is_an_error(tmp_path: Path, ending: str) -> None:
    whole = REAL[ending](b"some text\n" * 20)
    path = tmp_path / f"a.txt{ending}"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError):
            read_path(path)


@pytest.mark.parametrize("ending", REAL)
@pytest.mark.parametrize("tail", [b"garbage", b"\x1f", b"BZ", b"\x00\x00x", b"{}\n" * 20])
def test_something_else_after_the_stream_is_an_error(tmp_path: Path, ending: str, tail: bytes) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(REAL[ending](TEXT) + tail)
    with pytest.raises(SourceError):
        read_path(path)


@pytest.mark.parametrize("ending", REAL)
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path: Path, ending: str) -> None:
    whole = bytearray(REAL[ending](b"".join(b"%d " % (i * i) for i in range(300))))
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(whole)
    [wanted] = read_path(path).documents
    silent = 0
    for at in range(0, len(whole), 3):
        whole[at] ^= 0x10
        path.write_bytes(whole)
        try:
            got = read_path(path, form="text").documents
            # Some bits say nothing about the content; a file that lost its mark is text like any other.
            silent += got != [wanted] and at > 10
        except SourceError:
            pass
        whole[at] ^= 0x10
    # pyarrow writes zstd frames without a checksum, as the zstd library does unless it is asked.
    assert ending == ".zst" or silent == 0


def test_zeros_after_a_gzip_stream_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"abc") + b"\0" * 100_000)
    assert read_path(path).documents == [b"abc"]


def test_xz_streams_may_have_padding_between_them(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"abc") + b"\0" * 8 + lzma.compress(b"def") + b"\0" * 4)
    assert read_path(path).documents == [b"abcdef"]


def test_skippable_frames_of_zstd_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(SKIPPABLE + compress_zstd(b"abc") + SKIPPABLE + compress_zstd(b"def") + SKIPPABLE)
    assert read_path(path).documents == [b"abcdef"]


def test_a_zstd_frame_with_a_giant_window_is_a_clear_error(tmp_path: Path) -> None:
    # A frame header that asks for a window of 2 GB, and one raw block.
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + b"\x19\x00\x00" + b"abc"
    path = tmp_path / "a.txt.zst"
    path.write_bytes(frame)
    with pytest.raises(SourceError, match="window above 128 MB") as caught:
        read_path(path)
    assert caught.value.hint and "zstd -d" in caught.value.hint


@pytest.mark.parametrize("ending", REAL)
def test_a_name_that_hides_the_compression_does_not_matter(tmp_path: Path, ending: str) -> None:
    for name in ("a.txt", "a", "a.gz" if ending != ".gz" else "a.xz"):
        path = tmp_path / name
        path.write_bytes(REAL[ending](b"some text"))
        assert read_path(path).documents == [b"some text"]


@pytest.mark.parametrize("ending", REAL)
@pytest.mark.parametrize("data", [b"", b"plain text", b"x"])
def test_a_name_that_promises_a_compression_which_is_not_there_is_an_error(
    tmp_path: Path, ending: str, data: bytes
) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(data)
    with pytest.raises(SourceError):
        read_path(path)


def test_text_that_begins_like_bzip2_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"BZh9 is how bzip2 files begin")
    assert read_path(path).documents == [b"BZh9 is how bzip2 files begin"]


def test_what_is_compressed_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bz2.compress(b"abc")))
    with pytest.raises(SourceError, match="compressed twice"):
        read_path(path)


# 64 MB; bzip2 takes its time over such runs, so it gets an eighth.
BOMBS = {".gz": 8 << 20, ".zst": 8 << 20, ".xz": 8 << 20, ".bz2": 1 << 20}


@pytest.mark.parametrize("ending", BOMBS)
def test_a_decompression_bomb_is_read_in_bounded_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"bomb.txt{ending}"
    part = b"a b c d\n" * (1 << 20)
    path.write_bytes(REAL[ending](part) * (BOMBS[ending] >> 20))
    assert path.stat().st_size < 1 << 20
    code = f"""
        from shardmill.documents import FreeRoom, Position, Reading, SourceReader
        from shardmill.run.machine import most_resident
        from shardmill.sources import find_sources
        [source] = find_sources([{str(path)!r}])
        reader = SourceReader(0, source, Reading(separator=b"\\n"), FreeRoom())
        before = most_resident()
        rows = sum(len(reader.read(chunk)) for chunk in reader.chunks(Position(), 1 << 20))
        assert rows == {BOMBS[ending]}, rows
        print(most_resident() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 48 << 20


@pytest.mark.parametrize(
    "content",
    [
        lzma.compress(b"some text" * 9, format=lzma.FORMAT_ALONE),
        b"\x1f\x9d\x90abc",
        b"Rar!\x1a\x07\x01\0",
        b"PK\x03\x04",
    ],
    ids=["lzma", "compress", "rar", "zip"],
)
def test_what_cannot_be_unpacked_is_not_taken_for_text(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="not text"):
        read_path(path, 100)


@pytest.mark.parametrize("first", [b"", b"\x50\x2a\x4d\x18\x04\0\0\0abcd"], ids=["frames", "after a skippable one"])
def test_memory_is_reserved_for_the_window_of_every_frame(first: bytes) -> None:
    """A tiny frame says nothing about the next one."""
    text = b"some words\n" * 1000
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, write_content_size=False)
    wide = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    frames = [first + zstandard.compress(text), wide.compress(text) + wide.flush()]
    reserved: list[int] = []
    feed = StreamFeed("x.zst", (frame for frame in frames))
    blocks = decompressed(Scanner(feed), "zstd", "x.zst", reserved.append)
    assert next(blocks) == text
    assert max(reserved) < 1 << 20
    assert next(blocks) == text
    assert max(reserved) == 1 << 27


def test_bytes_of_a_stream_that_were_forgotten_are_an_error_and_never_others() -> None:
    feed = StreamFeed("a pipe", (bytes([i]) * 100 for i in range(10)))
    assert feed.read(0, 250) == b"\0" * 100 + b"\1" * 100 + b"\2" * 50
    feed.drop(500)
    for start in range(0, 1000, 7):
        if start < 400:
            with pytest.raises(ValueError, match="was forgotten"):
                feed.read(start, start + 50)
        else:
            assert feed.read(start, start + 1) == bytes([start // 100])
