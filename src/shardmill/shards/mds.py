"""MosaicML's streaming shards: a document is a sample with the column `tokens`; a split is a folder with an index."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.shards.documents import DocumentOutput, Pair
from shardmill.storage.files import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE_LIMIT = 1 << 26  # MosaicML's own
_BLOCK = 1 << 16  # documents at a time
_COPY = 1 << 20  # tokens at a time
_HEADER = 4 + 1 + 4  # bytes before a sample's tokens at the most: its size, the kind of its shape, its shape


class MdsOutput(DocumentOutput):
    """The shards of all splits. Their offsets have 32 bits, so a shard stays under 4 GiB whatever its documents are."""

    format = "mds"
    length_dtype = np.dtype("<u4")

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any], eot: str | None, limit: int) -> None:
        super().__init__(folder, name, dtype, eot or "after")
        self.limit = min(limit, _SIZE_LIMIT // dtype.itemsize)
        self.per_document = -(-(_HEADER + 4) // dtype.itemsize)
        self.longest = ((1 << 32) - 2 * _SIZE_LIMIT) // dtype.itemsize
        self._shards: list[Written] = []
        self._config = {
            "column_encodings": [f"ndarray:{dtype.name}"],
            "column_names": ["tokens"],
            "column_sizes": [None],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": _SIZE_LIMIT,
            "version": 2,
        }

    def tokens_name(self, split: str, index: int) -> str:
        # Always a partial file: how much stands before the samples is known only when all documents of a shard are.
        return f"{split}/shard.{index:05}.tokens"

    def owns(self) -> re.Pattern[str]:
        """The shards, what they are made of, and the index."""
        return re.compile(r"(?:train|val)/(?:shard\.\d{5,}\.(?:mds|tokens|tokens\.lengths)|index\.json)")

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """The same, and what is known of the shards that are complete."""
        super().restore(position, complete)
        self._shards = [written for written in complete if written.role != "index"]

    def complete(self, pair: Pair) -> list[Written]:
        """The shard takes the place of the pair."""
        if not pair.document_count:
            written = []
        else:
            name = f"{pair.split}/shard.{pair.index:05}.mds"
            with closing(PartialFile(self.folder / name, name=name)) as shard:
                self._write_shard(shard, pair)
                written = [replace(shard.finish(pair.token_count), documents=pair.document_count)]
        self._shards += written
        self.obsolete(pair.tokens)
        self.obsolete(pair.lengths)
        return written

    def complete_split(self, split: str) -> list[Written]:
        """The index, from what was said of the shards when they became whole: they may be elsewhere by now."""
        name = f"{split}/index.json"
        shards = [shard for shard in self._shards if shard.name.startswith(f"{split}/")]
        with closing(PartialFile(self.folder / name, name=name)) as index:
            index.append(b'{"shards": [')
            for i, shard in enumerate(shards):
                raw = {"basename": shard.name.partition("/")[2], "bytes": shard.bytes, "hashes": {}}
                entry = {**self._config, "samples": shard.documents, "raw_data": raw, "zip_data": None}
                index.append((", " if i else "").encode() + json.dumps(entry, sort_keys=True).encode())
            index.append(b'], "version": 2}')
            return [index.finish(0, role="index")]

    def _write_shard(self, shard: PartialFile, pair: Pair) -> None:
        """Head, offsets, configuration, samples; each streamed."""
        config = json.dumps(self._config, sort_keys=True).encode()
        shard.append(np.array([pair.document_count], "<u4"))
        offset = 4 + 4 * (pair.document_count + 1) + len(config)
        shard.append(np.array([offset], "<u4"))
        for lengths in _blocks(pair):
            ends = offset + np.cumsum(_sample_sizes(lengths, self.dtype.itemsize))
            shard.append(ends.astype("<u4"))
            offset = int(ends[-1])
        shard.append(config)
        at = 0
        for lengths in _blocks(pair):
            for some in _runs(lengths):
                at = self._append_samples(shard, pair, some, at)

    def _append_samples(self, shard: PartialFile, pair: Pair, lengths: NDArray[np.int64], at: int) -> int:
        """Some documents, or one long one; gives where the next one's tokens begin."""
        width = self.dtype.itemsize
        end = at + int(lengths.sum())
        if len(lengths) == 1:
            shard.append(_headers(lengths, width)[0])
            for start in range(at, end, _COPY):
                shard.append(pair.tokens.read(start * width, min(_COPY, end - start) * width))
            return end
        sizes = _sample_sizes(lengths, width)
        starts = np.cumsum(sizes) - sizes
        headers, header_sizes = _headers(lengths, width)
        data = np.empty(int(sizes.sum()), np.uint8)
        is_header = np.zeros(len(data), np.bool_)
        first = np.cumsum(header_sizes) - header_sizes
        within = np.arange(len(headers)) - np.repeat(first, header_sizes)
        is_header[np.repeat(starts, header_sizes) + within] = True
        data[is_header] = headers
        data[~is_header] = np.frombuffer(pair.tokens.read(at * width, (end - at) * width), np.uint8)
        shard.append(data)
        return end


def _widths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that MosaicML takes for the shape of an array of so many tokens."""
    return np.where(lengths < 1 << 8, 1, np.where(lengths < 1 << 16, 2, 4))


def _sample_sizes(lengths: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return 4 + 1 + _widths(lengths) + lengths * width


def _headers(lengths: NDArray[np.int64], width: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What stands before the tokens of each document: bytes of the sample, kind of shape, shape. And their sizes."""
    widths = _widths(lengths)
    rows = np.zeros((len(lengths), _HEADER), np.uint8)
    rows[:, :4] = (_sample_sizes(lengths, width) - 4).astype("<u4").view(np.uint8).reshape(-1, 4)
    rows[:, 4] = (1 << 2) | np.where(widths == 4, 2, widths - 1)
    rows[:, 5:] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
    return rows[np.arange(_HEADER) < (5 + widths)[:, None]], 5 + widths


def _blocks(pair: Pair) -> Iterator[NDArray[np.int64]]:
    for first in range(0, pair.document_count, _BLOCK):
        count = min(_BLOCK, pair.document_count - first)
        yield np.frombuffer(pair.lengths.read(4 * first, 4 * count), "<u4").astype(np.int64)


def _runs(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Documents in groups of about a megabyte; one that is longer stands alone."""
    long = lengths > _COPY
    group = (np.cumsum(lengths) - 1) // _COPY + np.cumsum(long) + np.cumsum(np.append(False, long[:-1]))
    cuts = np.flatnonzero(group[1:] != group[:-1]) + 1
    yield from np.split(lengths, cuts)
