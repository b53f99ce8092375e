"""The slow and obvious twin of the reading room, and a way to read a source as the pipeline would."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from shardmill.documents import SPAN, FreeRoom, Position, Reading, Room, SourceReader
from shardmill.documents.chunks import TooLarge
from shardmill.sources import find_sources
from shardmill.storage import Source

FREE = FreeRoom()
SIZES = (1, 2, 3, 5, 7, 16, 61, 1000, 1 << 22)

_GAP = re.compile(rb"(?<=[!-~]) (?=[!-~\x80-\xff])")


def cut(window: bytes, at: int) -> int:
    """A safe place as a word-splitting tokenizer would have it: between a letter and a space before another letter."""
    found = _GAP.search(window, at)
    return found.start() if found else -1


@dataclass
class Read:
    """All that came out of a source."""

    documents: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    reject_bytes: list[int] = field(default_factory=list)
    too_large: list[int] = field(default_factory=list)
    """Sizes of records that would end a run."""
    replaced: int = 0
    chunks: int = 0
    long: int = 0
    tail: list[bool] = field(default_factory=list)
    document_tail: list[bool] = field(default_factory=list)
    """Only of rows with which a document begins."""
    costs: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)


def read_source(
    source: Source,
    size: int,
    reading: Reading | None = None,
    start: Position | None = None,
    most: int | None = None,
    room: Room = FREE,
) -> Read:
    """Read a source from a position on, at most so many chunks of it, and check what holds for any chunks."""
    start = start or Position()
    reader = SourceReader(3, source, reading or Reading(), room)
    out = Read()
    position = start
    for chunk in islice(reader.chunks(start, size), most):
        assert chunk.source == 3
        assert chunk.start == position.offset
        assert chunk.begins is not position.inside
        assert chunk.end > chunk.start or chunk.end == 0
        out.long += chunk.long
        if chunk.long and reader.unit == "byte":
            pieces = list(reader.pieces(chunk, 50))
            assert all(0 < len(piece) <= 51 for piece in pieces)
            rows, lines = [b"".join(pieces)], 0
            rows[0].decode()
        else:
            documents = reader.read(chunk).packed()
            data = documents.data.tobytes()
            ends = documents.offsets.tolist()
            rows = [data[a:b] for a, b in pairwise(ends)]
            for row in rows:
                row.decode()
            if not documents.replaced(len(documents)):
                assert sum(map(len, rows)) <= chunk.lease.text
            if chunk.stream:
                out.rows += rows
                rows = [b"".join(rows)]
            lines = documents.lines
            if reader.unit != "byte":
                out.records += [position.records + documents.record(i) for i in range(len(documents))]
            out.rejects += [(position.records + reject.record, reject.reason) for reject in documents.rejects]
            out.too_large += [reject.size for reject in documents.rejects if isinstance(reject, TooLarge)]
            out.reject_bytes += [chunk.start + reject.byte for reject in documents.rejects]
            assert all(len(reject.excerpt) <= 80 for reject in documents.rejects)
            out.replaced += documents.replaced(len(documents))
            if documents.tail is not None:
                assert len(documents.tail) == len(documents)
                out.tail += documents.tail.tolist()
                out.document_tail += documents.tail.tolist() if chunk.begins else []
        if not (chunk.begins and chunk.ends):
            assert len(rows) == 1
        if not chunk.begins:
            if not out.documents:
                out.documents.append(b"")
            out.documents[-1] += rows.pop(0)
        out.documents += rows
        out.chunks += 1
        out.costs.append(chunk.lease.text)
        position = Position(chunk.end, position.records + lines, not chunk.ends)
        out.positions.append(position)
    reader.check()
    return out


def read_path(
    path: Path | str, size: int = 1 << 22, reading: Reading | None = None, form: str = "auto", room: Room = FREE
) -> Read:
    [source] = find_sources([str(path)], form)
    return read_source(source, size, reading, room=room)


def text_documents(data: bytes, separator: bytes | None) -> list[bytes]:
    """What a text file holds, said in four lines."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    pieces = [data] if separator is None else data.split(separator)
    if separator is not None and not pieces[-1]:
        pieces.pop()
    return [piece.decode("utf-8", "replace").encode() for piece in pieces]


def span_starts(data: bytes) -> list[int]:
    """Where spans begin, looked for one position at a time."""
    starts = {0}
    for multiple in range(SPAN, len(data), SPAN):
        place = cut(data, multiple)
        if place > 0:
            starts.add(place)
    return sorted(starts)


def json_documents(data: bytes, name: str = "text") -> tuple[list[bytes], list[int], list[int]]:
    """The texts of JSON Lines, the lines they stand on, and the lines that are rejects."""
    texts, records, rejects = [], [], []
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip(b" \t\r"):
            continue
        try:
            value = json.loads(line.decode(), parse_int=float)[name]
            if not isinstance(value, str):
                raise TypeError
            texts.append(value.encode())
            records.append(number)
        except (ValueError, KeyError, TypeError, IndexError):
            rejects.append(number)
    return texts, records, rejects


def compress_zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSIONS = {"": bytes, ".gz": gzip.compress, ".zst": compress_zstd, ".bz2": bz2.compress, ".xz": lzma.compress}


def table(texts: list[str | None]) -> pa.Table:
    return pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})


def jsonl_bytes(texts: list[str | None]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(texts))


def arrow_bytes(data: pa.Table, stream: bool = False, rows: int = 7, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def parquet_bytes(data: pa.Table, rows: int = 7, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(data, sink, row_group_size=rows, **options)
    return sink.getvalue().to_pybytes()


def csv_bytes(data: pa.Table, delimiter: str = ",") -> bytes:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(data, sink, pa.csv.WriteOptions(delimiter=delimiter))
    return sink.getvalue().to_pybytes()
