"""MosaicML's streaming shards: a document is a sample with the column `tokens`; a split is a folder with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.borders import ShardLimit, groups
from shardmill.shards.format import Format, OutputSettings, ShardLayout
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles, read_only
from shardmill.storage import OpenFile, RemoteRanges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_SHARDS = 2  # whose offsets are kept in memory; one has few enough documents for that
_SIZE_LIMIT = 1 << 26  # MosaicML's own
_COPY = 1 << 20  # tokens at a time
_HEADER = 4 + 1 + 4  # bytes before a sample's tokens at most: its size, the kind of its shape, its shape


class Mds(Format):
    name, eot, indexed, contiguous, length_dtype = "mds", "after", True, False, np.dtype("<u4")
    stem, endings = "{split}/shard.{index:05}", (".tokens", ".tokens.lengths", ".mds")
    split_file = "{split}/index.json"

    def layout(self, settings: OutputSettings) -> ShardLayout:
        width = settings.dtype.itemsize
        limit = ShardLimit(
            min(settings.shard_tokens, _SIZE_LIMIT // width),
            cuts_documents=False,
            per_document=-(-(_HEADER + 4) // width),
        )
        return super().layout(settings)._replace(limit=limit, longest=((1 << 32) - 2 * _SIZE_LIMIT) // width)

    def complete(self, shard: Shard) -> list[Written]:
        return [shard.write(".mds", _shard_blocks(shard))] if shard.document_count else []

    def describe(self, files: list[Written], dtype: np.dtype[Any]) -> Iterator[bytes]:
        yield b'{"shards": ['
        for i, file in enumerate(files):
            raw = {"basename": file.name.partition("/")[2], "bytes": file.bytes, "hashes": {}}
            entry = {**_config(dtype), "samples": file.documents, "raw_data": raw, "zip_data": None}
            yield (", " if i else "").encode() + json.dumps(entry, sort_keys=True).encode()
        yield b'], "version": 2}'

    def tokens(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> MdsFiles:
        return MdsFiles(files, dtype)

    def index(self, tokens: TokenFiles) -> EndsIndex:
        assert isinstance(tokens, MdsFiles)
        counts = [int(np.frombuffer(tokens.read_bytes(i, 0, 4), "<u4")[0]) for i in range(len(tokens.files))]
        return EndsIndex(tokens, counts, tokens.ends)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * width + 11 * documents + 700 * (tokens * width // _SIZE_LIMIT + 2)


def _config(dtype: np.dtype[Any]) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": _SIZE_LIMIT,
        "version": 2,
    }


def _shard_blocks(shard: Shard) -> Iterator[bytes | NDArray[Any]]:
    """Yield how many documents there are, their offsets, the configuration, and the samples."""
    config = json.dumps(_config(shard.dtype), sort_keys=True).encode()
    offset = 4 + 4 * (shard.document_count + 1) + len(config)
    yield np.array([shard.document_count, offset], "<u4")
    for lengths in shard.length_blocks():
        ends = offset + np.cumsum(_sample_sizes(lengths, shard.dtype.itemsize))
        yield ends.astype("<u4")
        offset = int(ends[-1])
    yield config
    at = 0
    for lengths in shard.length_blocks():
        for some in groups(lengths, _COPY):
            yield from _samples(shard, some, at)
            at += int(some.sum())


def _samples(shard: Shard, lengths: NDArray[np.int64], at: int) -> Iterator[bytes | NDArray[Any]]:
    """Yield some documents, or one long one, whose tokens begin at `at`."""
    width, end = shard.dtype.itemsize, at + int(lengths.sum())
    headers, header_sizes = _headers(lengths, width)
    if len(lengths) == 1:
        yield headers
        for start in range(at, end, _COPY):
            yield shard.tokens.read(start * width, min(_COPY, end - start) * width)
        return
    is_header = _alternating(np.column_stack([header_sizes, lengths * width]).reshape(-1))
    data = np.empty(len(is_header), np.uint8)
    data[is_header] = headers
    data[~is_header] = np.frombuffer(shard.tokens.read(at * width, (end - at) * width), np.uint8)
    yield data


def _alternating(sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return runs of True and of False in turns, of these sizes."""
    return np.repeat(np.arange(len(sizes)) % 2 == 0, sizes)


