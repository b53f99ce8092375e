"""Bounded, for what parquet holds in few bytes: such a file stays below the limit, or the error says what suffices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpus import random_words
from tests.decoding_memory import measured
from tests.meter import Metered, metered

pytestmark = pytest.mark.thorough

MB = 1_000_000


def _words(size: int, count: int) -> list[str]:
    text = random_words(size * count).decode("ascii", "ignore")
    return [text[i * size : (i + 1) * size] for i in range(count)]


def _repeated(text: str, times: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(times, np.int64)))


FILES: dict[str, tuple[Callable[[], list[str]], dict[str, Any], int]] = {
    "a long value first": (lambda: [_words(2_200_000, 1)[0], *_words(2000, 8000)], {"row_group_size": 3000}, 400),
    "empty texts": (lambda: _repeated("", 3_000_000), {"row_group_size": 3_000_000}, 400),
    "a common prefix": (
        lambda: ["x" * MB + f" {i}" for i in range(120)],
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        400,
    ),
    "a large dictionary": (
        lambda: _words(3000, 15_000) * 2,
        {"dictionary_pagesize_limit": 1 << 30, "row_group_size": 100_000},
        512,
    ),
    "long values that repeat": (lambda: (_words(20_000, 49) * 39)[:1900], {}, 330),
    "long values that repeat, with more memory": (lambda: (_words(20_000, 49) * 39)[:1900], {}, 400),
    "a page of 20 MB": (lambda: _words(2000, 10_000), {"use_dictionary": False, "data_page_size": 1 << 30}, 400),
    "a value of 80 MB": (lambda: ["x y " * 20_000_000], {}, 400),
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_parquet_file_unfolds_to_stays_below_the_limit(tmp_path: Path, name: str) -> None:
    texts, options, limit = FILES[name]
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts()}), source, **options)
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", f"{limit}MB", "--workers", "2", "--json")
    assert run.peak < limit * MB
    if name == "a value of 80 MB":
        assert run.code == 1
        assert int(re.search(r"--memory (\d+)MB`", run.err)[1]) > limit
        return
    assert run.code == 0, run.err
    manifest = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert manifest["documents"] + manifest["empty"] == pq.read_metadata(source).num_rows
    assert run.peak * 0.97 < json.loads(run.out)["peak_memory"] < limit * MB


REFUSED: dict[str, tuple[Callable[[], Sequence[str | None]], dict[str, Any]]] = {
    "a dictionary": (lambda: _words(11_000, 12_000) * 2, {"dictionary_pagesize_limit": 1 << 30}),
    "a dictionary with a long text": (lambda: [*_words(30, 100), "x y " * 16_000_000], {}),
    "a page": (lambda: _words(11_000, 14_000), {"use_dictionary": False, "data_page_size": 1 << 30}),
    "a page with a long text": (lambda: [*_words(30, 100), "x y " * 20_000_000], {"use_dictionary": False}),
    "a page of deltas with a long text": (
        lambda: [*_words(30, 100), "x y " * 16_000_000],
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
    "a page of lengths with a long text": (
        lambda: [None, *_words(30, 100), "x y " * 16_000_000],
        {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    ),
    "a page that is one long text": (
        lambda: ["x y " * 24_000_000],
        {"use_dictionary": False, "compression": "zstd"},
    ),
    "a page of a later version": (
        lambda: _words(11_000, 14_000),
        {"use_dictionary": False, "data_page_size": 1 << 30, "data_page_version": "2.0"},
    ),
}


@pytest.mark.parametrize(
    "name", [name if name.endswith("text") else pytest.param(name, marks=pytest.mark.slow) for name in REFUSED]
)
def test_the_memory_that_is_named_for_a_large_step_suffices_and_is_less_than_twice_the_least(
    tmp_path: Path, name: str
) -> None:
    texts, options = REFUSED[name]
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts()}), source, **options)

    def run(memory: int) -> Metered:
        # The first documents suffice: what is refused is refused before any.
        done = metered(
            "prepare", source, "-o", tmp_path / str(memory), "--memory", f"{memory}MB", "--workers", "2",
            "--limit", "20000" if "long" in name else "10",
        )  # fmt: skip
        assert done.peak < memory * MB
        return done

    refused = run(330)
    assert refused.code == 1
    named = int(re.search(r"--memory (\d+)MB`", refused.err)[1])
    assert run(named).code == 0
    assert run(named // 2).code == 1


LONG = 60 * MB
SHORT = [f"short {i}" for i in range(100)]
Rows = Callable[[str], list[str]]
# What may be larger than the limit, with one text of LONG bytes or several that are together so long.
SHAPES: dict[str, tuple[Rows, dict[str, Any]]] = {
    "a dictionary of 1": (lambda text: [text], {}),
    "a dictionary of 16": (lambda text: [*SHORT[:15], text], {}),
    "a dictionary of 17": (lambda text: [text, *SHORT[:16]], {}),
    "a dictionary of 60": (lambda text: [*SHORT[:59], text], {}),
    "a dictionary of 60, used often": (lambda text: [*SHORT[:59], *[text, "short"] * 4], {}),
    "a dictionary of two halves": (lambda text: [text[: LONG // 2], text[LONG // 2 :], "short"] * 2, {}),
    "a dictionary in several row groups": (lambda text: [*SHORT[:9], text] * 2, {"row_group_size": 10}),
    "a plain page of 1": (lambda text: [text], {"use_dictionary": False}),
    "a plain page of 60": (lambda text: [text, *SHORT[:59]], {"use_dictionary": False}),
    "a plain page of two halves": (
        lambda text: [*SHORT[:59], text[: LONG // 2], text[LONG // 2 :]],
        {"use_dictionary": False, "data_page_size": 1 << 30},
    ),
    "a page of a later version": (
        lambda text: [*SHORT[:59], text],
        {"use_dictionary": False, "data_page_version": "2.0"},
    ),
    "a page of lengths": (
        lambda text: [*SHORT[:59], text],
        {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    ),
    "a page of prefixes": (
        lambda text: [text, text + "a", text + "b", "short", "shorter"],
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
}
CODECS = ("none", "snappy", "zstd")


@pytest.fixture(scope="module")
def long_text() -> str:
    return random_words(LONG).decode("ascii", "ignore")


def _slow_unless(short: bool, *values: str) -> Any:
    return pytest.param(*values, marks=() if short else pytest.mark.slow)


@pytest.mark.parametrize("shape", [_slow_unless(shape.endswith(("60", "prefixes")), shape) for shape in SHAPES])
def test_decoding_takes_no_more_than_was_asked_for(shape: str, long_text: str, tmp_path: Path) -> None:
    make, options = SHAPES[shape]
    files = [tmp_path / f"{codec}.parquet" for codec in CODECS]
    for path in files:
        pq.write_table(pa.table({"text": make(long_text)}), path, compression=path.stem, **options)
    for codec, (asked, grown, text) in zip(CODECS, measured(files, MB), strict=True):
        assert text == sum(map(len, make(long_text)))
        # Less than one copy too much: chunks of a megabyte, and what the allocator keeps.
        assert grown < asked + LONG // 2, codec


@pytest.mark.parametrize(
    ("shape", "codec"),
    [_slow_unless(shape.endswith("60") and codec == "zstd", shape, codec) for shape in SHAPES for codec in CODECS],
)
def test_the_memory_that_is_named_suffices_for_any_sizes_of_texts(
    shape: str, codec: str, long_text: str, tmp_path: Path
) -> None:
    make, options = SHAPES[shape]
    source, limit = tmp_path / "a.parquet", 220
    pq.write_table(pa.table({"text": make(long_text)}), source, compression=codec, **options)
    for expected in (1, 0):
        done = metered(
            "prepare", source, "-o", tmp_path / str(limit), "--memory", f"{limit}MB", "--workers", "2",
            "--limit", "20000",
        )  # fmt: skip
        assert done.code == expected, done.err
        assert done.peak < limit * MB
        if expected:
            limit = int(re.search(r"--memory (\d+)MB`", done.err)[1])


@pytest.mark.slow
def test_a_footer_of_many_columns_and_row_groups_is_refused_with_an_amount_that_suffices(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    data = pa.table({"text": ["hello"] * 10, **{f"c{i}": range(10) for i in range(300)}})
    with pq.ParquetWriter(source, data.schema) as writer:
        for _ in range(1500):
            writer.write_table(data)
    refused = metered("prepare", source, "-o", tmp_path / "out", "--memory", "400MB", "--workers", "2")
    assert refused.code == 1 and refused.peak < 400 * MB
    enough = int(re.search(r"--memory (\d+)MB`", refused.err)[1])
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", f"{enough}MB", "--workers", "2")
    assert run.code == 0, run.err
    assert run.peak < enough * MB


@pytest.mark.slow
def test_many_nulls_stay_below_the_limit(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.nulls(3_000_000, pa.string())}), source, row_group_size=3_000_000)
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", "400MB", "--max-bad", "any")
    assert run.code == 0, run.err
    assert run.peak < 400 * MB
