"""MosaicML's streaming shards: a document is a sample with the column `tokens`; a split is a folder with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards.document_index import Ends
from shardmill.shards.documents import Pair, RepackedOutput
from shardmill.shards.format import Format, Order
from shardmill.shards.token_files import OpenFile, TokenFile, TokenFiles, frozen
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARDS = 2  # whose offsets are held; one has few enough documents for that
_SIZE_LIMIT = 1 << 26  # MosaicML's own
_COPY = 1 << 20  # tokens at a time
_HEADER = 4 + 1 + 4  # bytes before a sample's tokens at the most: its size, the kind of its shape, its shape


class Mds(Format):
    name, eot, indexed, contiguous = "mds", "after", True, False
    claims = ("train/index.json",)

    def output(self, order: Order) -> MdsOutput:
        return MdsOutput(self, order)

    def tokens(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> MdsFiles:
        return MdsFiles(files, dtype)

    def index(self, tokens: TokenFiles) -> Ends:
        assert isinstance(tokens, MdsFiles)
        counts = [int(np.frombuffer(tokens.read_bytes(i, 0, 4), "<u4")[0]) for i in range(len(tokens.files))]
        return Ends(tokens, counts, tokens.ends)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        return tokens * width + 11 * documents + 700 * (tokens * width // _SIZE_LIMIT + 2)


class MdsOutput(RepackedOutput):
    """The shards of all splits."""

    stem, ending = "shard.{index:05}", ".mds"

    def __init__(self, kind: Format, order: Order) -> None:
        super().__init__(kind, order)
        width = order.dtype.itemsize
        self.limit = min(order.shard_tokens, _SIZE_LIMIT // width)
        self.per_document = -(-(_HEADER + 4) // width)
        self.longest = ((1 << 32) - 2 * _SIZE_LIMIT) // width
        self._config = {
            "column_encodings": [f"ndarray:{order.dtype.name}"],
            "column_names": ["tokens"],
            "column_sizes": [None],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": _SIZE_LIMIT,
            "version": 2,
        }

    def write_index(self, index: PartialFile, files: list[Written]) -> None:
        index.append(b'{"shards": [')
        for i, shard in enumerate(files):
            raw = {"basename": shard.name.partition("/")[2], "bytes": shard.bytes, "hashes": {}}
            entry = {**self._config, "samples": shard.documents, "raw_data": raw, "zip_data": None}
            index.append((", " if i else "").encode() + json.dumps(entry, sort_keys=True).encode())
        index.append(b'], "version": 2}')

    def write_file(self, file: PartialFile, pair: Pair) -> None:
        """Head, offsets, configuration, samples."""
        config = json.dumps(self._config, sort_keys=True).encode()
        offset = 4 + 4 * (pair.document_count + 1) + len(config)
        file.append(np.array([pair.document_count, offset], "<u4"))
        for lengths in pair.blocks():
            ends = offset + np.cumsum(_sample_sizes(lengths, self.dtype.itemsize))
            file.append(ends.astype("<u4"))
            offset = int(ends[-1])
        file.append(config)
        at = 0
        for lengths in pair.blocks():
            for some in _runs(lengths):
                at = self._append_samples(file, pair, some, at)

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


def _runs(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Documents in groups of about a megabyte; one that is longer stands alone."""
    long = lengths > _COPY
    group = (np.cumsum(lengths) - 1) // _COPY + np.cumsum(long) + np.cumsum(np.append(False, long[:-1]))
    cuts = np.flatnonzero(group[1:] != group[:-1]) + 1
    yield from np.split(lengths, cuts)


class MdsFiles(TokenFiles):
    """Tokens across MosaicML's shards, where every document has a head of its own."""

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        super().__init__(files, dtype)
        self._offsets = lru_cache(_SHARDS)(partial(_offsets, self.opened, self.files))
        self.ends = lru_cache(_SHARDS)(partial(_ends, self._offsets, self.files, self.dtype))
        """For each shard where its documents end, in tokens."""

    def __setstate__(self, state: tuple[list[TokenFile], np.dtype[Any]]) -> None:
        MdsFiles.__init__(self, *state)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """A copy: the tokens do not lie side by side."""
        return frozen(self.read(start, stop))

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        """Fill an array with tokens of one shard."""
        ends, offsets, width = self.ends(i), self._offsets(i), self.dtype.itemsize
        first = int(np.searchsorted(ends, within, side="right"))
        last = int(np.searchsorted(ends, within + len(out)))
        rows = np.arange(first, last + 1)
        begins = np.where(rows > 0, ends[rows - 1], 0)
        heads = offsets[rows + 1] - offsets[rows] - (ends[rows] - begins) * width
        start = int(offsets[first] + heads[0] + (within - begins[0]) * width)
        stop = int(offsets[last] + heads[-1] + (within + len(out) - begins[-1]) * width)
        data = self.read_bytes(i, start, stop - start)
        # The heads of all documents but the first stand between the tokens; they are cut out in one go.
        heads, at = heads[1:], offsets[rows[1:]] - start
        tokens = np.ones(len(data), np.bool_)
        tokens[np.repeat(at - (np.cumsum(heads) - heads), heads) + np.arange(int(heads.sum()))] = False
        out[:] = data[tokens].view(self.dtype)


def _offsets(opened: Callable[[int], OpenFile], files: Sequence[TokenFile], i: int) -> NDArray[np.int64]:
    """Where the documents of a MosaicML shard begin, and the end, in bytes; DamageError when that cannot be."""
    count = np.empty(1, "<u4")
    opened(i).fill(0, count.view(np.uint8))
    size = files[i].path.stat().st_size
    if 4 * (int(count[0]) + 2) <= size:
        offsets = np.empty(int(count[0]) + 1, "<u4")
        opened(i).fill(4, offsets.view(np.uint8))
        if offsets[-1] == size and (offsets[1:] >= offsets[:-1]).all():
            return offsets.astype(np.int64)
    raise DamageError("the shard's offsets do not fit its size", place=str(files[i].path))


def _ends(
    offsets: Callable[[int], NDArray[np.int64]], files: Sequence[TokenFile], dtype: np.dtype[Any], i: int
) -> NDArray[np.int64]:
    sizes, width = np.diff(offsets(i)) - 4 - 1, dtype.itemsize
    # How wide a document's length is written depends on the length: 1, 2 or 4 bytes.
    lengths = np.where(
        (sizes - 1) // width < 1 << 8,
        (sizes - 1) // width,
        np.where((sizes - 2) // width < 1 << 16, (sizes - 2) // width, (sizes - 4) // width),
    )
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] != files[i].tokens or (lengths < 0).any():
        raise DamageError("the shard's offsets do not fit its tokens", place=str(files[i].path))
    return ends


FORMAT = Mds()
