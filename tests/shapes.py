"""Shapes of data that have broken limits of memory, and the files that hold them. To add one is to test it everywhere.

A shape is a function that yields Arrow record batches with a column `text`, larger for a larger `scale`. A container is
a function that writes such batches to a file as some tool does.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import zstandard

from tests.corpus import random_words

Shape = Callable[[int], Iterator[pa.RecordBatch]]
Container = Callable[[Path, Iterable[pa.RecordBatch]], None]
SEPARATOR = "\x1e"


def real_text(size: int) -> Iterator[str]:
    """Real documents, short ones with a few long ones among them: the modules of this Python, function by function."""
    left = size
    for module in itertools.cycle(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        text = module.read_text(encoding="utf-8", errors="ignore")
        for part in [text] if len(text) > 100_000 else text.split("\n\ndef "):
            if left <= 0:
                return
            left -= len(part)
            yield part


def _batch(texts: Iterable[str | None], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.string()), **columns})


def _batches(texts: Iterable[str | None], rows: int = 1000) -> Iterator[pa.RecordBatch]:
    some = iter(texts)
    while taken := list(itertools.islice(some, rows)):
        yield _batch(taken)


def _with_long(where: str, scale: int) -> Iterator[pa.RecordBatch]:
    texts = list(real_text(4_000_000 * scale))
    at = {"first": 0, "middle": len(texts) // 2, "last": len(texts)}[where]
    long = " ".join(itertools.islice(real_text(2_400_000), 4000))[:2_200_000]
    yield from _batches([*texts[:at], long, *texts[at:]])


def long_first(scale: int) -> Iterator[pa.RecordBatch]:
    yield from _with_long("first", scale)


def long_middle(scale: int) -> Iterator[pa.RecordBatch]:
    yield from _with_long("middle", scale)


def long_last(scale: int) -> Iterator[pa.RecordBatch]:
    yield from _with_long("last", scale)


def all_equal(scale: int) -> Iterator[pa.RecordBatch]:
    text = "".join(real_text(1_200_000))
    texts = [text[i : i + 20_000] for i in range(0, 49 * 20_000, 20_000)]
    yield from _batches(itertools.islice(itertools.cycle(texts), 400 * scale), 200)


def all_different(scale: int) -> Iterator[pa.RecordBatch]:
    for i in range(scale):
        yield _batch(random_words(4_000_000, seed=i).decode().split("\n"))


def one_letter(scale: int) -> Iterator[pa.RecordBatch]:
    for _ in range(scale):
        yield _batch(pa.repeat(pa.scalar("a"), 400_000))


def empty(scale: int) -> Iterator[pa.RecordBatch]:
    for _ in range(scale):
        yield _batch(pa.repeat(pa.scalar(""), 600_000))
    yield _batch(["the last one has a word"])


def nulls(scale: int) -> Iterator[pa.RecordBatch]:
    for _ in range(scale):
        yield _batch(pa.nulls(100_000, pa.string()))
    yield _batch(["the last one has a word"])


def any_length(scale: int) -> Iterator[pa.RecordBatch]:
    random, text = np.random.default_rng(3), "".join(real_text(2_000_000))
    for length in np.exp(random.uniform(0, np.log(1_000_000), 80 * scale)).astype(int):
        start = int(random.integers(0, 500_000))
        yield _batch([text[start : start + length]])


def wide(scale: int) -> Iterator[pa.RecordBatch]:
    names = [f"column_{i}" for i in range(300)]
    for batch in _batches(real_text(1_000_000 * scale), 100):
        yield _batch(batch.column(0), **{name: pa.array(np.arange(len(batch)) * 7) for name in names})


def huge_other_field(scale: int) -> Iterator[pa.RecordBatch]:
    other = "0" * 4_800_000
    for batch in _batches(itertools.islice(real_text(10_000_000), 4 * scale), 2):
        yield _batch(batch.column(0), other=pa.array([other] * len(batch)))


def common_prefix(scale: int) -> Iterator[pa.RecordBatch]:
    prefix = "".join(real_text(1_000_000))
    yield from _batches((f"{prefix} {i}" for i in range(15 * scale)), 5)


def one_giant(scale: int) -> Iterator[pa.RecordBatch]:
    yield _batch(["before", " ".join(real_text(12_000_000 * scale)), "after"])


SHAPES: dict[str, Shape] = {
    shape.__name__: shape
    for shape in (
        long_first, long_middle, long_last, all_equal, all_different, one_letter, empty, nulls, any_length, wide,
        huge_other_field, common_prefix, one_giant,
    )
}  # fmt: skip


def _parquet(row_group: int = 1 << 20, **options: object) -> Container:
    def write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(list(batches))
        pq.write_table(table, path, row_group_size=row_group, **options)

    return write


def _arrow(make: Callable[..., pa.ipc.RecordBatchStreamWriter], compression: str | None, one: bool) -> Container:
    def write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(list(batches))
        if one:
            table = table.combine_chunks()
        with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)

    return write


def _views(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Every batch has buffers of its own for each few texts, and each is compressed."""
    table = pa.Table.from_batches(list(batches)).combine_chunks()
    column = pa.concat_arrays([chunk.cast(pa.string_view()) for chunk in table["text"].chunks])
    table = table.set_column(table.schema.get_field_index("text"), "text", column)
    _arrow(pa.ipc.new_file, "zstd", False)(path, table.to_batches())


