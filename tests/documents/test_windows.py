"""The memory of decompressors, told from the first bytes of a stream and asked for before it is taken."""

from __future__ import annotations

import gzip
import lzma
import re
from pathlib import Path

import pytest
import zstandard

from shardmill.errors import SourceError
from shardmill.storage import Scanner, StreamFeed, decompressed
from shardmill.storage.compressed import window_of
from tests.corpus import random_words
from tests.meter import Metered, metered

MB = 1_000_000


def _zstd(data: bytes, log: int, size: bool) -> bytes:
    settings = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=size, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("log", [10, 20, 27])
def test_the_window_of_a_zstd_stream_is_told_by_its_header(log: int) -> None:
    assert window_of(_zstd(b"text" * 1000, log, False), "zstd") == 1 << log
    assert window_of(zstandard.compress(b"a" * 300_000), "zstd") == 300_000  # one segment: all of it
    assert window_of(b"\x28\xb5\x2f\xfd", "zstd") == 0


@pytest.mark.parametrize("preset", [0, 3, 6, 9])
def test_the_dictionary_of_an_xz_stream_is_told_by_its_header(preset: int) -> None:
    [wanted] = {0: [1 << 18], 3: [1 << 22], 6: [1 << 23], 9: [1 << 26]}[preset]
    assert window_of(lzma.compress(b"text", preset=preset), "xz") == wanted
    filters = [{"id": lzma.FILTER_DELTA, "dist": 4}, {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    assert window_of(lzma.compress(b"text", filters=filters), "xz") == 1 << 20
    assert window_of(lzma.compress(b"text")[:13], "xz") == 0


def test_an_xz_stream_that_takes_more_than_any_should_is_refused_and_not_called_damaged() -> None:
    data = lzma.compress(b"text", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}])
    blocks = decompressed(Scanner(StreamFeed("a.xz", (part for part in [data]))), "xz", "a.xz")
    with pytest.raises(SourceError, match="needs more than 160 MB") as caught:
        next(blocks)
    assert "xz -d" in caught.value.hint


STREAMS = {
    "a.txt.zst": lambda data: _zstd(data, 27, False),
    "a.txt.xz": lambda data: lzma.compress(data, preset=9),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_window_that_does_not_fit_is_refused_with_the_memory_that_suffices(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_bytes(STREAMS[name](random_words(3 * MB)))

    def run(memory: int) -> Metered:
        out = tmp_path / str(memory)
        done = metered("prepare", source, "-o", out, "--memory", f"{memory}MB", "--workers", "1", "--separator", r"\n")
        assert done.peak < memory * MB
        return done

    refused = run(200)
    assert refused.code == 1 and "the compressed stream takes" in refused.err
    named = int(re.search(r"--memory (\d+)MB`", refused.err)[1])
    assert run(named).code == 0


def test_a_stretch_without_a_cut_needs_no_more_than_the_least_memory(tmp_path: Path) -> None:
    source = tmp_path / "a.txt.gz"
    source.write_bytes(gzip.compress(b"\0" * 100 * MB, 1))
    least = metered("prepare", source, "-o", tmp_path / "out", "--memory", "1MB").err
    memory = int(re.search(r"--memory (\d+)MB`", least)[1])
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", f"{memory}MB")
    assert run.code == 0, run.err
    assert run.peak < memory * MB
