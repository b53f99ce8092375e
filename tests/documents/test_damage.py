"""Whatever bytes a file holds, reading gives documents or one of our errors: never a traceback, never a crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.documents import FreeRoom, Reading
from shardmill.errors import ShardmillError, SourceError
from shardmill.input_formats import INPUT_FORMATS
from tests.documents.twin import (
    COMPRESSIONS,
    Read,
    arrow_bytes,
    csv_bytes,
    cut,
    jsonl_bytes,
    parquet_bytes,
    read_path,
    table,
)

TEXTS: list[str | None] = [f"row {i} é" * (i % 4) for i in range(40)]
WHOLE = {
    "a.parquet": parquet_bytes(table(TEXTS)),
    "zstd.parquet": parquet_bytes(table(TEXTS), use_dictionary=False, compression="zstd"),
    "a.arrow": arrow_bytes(table(TEXTS)),
    "stream.arrow": arrow_bytes(table(TEXTS), stream=True, compression="zstd"),
    "a.csv": csv_bytes(table(TEXTS)),
    "a.jsonl": jsonl_bytes(TEXTS),
    "a.jsonl.gz": COMPRESSIONS[".gz"](jsonl_bytes(TEXTS)),
    "a.jsonl.zst": COMPRESSIONS[".zst"](jsonl_bytes(TEXTS)),
    "a.jsonl.bz2": COMPRESSIONS[".bz2"](jsonl_bytes(TEXTS)),
    "a.jsonl.xz": COMPRESSIONS[".xz"](jsonl_bytes(TEXTS)),
    "a.txt": "\n\n".join(text or "" for text in TEXTS).encode("utf-16"),
}
READING = Reading(separator=b"\n\n", cut=cut)


def _try(path: Path, size: int = 100, reading: Reading = READING, form: str = "auto") -> Read | None:
    try:
        return read_path(path, size, reading, form, FreeRoom(1 << 20))
    except ShardmillError as error:
        _check_error(error)
        return None


def _check_error(error: ShardmillError) -> None:
    assert error.message and (error.place or error.hint)


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_short_anywhere_gives_documents_or_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = WHOLE[name]
    path.write_bytes(data)
    whole = read_path(path, 100, READING).documents
    assert len(whole) == len(TEXTS)
    chance = random.Random(1)
    for length in {0, 1, 4, 8, 12, len(data) - 1, len(data) - 4, *chance.sample(range(len(data)), 25)}:
        path.write_bytes(data[:length])
        got = _try(path)
        if got is not None and not name.endswith(("a.arrow", ".parquet", ".gz", ".zst", ".bz2", ".xz")):
            # What cannot say that it was cut gives what is there, and never something else.
            sure = max(0, len(got.documents) - 1)
            assert got.documents[:sure] == whole[:sure]
        else:
            assert got is None


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_with_bytes_overwritten_gives_documents_or_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    chance = random.Random(2)
    for _ in range(60):
        data = bytearray(WHOLE[name])
        for _ in range(chance.choice([1, 1, 4])):
            at = chance.randrange(len(data))
            data[at] = chance.choice([0, 0xFF, data[at] ^ 1, data[at] ^ 0x80, chance.randrange(256)])
        path.write_bytes(data)
        _try(path, chance.choice([1, 100, 1 << 20]))


@pytest.mark.parametrize("form", INPUT_FORMATS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=300), head=st.sampled_from([b"", b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"text\n"])
)
def test_any_bytes_read_as_any_format_give_documents_or_an_error(
    tmp_path: Path, form: str, data: bytes, head: bytes
) -> None:
    path = tmp_path / "fuzz"
    path.write_bytes(head + data)
    _try(path, 50, form=form)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batch", range(6))
def test_a_batch_whose_length_was_damaged_to_zero_is_not_taken_for_the_end(
    tmp_path: Path, stream: bool, batch: int
) -> None:
    data = bytearray(arrow_bytes(table(TEXTS), stream=stream))
    marks = [at for at in range(0, len(data), 8) if data[at : at + 4] == b"\xff\xff\xff\xff"]
    at = marks[1 + batch]
    data[at + 4 : at + 8] = b"\0\0\0\0"
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        read_path(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_damaged_table_is_an_error_with_its_place(tmp_path: Path, name: str, size: int) -> None:
    data = bytearray(WHOLE[name])
    data[len(data) // 3 : len(data) // 3 + 200] = b"\xff" * 200
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged") as caught:
        read_path(path, size)
    assert caught.value.place and name in caught.value.place
