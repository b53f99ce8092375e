"""What `inspect` counts is exact where it says so, and near where it does not."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pytest
import zstandard

import shardmill
from shardmill.inspection import Amount, Expected, output_sizes
from shardmill.options import FORMATS
from shardmill.run import inspect
from shardmill.shards import format_named
from tests.corpus import documents, write_jsonl
from tests.inspection.material import texts, true_tokens, write_csv, write_parquet


def test_all_of_a_small_source_is_read_and_exact(tmp_path: Path) -> None:
    made = documents(300)
    report = inspect(write_jsonl(tmp_path / "a.jsonl", made))
    assert report.documents.exact and report.documents.value == 300
    assert report.tokens.exact and report.tokens.value == true_tokens(made)
    assert report.text_bytes.exact and report.text_bytes.value == sum(len(text.encode()) for text in made)
    assert report.written == sum(1 for text in made if text)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt", ".txt.zst", ".log", ".parquet", ".csv"])
def test_what_is_said_to_be_exact_is_what_prepare_makes(tmp_path: Path, ending: str) -> None:
    made = [text for text in documents(4000, seed=3) if text and "\0" not in text and "\r" not in text]
    path = tmp_path / f"a{ending}"
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made)
    plain = "<|sep|>".join(made).encode()
    options: dict[str, Any] = {}
    if "parquet" in ending:
        write_parquet(path, made, 500)
    elif "csv" in ending:
        write_csv(path, made)
    elif "jsonl" in ending:
        path.write_bytes(gzip.compress(lines) if ending.endswith("gz") else lines)
    else:
        path.write_bytes(zstandard.compress(plain) if ending.endswith("zst") else plain)
        options = {} if ending == ".log" else {"separator": "<|sep|>"}
    report = inspect(path, **options)
    result = shardmill.prepare(path, tmp_path / "out", val="0", **options)
    assert report.tokens.exact and report.documents.exact
    assert report.tokens.value == result.manifest["splits"]["train"]["tokens"]
    assert report.documents.value == result.manifest["documents"]


def test_the_rows_of_parquet_are_exact_though_its_tokens_are_estimated(tmp_path: Path, few_places: None) -> None:
    made = texts(6_000_000, 5)
    report = inspect(write_parquet(tmp_path / "a.parquet", made, 200))
    assert report.documents == report.kinds[0].documents
    assert report.documents.exact and report.documents.value == len(made)
    assert not report.tokens.exact
    assert abs(report.tokens.value - true_tokens(made)) <= report.tokens.margin < 0.1 * report.tokens.value


def test_tokens_of_sources_of_many_kinds_and_sizes_are_within_a_tenth(tmp_path: Path, few_places: None) -> None:
    parts = [texts(size, seed) for seed, size in enumerate([9_000_000, 4_000_000, 3_000_000, 2_000_000, 500_000])]
    write_jsonl(tmp_path / "large.jsonl", parts[0])
    write_parquet(tmp_path / "a.parquet", parts[1], 300)
    lines = write_jsonl(tmp_path / "b.jsonl", parts[2]).read_bytes()
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(lines))
    (tmp_path / "b.jsonl").unlink()
    write_csv(tmp_path / "c.csv", parts[3])
    for i, text in enumerate(parts[4]):
        (tmp_path / f"note{i:05}.txt").write_text(text)
    report = inspect(tmp_path)
    truth = sum(map(true_tokens, parts))
    assert {(kind.format, kind.compression) for kind in report.kinds} == {
        ("jsonl", ""), ("jsonl", "zstd"), ("parquet", ""), ("csv", ""), ("text", ""),
    }  # fmt: skip
    assert not report.tokens.exact
    assert abs(report.tokens.value / truth - 1) < 0.1
    assert abs(report.documents.value / sum(map(len, parts)) - 1) < 0.1
    assert report.tokens.margin is None  # since CSV and the compressed file were not read to their ends
    assert report.sampled_bytes < 0.6 * report.text_bytes.value


@cache
def large() -> tuple[list[str], int]:
    """A corpus and its tokens, once for all kinds."""
    made = [text for text in texts(24_000_000, 8) if text]
    return made, true_tokens(made)


@pytest.mark.parametrize(("kind", "most"), [("csv", 0.4), ("csv.gz", 0.4), ("40.feather", 0.4), ("400.feather", 1.0)])
def test_rows_that_only_come_in_order_are_estimated_from_the_beginning(
    tmp_path: Path, few_places: None, kind: str, most: float
) -> None:
    """Record batches are read whole, however many rows they have."""
    made, tokens = large()
    path = tmp_path / f"a.{kind}"
    if kind.endswith("feather"):
        pyarrow.feather.write_feather(pa.table({"text": made}), path, chunksize=int(kind.partition(".")[0]))
    else:
        raw = write_csv(tmp_path / "b.csv", made).read_bytes()
        path.write_bytes(gzip.compress(raw, 1) if kind.endswith("gz") else raw)
    report = inspect(path)
    assert {trouble.what for trouble in report.troubles} <= {"tokens"}  # a few texts hold `<|endoftext|>`
    assert not report.tokens.exact
    assert abs(report.tokens.value / tokens - 1) < 0.1
    assert abs(report.documents.value / len(made) - 1) < 0.1
    assert report.sampled_bytes < most * report.text_bytes.value


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "xz"])
def test_the_text_of_compressed_sources_is_estimated_by_what_went_in_and_came_out(
    tmp_path: Path, few_places: None, ending: str
) -> None:
    fast_xz = partial(lzma.compress, preset=0)
    pack = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress, "xz": fast_xz}[ending]
    made = [text.replace("\n", " ") for text in texts(8_000_000, 9)]
    raw = "\n\n".join(made).encode()
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(pack(raw))
    report = inspect(path, separator=r"\n\n")
    assert abs(report.text_bytes.value / len(raw) - 1) < 0.1
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.1
    assert report.tokens.margin is None
    assert "only the beginning of 1 of 1 source" in " ".join(report.text().split())


@pytest.mark.parametrize("format", FORMATS)
def test_the_size_of_every_output_format_is_foreseen(tmp_path: Path, format: str) -> None:
    made = [text for text in documents(3000, seed=1) if text]
    source = write_jsonl(tmp_path / "a.jsonl", made)
    report = inspect(source)
    assert set(report.output_bytes) == set(FORMATS)
    result = shardmill.prepare(source, tmp_path / "out", format=format, shard_tokens="100k")
    splits = result.manifest["splits"].values()
    written = sum(file["bytes"] for split in splits for file in split["files"])
    foreseen = output_sizes(Expected(written=Amount(len(made)), tokens=report.tokens), 2, report.vocab_size, 100_000)[
        format
    ]
    if format_named(format).compressed:  # how well depends on the text, so it is that of usual text
        assert 1 <= foreseen / written < 2
    else:
        assert abs(foreseen / written - 1) < 0.01
