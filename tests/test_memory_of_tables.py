"""Bounded, from outside, for CSV and Arrow files in which the text is not what takes memory."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.corpus import random_words
from tests.decoding_memory import measured
from tests.meter import metered

pytestmark = pytest.mark.thorough

MB = 1_000_000


def _repeated(text: bytes, count: int) -> pa.Array:
    ends = np.arange(count + 1, dtype=np.int64) * len(text)
    return pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])


def _one_batch(path: Path, columns: dict[str, pa.Array], compression: str | None = "zstd") -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    with pa.ipc.new_file(path, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)


def _other_column(path: Path) -> int:
    zeros = pa.array(np.zeros(150 * MB, np.int64))
    _one_batch(path, {"other": pa.FixedSizeListArray.from_arrays(zeros, 1500), "text": _repeated(b"words ", 100_000)})
    return 100_000


def _empty_rows(path: Path) -> int:
    _one_batch(path, {"text": _repeated(b"", 20 * MB)})
    return 20 * MB


def _much_text(path: Path) -> int:
    _one_batch(path, {"text": _repeated(b"word " * 1200, 100_000)})
    return 100_000


def _deltas(path: Path) -> int:
    """A dictionary that grows to 86 MB."""
    kind = pa.dictionary(pa.int32(), pa.string())
    values = pa.array([f"{i:06} " * 140 for i in range(88_000)])
    schema = pa.schema([("text", kind)])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(path, schema, options=options) as writer:
        for end in range(4000, 88_001, 4000):
            numbers = pa.array(range(end - 4000, end, 40), pa.int32())
            column = pa.DictionaryArray.from_arrays(numbers, values.slice(0, end))
            writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
    return 2200


def _csv(head: bytes, row: bytes, count: int) -> Callable[[Path], int]:
    def write(path: Path) -> int:
        with open(path, "wb") as file:
            file.write(head)
            file.writelines(itertools.repeat(row * 10, count // 10))
        return count

    return write


SHAPES = {
    "other-column.arrow": (_other_column, "400MB"),
    "deltas.arrow": (_deltas, "400MB"),
    "other-field.csv": (_csv(b"text,b\n", b"words," + b"x" * 4_800_000 + b"\n", 30), "400MB"),
    "not-utf-8.csv": (_csv(b"text,b\n", b"words,\xff" + b"\xc3\xa9" * 15_000_000 + b"\n", 10), "400MB"),
    "pairs-of-quotes.csv": (_csv(b"text,b\n", b'words,"' + b'""' * 15_000_000 + b'"\n', 10), "400MB"),
    "empty-rows.arrow": (_empty_rows, "1GB"),
    "much-text.arrow": (_much_text, "400MB"),
    "empty-rows.csv": (_csv(b"text,b\n", b",1\n", 8 * MB), "1GB"),
    "one-letter.csv": (_csv(b"text\n", b"a\n", 5 * MB), "400MB"),
}
QUICK = ("other-column.arrow", "deltas.arrow", "other-field.csv")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SHAPES])
def test_what_is_not_text_takes_no_more_than_the_limit_either(tmp_path: Path, name: str) -> None:
    make, limit = SHAPES[name]
    source = tmp_path / name
    count = make(source)
    # How much more a compressed batch takes than twice its stored bytes is known only when it has been decoded.
    for _ in range(3 if name == "much-text.arrow" else 2):
        allowed = int(limit[:-2]) * (1000 * MB if limit.endswith("GB") else MB)
        done = metered("prepare", source, "-o", tmp_path / "out", "--memory", limit, "--workers", "2", "-q")
        assert done.peak <= allowed, f"{done.peak / MB:.0f} MB under {limit}\n{done.err}"
        if done.code == 0:
            break
        limit = re.search(r"`--memory (\d+MB)`", done.err)[1]  # it has to suffice
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["documents"] + manifest["empty"] == count


LONG = 60 * MB


def _long_batches(kind: pa.DataType, compression: str | None, *, repeated: bool = False) -> Callable[[Path], list[str]]:
    """A stream of two batches with a long text each, compressed again if the name says so."""

    def write(path: Path) -> list[str]:
        text = random_words(LONG).decode("ascii", "ignore")
        texts = ["short", *[text] * (3 if repeated else 1), "short"]
        batch = pa.RecordBatch.from_pydict({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
        batch = batch.set_column(1, "text", batch["text"].dictionary_encode() if repeated else batch["text"].cast(kind))
        make = gzip.open if path.suffix == ".gz" else open
        with make(path, "wb") as file:
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_stream(file, batch.schema, options=options) as writer:
                writer.write_batch(batch)
                writer.write_batch(batch)
        return texts * 2

    return write


LARGE_BATCHES = {
    "plain.arrow": _long_batches(pa.string(), None),
    "zstd.arrow": _long_batches(pa.large_string(), "zstd"),
    "lz4.arrow": _long_batches(pa.string(), "lz4"),
    "views.arrow": _long_batches(pa.string_view(), "zstd"),
    "dictionary.arrow": _long_batches(pa.string(), "zstd", repeated=True),
    "plain.arrow.gz": _long_batches(pa.string(), None),
    "zstd.arrow.gz": _long_batches(pa.string(), "zstd"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "zstd.arrow" else pytest.mark.slow) for name in LARGE_BATCHES]
)
def test_the_memory_that_is_named_for_an_arrow_batch_suffices(tmp_path: Path, name: str) -> None:
    source, limit = tmp_path / name, 220
    texts = LARGE_BATCHES[name](source)
    [(asked, grown, text)] = measured([source], MB)
    assert text == sum(map(len, texts))
    assert grown < asked + LONG // 2  # less than one copy too much
    for expected in (1, 0):
        done = metered(
            "prepare", source, "-o", tmp_path / str(limit), "--memory", f"{limit}MB", "--workers", "2",
            "--limit", "20000",
        )  # fmt: skip
        assert done.code == expected, done.err
        assert done.peak < limit * MB
        if expected:
            limit = int(re.search(r"--memory (\d+)MB`", done.err)[1])
