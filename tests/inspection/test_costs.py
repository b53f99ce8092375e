"""However large the sources are, `inspect` reads some megabytes of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.documents import opening
from shardmill.run import inspect
from shardmill.storage import compressed
from tests.inspection.material import found, texts, true_tokens


@pytest.mark.parametrize("name", ["hole.txt", "hole.jsonl"])
def test_a_terabyte_costs_no_more_than_some_megabytes(tmp_path: Path, bytes_read: dict[str, int], name: str) -> None:
    path = tmp_path / name
    block = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(300_000, 1))
    with path.open("wb") as file:
        for i in range(8):
            file.seek(i << 37)
            file.write(block)
        file.truncate(1 << 40)
    report = inspect(path)
    assert report.stored_bytes == 1 << 40
    # A hole in JSON Lines is a part of a line, which then is too long.
    assert found(report, "source") if name == "hole.jsonl" else found(report, "binary")
    assert report.text_bytes.value == (0 if name == "hole.jsonl" else 1 << 40)
    assert 0 < bytes_read["bytes"] < 250_000_000


def test_of_very_many_files_some_are_opened(tmp_path: Path, bytes_read: dict[str, int]) -> None:
    made = texts(3_000_000, 4)
    for i in range(6000):
        folder = tmp_path / f"{i // 1000}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i:05}.txt").write_text(made[i % len(made)] * (1 + i % 3))
    report = inspect(tmp_path)
    assert report.sources == report.documents.value == 6000
    assert bytes_read["opened"] <= 80 * 64 + 10
    truth = true_tokens([made[i % len(made)] * (1 + i % 3) for i in range(6000)])
    assert abs(report.tokens.value - truth) <= report.tokens.margin < 0.1 * truth


def test_a_small_file_that_unpacks_to_very_much_is_not_unpacked_whole(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(b"a bomb " * 150_000)
    report = inspect(path)
    assert report.sampled_bytes < 100_000_000
    assert abs(report.text_bytes.value / (300 * 7 * 150_000) - 1) < 0.1


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.jsonl.gz"])
def test_a_stream_without_a_place_to_cut_is_not_followed_to_its_end(tmp_path: Path, name: str) -> None:
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        for _ in range(60):
            file.write(b"a" * 1_000_000)
    opened, decompressed = list[bytes](), compressed.decompressed

    def count(*arguments: Any) -> Iterator[bytes]:
        for block in decompressed(*arguments):
            opened.append(block)
            yield block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "decompressed", count)
        report = inspect(tmp_path / name)
    assert 0 < sum(map(len, opened)) < 20_000_000
    assert not report.tokens.exact or report.troubles


def test_a_large_row_group_after_a_small_one_is_not_read_whole(tmp_path: Path, few_places: None) -> None:
    made = [text for text in texts(12_000_000, 6) if text]
    table = pa.table({"text": made})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, use_dictionary=False, data_page_size=20_000) as file:
        file.write_table(table.slice(0, 2))
        file.write_table(table.slice(2))
    report = inspect(tmp_path / "a.parquet")
    assert report.documents.value == len(made)
    assert report.sampled_bytes < 0.6 * report.text_bytes.value
    assert abs(report.tokens.value - true_tokens(made)) <= report.tokens.margin < 0.15 * report.tokens.value
