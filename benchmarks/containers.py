"""The same documents in every container that people keep text in."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus import SEPARATOR, Corpus

CACHE = Path(__file__).parent / ".cache"
Opener = Callable[[Path], AbstractContextManager[BufferedIOBase]]
TINY = 1000
"""Bytes in each of the many small files."""


@dataclass(frozen=True)
class Text:
    """A container on disk, the bytes of text in it (its documents as UTF-8), and how many documents."""

    path: Path
    container: str
    bytes: int
    documents: int

    def warm(self) -> None:
        """Read it once, so that every way finds it in the page cache."""
        for path in [self.path] if self.path.is_file() else sorted(self.path.iterdir()):
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass

    def delete(self) -> None:
        shutil.rmtree(self.path.parent)


def build(corpus: Corpus, container: str) -> Text:
    """The corpus in that container; made once and kept in the cache."""
    folder = CACHE / "text" / f"{corpus.key}-{container}"
    told = folder / "told.json"
    path = folder / f"text{SUFFIXES[container]}"
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        count = _Count(corpus.documents())
        WRITERS[container](path, count)
        told.write_text(json.dumps({"bytes": count.bytes, "documents": count.documents}))
    held = json.loads(told.read_text())
    return Text(path, container, held["bytes"], held["documents"])


class _Count:
    def __init__(self, documents: Iterable[str]) -> None:
        self.source, self.bytes, self.documents = documents, 0, 0

    def __iter__(self) -> Iterator[str]:
        for text in self.source:
            self.bytes += len(text.encode())
            self.documents += 1
            yield text


@contextmanager
def _plain(path: Path) -> Iterator[BufferedIOBase]:
    with path.open("wb") as file:
        yield file


@contextmanager
def _gzip(path: Path) -> Iterator[BufferedIOBase]:
    with gzip.open(path, "wb", compresslevel=4) as file:
        yield file


@contextmanager
def _zstd(path: Path) -> Iterator[BufferedIOBase]:
    with pa.output_stream(path, compression="zstd") as file:
        yield file


def _text(separator: str) -> Callable[[Path, Iterable[str]], None]:
    def write(path: Path, documents: Iterable[str]) -> None:
        with path.open("wb") as file:
            for i, text in enumerate(documents):
                file.write((separator + text if i else text).encode())

    return write


def _jsonl(opener: Opener) -> Callable[[Path, Iterable[str]], None]:
    def write(path: Path, documents: Iterable[str]) -> None:
        with opener(path) as file:
            for i, text in enumerate(documents):
                file.write(json.dumps({"id": i, "text": text}, ensure_ascii=False).encode() + b"\n")

    return write


def _parquet(compression: str) -> Callable[[Path, Iterable[str]], None]:
    def write(path: Path, documents: Iterable[str]) -> None:
        # 1,000 rows a row group, as FineWeb's files have.
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema, compression=compression) as writer:
            source = iter(documents)
            while batch := list(itertools.islice(source, 1000)):
                writer.write_table(pa.table({"text": batch}, schema=schema), row_group_size=1000)

    return write


def _pieces(size: int) -> Callable[[Path, Iterable[str]], None]:
    def write(path: Path, documents: Iterable[str]) -> None:
        """JSON Lines again, the text cut into or joined to documents of about `size` bytes."""
        with path.open("wb") as file:
            for text in _cut(documents, size):
                file.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")

    return write


def _files(path: Path, documents: Iterable[str]) -> None:
    path.mkdir()
    for i, text in enumerate(_cut(documents, TINY)):
        (path / f"{i:07}.txt").write_text(text, encoding="utf-8", newline="")


def _cut(documents: Iterable[str], size: int) -> Iterator[str]:
    held: list[str] = []
    length = 0
    for text in documents:
        held.append(text)
        length += len(text)
        if length >= size:
            joined = "".join(held)
            whole = len(joined) - len(joined) % size
            yield from (joined[i : i + size] for i in range(0, whole, size))
            held, length = [joined[whole:]], len(joined) - whole
    if length:
        yield "".join(held)


WRITERS: dict[str, Callable[[Path, Iterable[str]], None]] = {
    "text": _text(SEPARATOR),
    "plain": _text("\n\n"),
    "jsonl": _jsonl(_plain),
    "jsonl.gz": _jsonl(_gzip),
    "jsonl.zst": _jsonl(_zstd),
    "parquet-snappy": _parquet("snappy"),
    "parquet-zstd": _parquet("zstd"),
    "tiny-files": _files,
    "tiny-documents": _pieces(100),
    "huge-documents": _pieces(10_000_000),
}
SUFFIXES = {
    "text": ".txt",
    "plain": ".txt",
    "jsonl": ".jsonl",
    "jsonl.gz": ".jsonl.gz",
    "jsonl.zst": ".jsonl.zst",
    "parquet-snappy": ".parquet",
    "parquet-zstd": ".parquet",
    "tiny-files": "",
    "tiny-documents": ".jsonl",
    "huge-documents": ".jsonl",
}
