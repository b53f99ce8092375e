"""The steps of the job that cannot be left out, each alone: what the library that shardmill uses takes for the text.

`python steps.py STEP ARGUMENT…` says how long it took. Only the library's calls are on the clock: what they are given
lies ready in memory, just read, as it would in a run. So a figure is the least that the step takes, not its usual cost.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core import find as find_all
from shardmill.run.machine import settle_allocator
from shardmill.tokens import Engine, load_tokenizer

PIECE = 4 << 20
"""Bytes of text at a time: the usual chunk of a run."""
IDS = PIECE // 4
"""About as many tokens as such a piece has."""
BLOCK, INPUT_BLOCK = 1 << 18, 1 << 16
"""Bytes out of and into a decompressor at a time, as in storage/feeds.py and storage/compressed.py."""
SEPARATOR = b"<|endoftext|>"


class Clock:
    """Seconds, and CPU seconds of all threads and of ended children, while it is entered."""

    def __init__(self) -> None:
        self.cpu = self.seconds = 0.0
        self.did = 0
        """What was done, in the step's own unit: so that a test can see that nothing was left out."""

    def __enter__(self) -> None:
        self._started = time.perf_counter()
        self._spent = _spent()

    def __exit__(self, *error: object) -> None:
        self.cpu += _spent() - self._spent
        self.seconds += time.perf_counter() - self._started


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def read(path: str) -> dict[str, Clock]:
    """The file from the page cache, into a buffer that is used again."""
    clock, buffer = Clock(), bytearray(PIECE)
    handle = os.open(path, os.O_RDONLY)
    with clock:
        while got := os.preadv(handle, [buffer], clock.did):
            clock.did += got
    os.close(handle)
    return {"read": clock}


def validate(path: str) -> dict[str, Clock]:
    """Whether the file is UTF-8."""
    clock = Clock()
    for piece in _pieces(path, b"\n"):
        with clock:
            ends = pa.py_buffer(np.array([0, len(piece)], np.int64))
            pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(piece)).validate(full=True)
        clock.did += len(piece)
    return {"validate": clock}


def find(path: str) -> dict[str, Clock]:
    """Where the separators are."""
    clock = Clock()
    for piece in _pieces(path, SEPARATOR):
        with clock:
            found = find_all(np.frombuffer(piece, np.uint8), SEPARATOR)
        assert found is not None, "the separator cannot overlap itself"
        clock.did += len(found)
    return {"find": clock}


def parse(path: str) -> dict[str, Clock]:
    """The field `text` of JSON Lines."""
    clock = Clock()
    for piece in _pieces(path, b"\n"):
        with clock:
            clock.did += _table(piece).num_rows
    return {"parse": clock}


def zstd(path: str) -> dict[str, Clock]:
    """The stream decompressed."""
    clock = Clock()
    stream = pa.CompressedInputStream(pa.BufferReader(Path(path).read_bytes()), "zstd")
    with clock:
        while block := stream.read(BLOCK):
            clock.did += len(block)
    return {"decompress": clock}


def gzip(path: str) -> dict[str, Clock]:
    """The stream, one member, decompressed."""
    from isal import igzip_lib

    clock, stored, at = Clock(), Path(path).read_bytes(), 0
    member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    with clock:
        while not member.eof:
            block = b""
            if member.needs_input:
                block = stored[at : at + INPUT_BLOCK]
                at += len(block)
                if not block:
                    raise SystemExit(f"error: {path} ends too early")
            clock.did += len(member.decompress(block, BLOCK))
    return {"decompress": clock}


def parquet(path: str) -> dict[str, Clock]:
    """The column `text`, a row group at a time."""
    import pyarrow.parquet as pq

    clock = Clock()
    with pq.ParquetFile(pa.BufferReader(Path(path).read_bytes()), pre_buffer=False) as file, clock:
        for group in range(file.num_row_groups):
            clock.did += file.read_row_group(group, columns=["text"], use_threads=False).num_rows
    return {"decode": clock}


