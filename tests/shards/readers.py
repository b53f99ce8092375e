"""Readers of every output format, written from what the formats' own readers expect and from nothing of ours."""

from __future__ import annotations

import gzip
import json
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet


def read_stream(format: str, folder: Path, names: list[str], dtype: str) -> np.ndarray:
    """The tokens of a split, from its files in order."""
    parts = [READERS[format](folder / name, dtype).astype(np.int64) for name in names]
    return np.concatenate([np.empty(0, np.int64), *parts])


def raw(path: Path, dtype: str) -> np.ndarray:
    return np.fromfile(path, np.dtype(dtype).newbyteorder("<"))


def npy(path: Path, dtype: str) -> np.ndarray:
    tokens = np.load(path)
    assert tokens.ndim == 1 and tokens.dtype == dtype
    assert path.stat().st_size == 128 + tokens.nbytes
    return tokens


def llmc(path: Path, dtype: str) -> np.ndarray:
    head = np.fromfile(path, "<i4", 256)
    assert tuple(head[:2]) == {2: (20240520, 1), 4: (20240801, 7)}[np.dtype(dtype).itemsize]
    assert not head[3:].any()
    tokens = np.fromfile(path, dtype, offset=1024)
    assert len(tokens) == head[2]
    return tokens


def megatron(path: Path, dtype: str) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *megatron_documents(path)])


def megatron_documents(path: Path) -> list[np.ndarray]:
    data = path.with_suffix(".idx").read_bytes()
    magic, version, code, sequences, documents = struct.unpack_from("<9sQBQQ", data)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    assert documents == sequences + 1
    assert len(data) == 42 + 20 * sequences
    dtype = np.dtype({4: "<i4", 8: "<u2"}[code])
    lengths = np.frombuffer(data, "<i4", sequences, 34)
    offsets = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
    indices = np.frombuffer(data, "<i8", documents, 34 + 12 * sequences)
    assert np.array_equal(indices, np.arange(documents))
    tokens = path.read_bytes()
    assert len(tokens) == lengths.sum() * dtype.itemsize
    return [np.frombuffer(tokens, dtype, n, at) for n, at in zip(lengths, offsets, strict=True)]


def datatrove(path: Path, dtype: str) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *datatrove_documents(path, dtype)])


def datatrove_documents(path: Path, dtype: str) -> list[np.ndarray]:
    tokens = raw(path, dtype)
    ends = np.fromfile(f"{path}.index", "<u8").astype(np.int64)
    kind, count, _ = Path(f"{path}.metadata").read_text().split("\n")
    assert kind.split("|")[1] == str(np.dtype(dtype).itemsize)
    assert int(count) == len(tokens) == (ends[-1] if len(ends) else 0)
    return [tokens[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def mds(path: Path, dtype: str) -> np.ndarray:
    return np.concatenate(mds_documents(path, dtype))


def mds_documents(path: Path, dtype: str) -> list[np.ndarray]:
    data = path.read_bytes()
    assert len(data) < 1 << 32
    (count,) = struct.unpack_from("<I", data)
    offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
    config = json.loads(data[4 + 4 * (count + 1) : offsets[0]])
    assert config["column_encodings"] == [f"ndarray:{dtype}"]
    assert offsets[-1] == len(data)
    documents = []
    for start, end in pairwise(offsets.tolist()):
        (size,) = struct.unpack_from("<I", data, start)
        assert start + 4 + size == end
        shape = {4: "<u1", 5: "<u2", 6: "<u4"}[data[start + 4]]
        (length,) = np.frombuffer(data, shape, 1, start + 5)
        documents.append(np.frombuffer(data[start + 5 + np.dtype(shape).itemsize : end], dtype))
        assert len(documents[-1]) == length
    return documents


def litdata(path: Path, dtype: str) -> np.ndarray:
    return np.concatenate(litdata_documents(path, dtype))


def litdata_documents(path: Path, dtype: str) -> list[np.ndarray]:
    data = path.read_bytes()
    index = json.loads((path.parent / "index.json").read_text())
    (entry,) = (chunk for chunk in index["chunks"] if chunk["filename"] == path.name)
    assert index["config"]["item_loader"] == "TokensLoader"
    assert index["config"]["data_format"] == ["no_header_tensor:" + {"int32": "16", "uint16": "20"}[dtype]]
    (count,) = struct.unpack_from("<I", data)
    offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    assert offsets[0] == 4 + 4 * (count + 1) and offsets[-1] == len(data) == entry["chunk_bytes"] < 1 << 32
    assert (entry["chunk_size"], entry["dim"]) == (count, (len(data) - offsets[0]) // np.dtype(dtype).itemsize)
    return [np.frombuffer(data[start:end], dtype) for start, end in pairwise(offsets)]


def olmo(path: Path, dtype: str) -> np.ndarray:
    documents = olmo_documents(path, dtype)
    tokens = raw(path, dtype)
    assert sum(map(len, documents)) == len(tokens)
    return tokens


def olmo_documents(path: Path, dtype: str) -> list[np.ndarray]:
    tokens = raw(path, dtype)
    documents: list[np.ndarray] = []
    with gzip.open(path.with_suffix(".csv.gz"), "rt") as file:
        for line in file:
            start, end = line.rstrip("\n").split(",")
            assert int(start) == sum(map(len, documents))
            documents.append(tokens[int(start) : int(end)])
    return documents


def torchtitan(path: Path, dtype: str) -> np.ndarray:
    documents = torchtitan_documents(path)
    tokens = raw(path, "uint32")
    assert sum(map(len, documents)) == len(tokens)
    return tokens


def torchtitan_documents(path: Path) -> list[np.ndarray]:
    tokens = np.memmap(path, np.uint32, "r") if path.stat().st_size else np.empty(0, np.uint32)
    offsets = np.load(path.with_name("document_offsets.npy"), mmap_mode="r")
    assert offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == len(tokens)
    return [np.asarray(tokens[start:end]) for start, end in pairwise(offsets.tolist())]


def automodel(path: Path, dtype: str) -> np.ndarray:
    documents = automodel_documents(path, dtype)
    return np.concatenate([np.empty(0, dtype), *documents])


def automodel_documents(path: Path, dtype: str) -> list[np.ndarray]:
    head = np.fromfile(path, "<i4", 256)
    assert tuple(head[:2]) == (278895051, 1)
    assert head[3] == np.dtype(dtype).itemsize and not head[4:].any()
    tokens = np.fromfile(path, dtype, offset=1024)
    assert len(tokens) == head[2]
    starts = np.fromfile(path.with_suffix(".bos.idx"), np.int32)
    return [tokens[start:end] for start, end in pairwise([*starts.tolist(), len(tokens)])]


def parquet(path: Path, dtype: str) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parquet_documents(path, dtype)])


def parquet_documents(path: Path, dtype: str) -> list[np.ndarray]:
    file = pyarrow.parquet.ParquetFile(path)
    assert file.schema_arrow.names == ["input_ids"] and str(file.schema_arrow.field(0).type.value_type) == dtype
    groups = [file.metadata.row_group(i).column(0) for i in range(file.metadata.num_row_groups)]
    assert all(group.compression == "ZSTD" and not group.is_stats_set for group in groups)
    return [np.array(row, dtype) for row in file.read().column("input_ids").to_pylist()]


READERS = {
    "nanogpt": raw,
    "shards": raw,
    "npy": npy,
    "llmc": llmc,
    "megatron": megatron,
    "datatrove": datatrove,
    "mds": mds,
    "litdata": litdata,
    "olmo": olmo,
    "torchtitan": torchtitan,
    "automodel": automodel,
    "parquet": parquet,
}
