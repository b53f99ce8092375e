"""Files as other libraries write them: every format and compression that each has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents.twin import read_path
from tests.python.test_libraries import missing

TEXTS = [f'Text {n}, naïve 漢字 😀 "quoted", with\na line and {"x" * (n % 50)}' for n in range(400)]
Write = Callable[[Path], Any]


def _polars(*names: str, **options: Any) -> Write:
    def write(path: Path) -> None:
        polars = missing("polars")
        frame = polars.DataFrame({"id": range(len(TEXTS)), "text": TEXTS})
        if "categories" in names:
            frame = frame.with_columns(polars.col("text").cast(polars.Categorical))
        getattr(frame, names[0])(path, **options)

    return write


def _pandas(name: str, **options: Any) -> Write:
    def write(path: Path) -> None:
        pandas = missing("pandas")
        if options.get("engine") == "fastparquet":
            missing("fastparquet")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fastparquet's days are numbered, but its files stay
            getattr(pandas.DataFrame({"id": range(len(TEXTS)), "text": TEXTS}), name)(path, **options)

    return write


def _duckdb(options: str) -> Write:
    def write(path: Path) -> None:
        duckdb, arrow = missing("duckdb"), missing("pyarrow")
        with duckdb.connect() as connection:
            connection.register("texts", arrow.table({"id": range(len(TEXTS)), "text": TEXTS}))
            connection.execute(f"copy texts to '{path}' ({options})")

    return write


WRITERS: dict[str, Write] = {
    "polars.arrow": _polars("write_ipc", compression="uncompressed"),
    "polars-lz4.feather": _polars("write_ipc", compression="lz4"),
    "polars-zstd.arrow": _polars("write_ipc", compression="zstd"),
    "polars-categories.arrow": _polars("write_ipc", "categories"),
    "polars-stream.arrow": _polars("write_ipc_stream"),
    "polars.jsonl": _polars("write_ndjson"),
    "polars.csv": _polars("write_csv", include_bom=True, line_terminator="\r\n"),
    "polars.tsv": _polars("write_csv", separator="\t", quote_style="always"),
    **{f"polars-{c}.parquet": _polars("write_parquet", compression=c, row_group_size=90) for c in ("lz4", "zstd")},
    "polars-categories.parquet": _polars("write_parquet", "categories"),
    "pandas.jsonl.gz": _pandas("to_json", orient="records", lines=True),
    "pandas.csv.bz2": _pandas("to_csv"),
    "pandas-utf16.csv": _pandas("to_csv", encoding="utf-16"),
    "pandas.feather": _pandas("to_feather"),
    **{f"fastparquet-{c}.parquet": _pandas("to_parquet", engine="fastparquet", compression=c) for c in ("LZ4", "GZIP")},
    **{f"duckdb-{c}.parquet": _duckdb(f"format parquet, compression {c}") for c in ("snappy", "brotli", "lz4_raw")},
    "duckdb-v2.parquet": _duckdb("format parquet, parquet_version v2, row_group_size 100"),
    "duckdb.csv.gz": _duckdb("format csv, compression gzip"),
    "duckdb.json": _duckdb("format json"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_library_writes_is_read(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    for size in (1000, 1 << 20):
        got = read_path(tmp_path / name, size)
        assert [text.decode() for text in got.documents] == TEXTS
        assert not got.rejects