def engine(path: str, workers: str) -> dict[str, Clock]:
    """One cold engine a thread: over the documents of JSON Lines, or a text as it stands."""
    if path.endswith(".jsonl"):
        texts = [_rows(piece) for piece in _pieces(path, b"\n")]
    else:
        pieces = _pieces(path, SEPARATOR if _has_separators(path) else b"\n\n")
        texts = [(np.frombuffer(piece, np.uint8), np.array([0, len(piece)], np.int64)) for piece in pieces]
    tokenizer = load_tokenizer("gpt2")
    engines = [tokenizer.engine() for _ in range(int(workers))]
    clock, turn = Clock(), itertools.count()

    def work(own: Engine) -> int:
        count = 0
        while (i := next(turn)) < len(texts):
            count += len(own.encode(*texts[i]).tokens)
        return count

    with clock, ThreadPoolExecutor(len(engines)) as pool:
        clock.did = sum(pool.map(work, engines))
    return {"engine": clock}


def load(workers: str) -> dict[str, Clock]:
    """The engines made, one after another."""
    clock = Clock()
    with clock:
        tokenizer = load_tokenizer("gpt2")
        clock.did = len([tokenizer.engine() for _ in range(int(workers))])
    return {"load": clock}


def narrow(tokens: str) -> dict[str, Clock]:
    """The engine's ids of four bytes to the file's of two."""
    clock, ids = Clock(), np.arange(IDS, dtype=np.uint32) % 50257
    with clock:
        while clock.did < int(tokens):
            clock.did += len(ids[: int(tokens) - clock.did].astype(np.uint16))
    return {"narrow": clock}


def write(tokens: str, folder: str) -> dict[str, Clock]:
    """The token file to the page cache, and then to the disk."""
    clock, sync, size = Clock(), Clock(), 2 * int(tokens)
    block = np.arange(IDS, dtype=np.uint32).astype(np.uint16).data.cast("B")
    path = Path(folder) / "tokens.bin"
    with path.open("xb", buffering=0) as file:
        with clock:
            while clock.did < size:
                clock.did += file.write(block[: size - clock.did])
        with sync:
            os.fdatasync(file.fileno())
        sync.did = path.stat().st_size
    path.unlink()
    return {"write": clock, "sync": sync}


def digest(tokens: str) -> dict[str, Clock]:
    """SHA-256 of as many bytes as the token file has."""
    clock, found, size = Clock(), hashlib.sha256(), 2 * int(tokens)
    block = np.arange(1 << 19, dtype=np.uint32).astype(np.uint16).data.cast("B")
    with clock:
        while clock.did < size:
            some = block[: size - clock.did]
            found.update(some)
            clock.did += len(some)
    return {"hash": clock}


def start() -> dict[str, Clock]:
    """A process that imports what a run needs, and ends."""
    imported = "import shardmill.run.main, shardmill.documents.jsonl"
    clock = Clock()
    with clock:
        subprocess.run([sys.executable, "-c", imported], check=True)
    clock.did = 1
    return {"start": clock}


def _pieces(path: str, end: bytes) -> Iterator[bytes]:
    """The file in pieces of about PIECE bytes, each but the last ending with `end`."""
    rest = b""
    with open(path, "rb", buffering=0) as file:
        while block := file.read(PIECE):
            held = rest + block
            cut = held.rfind(end) + len(end)
            if cut < len(end):
                rest = held
                continue
            yield held[:cut]
            rest = held[cut:]
    if rest:
        yield rest


def _table(lines: bytes) -> pa.Table:
    import pyarrow.json as pj

    schema = pa.schema([("text", pa.string())])
    return pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 16),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _rows(lines: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    texts = _table(lines).column("text").combine_chunks().cast(pa.large_string())
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1)
    return np.frombuffer(texts.buffers()[2], np.uint8), offsets


def _has_separators(path: str) -> bool:
    with open(path, "rb") as file:
        return path.endswith(".txt") and SEPARATOR in file.read(PIECE)


STEPS: dict[str, Callable[..., dict[str, Clock]]] = {
    step.__name__: step
    for step in (read, validate, find, parse, zstd, gzip, parquet, engine, load, narrow, write, digest, start)
}


if __name__ == "__main__":
    settle_allocator()
    done = STEPS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({name: {"cpu": c.cpu, "seconds": c.seconds, "did": c.did} for name, c in done.items()}))