def _long_window(path: Path, mode: str) -> object:
    """As `zstd --long=27` writes it."""
    settings = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True, compression_level=1)
    return zstandard.open(path, mode, cctx=zstandard.ZstdCompressor(compression_params=settings))


def _jsonl(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for row in batch.to_pylist():
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _csv(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    header = None
    for batch in batches:
        written = io.StringIO(newline="")
        writer = csv.writer(written)
        if header is None:
            header = batch.schema.names
            writer.writerow(header)
        writer.writerows([row[name] for name in header] for row in batch.to_pylist())
        yield written.getvalue().replace("\0", "").encode()


def _text(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield "".join((text or "") + SEPARATOR for text in batch.column("text").to_pylist()).encode()


def _packed(lines: Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]], opened: Callable[..., Any]) -> Container:
    def write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
        with opened(path, "wb") as file:
            for block in lines(batches):
                file.write(block)

    return write


CONTAINERS: dict[str, Container] = {
    "defaults.parquet": _parquet(),
    "groups_of_3000.parquet": _parquet(3000),
    "zstd_plain.parquet": _parquet(compression="zstd", use_dictionary=False),
    "large_dictionary.parquet": _parquet(dictionary_pagesize_limit=1 << 30),
    "large_pages.parquet": _parquet(data_page_size=1 << 30, compression="none"),
    "delta.parquet": _parquet(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
    "version_2.parquet": _parquet(data_page_version="2.0", compression="zstd"),
    "file.arrow": _arrow(pa.ipc.new_file, None, False),
    "one_batch_zstd.arrow": _arrow(pa.ipc.new_file, "zstd", True),
    "stream_lz4.arrows": _arrow(pa.ipc.new_stream, "lz4", True),
    "views.arrow": _views,
    "lines.jsonl": _packed(_jsonl, open),
    "lines.jsonl.gz": _packed(_jsonl, gzip.open),
    "lines.jsonl.zst": _packed(_jsonl, zstandard.open),
    "long_window.jsonl.zst": _packed(_jsonl, _long_window),
    "table.csv": _packed(_csv, open),
    "table.csv.bz2": _packed(_csv, bz2.open),
    "text.txt": _packed(_text, open),
    "text.txt.xz": _packed(_text, lzma.open),
    "text.txt.zst": _packed(_text, zstandard.open),
}