def _shape_sizes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes MosaicML takes for the shape of an array of so many tokens."""
    return np.where(lengths < 1 << 8, 1, np.where(lengths < 1 << 16, 2, 4))


def _sample_sizes(lengths: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return 4 + 1 + _shape_sizes(lengths) + lengths * width


def _headers(lengths: NDArray[np.int64], width: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the headers of all samples and the size of each. A header: bytes of the sample, kind of shape, shape."""
    sizes = _shape_sizes(lengths)
    rows = np.zeros((len(lengths), _HEADER), np.uint8)
    rows[:, :4] = (_sample_sizes(lengths, width) - 4).astype("<u4").view(np.uint8).reshape(-1, 4)
    rows[:, 4] = (1 << 2) | np.where(sizes == 4, 2, sizes - 1)
    rows[:, 5:] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
    return rows[np.arange(_HEADER) < (5 + sizes)[:, None]], 5 + sizes


class MdsFiles(TokenFiles):
    """Tokens across MosaicML's shards, where every document has a header of its own."""

    contiguous = False

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        super().__init__(files, dtype)
        known, opened, width = self.files, self.opened, self.dtype.itemsize
        offsets = self._offsets = lru_cache(_SHARDS)(lambda i: _offsets(known[i], opened(i)))
        self.ends = lru_cache(_SHARDS)(lambda i: _ends(known[i], offsets(i), width))
        """Where the documents of a shard end, in tokens."""

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy: the tokens do not lie side by side."""
        return read_only(self.read(start, stop))

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        ends, offsets, width = self.ends(i), self._offsets(i), self.dtype.itemsize
        first = int(np.searchsorted(ends, within, side="right"))
        last = int(np.searchsorted(ends, within + len(out)))
        # Of each document the tokens that are wanted, and the header in front of the next one.
        wanted = np.diff(np.concatenate([[within], ends[first:last], [within + len(out)]])) * width
        lengths = np.diff(ends[first : last + 1], prepend=ends[first - 1] if first else 0) * width
        headers = np.diff(offsets[first : last + 2]) - lengths
        start = int(offsets[first + 1] - (ends[first] - within) * width)
        sizes = np.empty(2 * len(wanted) - 1, np.int64)
        sizes[::2], sizes[1::2] = wanted, headers[1:]
        data = self.read_bytes(i, start, int(sizes.sum()))
        out[:] = data[_alternating(sizes)].view(self.dtype)

    def fill_parts(
        self,
        i: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        # A stretch may have headers in it, so each is read by itself.
        for start, length, place in zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True):
            self.fill(i, start, out[place : place + length])


def _offsets(file: TokenFile, opened: OpenFile | RemoteRanges) -> NDArray[np.int64]:
    """Return where the documents of a shard begin, and the end, in bytes; DamageError if that cannot be."""
    count, size = np.empty(1, "<u4"), file.path.stat().st_size
    opened.fill(0, count.view(np.uint8))
    if 4 * (int(count[0]) + 2) <= size:
        offsets = np.empty(int(count[0]) + 1, "<u4")
        opened.fill(4, offsets.view(np.uint8))
        if offsets[-1] == size and (offsets[1:] >= offsets[:-1]).all():
            return offsets.astype(np.int64)
    raise DamageError("the shard's offsets do not fit its size", place=str(file.path))


def _ends(file: TokenFile, offsets: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    sizes = np.diff(offsets) - 4 - 1
    # The size of the shape, 1, 2 or 4 bytes, depends on the length of the document.
    lengths = np.where(
        (sizes - 1) // width < 1 << 8,
        (sizes - 1) // width,
        np.where((sizes - 2) // width < 1 << 16, (sizes - 2) // width, (sizes - 4) // width),
    )
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] != file.tokens or (lengths < 0).any():
        raise DamageError("the shard's offsets do not fit its tokens", place=str(file.path))
    return ends


FORMAT = Mds()
