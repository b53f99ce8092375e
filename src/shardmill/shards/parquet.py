"""Parquet with a column `input_ids`: a row for each document, or for each row of a packed dataset, compressed by zstd.

A row cannot cross the border of two row groups, and a row group is decoded as a whole. So row groups are small, for
readers that jump, and the length of a document is limited, for the memory of those who write and read it.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.shards.borders import groups
from shardmill.shards.format import Format, OutputSettings, Recognised, ShardLayout
from shardmill.shards.token_files import EndsIndex, TokenFile, TokenFiles, read_only
from shardmill.storage import AnyPath, OpenFile, RemoteRanges, open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

# pyarrow.parquet is imported where it is used: it takes a tenth of a second, and every command may ask any format
# whether it knows a file.

_COLUMN = "input_ids"
_GROUP_TOKENS = 1 << 18  # of a row group, unless a document is longer
_LONGEST = 1 << 21  # tokens of a document
_LARGEST_GROUP = 1 << 25  # tokens of a row group that another tool has made
_TOKEN_BYTES = 30  # of memory to write or read a row group: the tokens several times, and two levels for each
_CACHED_TOKENS = 1 << 21  # in decoded row groups; the newest is kept in any case
_FOOTERS = 64  # files whose list of row groups is kept
_FILES = 2  # files whose ends of documents are kept
_TYPES = {"uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i4"}
"""By the type in the file; int64 is what lists of Python's numbers become."""


class TokenParquet(Format):
    name, eot, indexed, contiguous, length_dtype = "parquet", "after", True, False, np.dtype("<u4")
    compressed, holds_rows, memory_bytes = True, True, _TOKEN_BYTES * _LONGEST
    stem, endings = "{split}-{index:05}", (".tokens", ".tokens.lengths", ".parquet")

    @property
    def libraries(self) -> dict[str, str]:
        return {"pyarrow": importlib.metadata.version("pyarrow")}

    def layout(self, settings: OutputSettings) -> ShardLayout:
        import pyarrow.parquet  # noqa: F401 - now: a memory limit counts what is loaded before the run

        dtype = np.dtype("<u2" if settings.dtype.itemsize == 2 else "<i4")
        return super().layout(settings)._replace(dtype=dtype, longest=_LONGEST)

    def complete(self, shard: Shard) -> list[Written]:
        return [shard.write(".parquet", _file_blocks(shard))]

    def tokens(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> ParquetFiles:
        return ParquetFiles(files, dtype)

    def index(self, tokens: TokenFiles) -> EndsIndex:
        assert isinstance(tokens, ParquetFiles)
        counts = [tokens.footer(i).rows for i in range(len(tokens.files))]
        return EndsIndex(tokens, counts, lru_cache(_FILES)(tokens.ends))

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".parquet":
            return None
        footer = _read_footer(path, open_file(path))
        if footer.dtype is None:
            return None
        return Recognised(footer.dtype, TokenFile(path, footer.tokens))

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        # Web text takes 1.7 bytes for a token of GPT-2, and 1.8 with ids up to 150,000.
        return round(tokens * (1.75 if width == 2 else 1.9)) + documents + 700 * (tokens // shard_tokens + 2)


class _Sink(io.RawIOBase):
    """A file that hands on what is written to it."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._blocks.append(bytes(data))
        return len(self._blocks[-1])

    def taken(self) -> list[bytes]:
        blocks, self._blocks = self._blocks, []
        return blocks


def _file_blocks(shard: Shard) -> Iterator[bytes]:
    """Yield a file of Parquet, row group after row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width, at, sink = shard.dtype.itemsize, 0, _Sink()
    listed = pa.list_(pa.uint16() if width == 2 else pa.int32())
    schema = pa.schema([pa.field(_COLUMN, listed)])
    with pq.ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=False, write_statistics=False, data_page_size=1 << 20
    ) as writer:
        for lengths in shard.length_blocks():
            for some in groups(lengths, _GROUP_TOKENS):
                count = int(some.sum())
                data = pa.py_buffer(shard.tokens.read(at * width, count * width))
                values = pa.Array.from_buffers(listed.value_type, count, [None, data])
                offsets = pa.py_buffer(np.append(0, np.cumsum(some)).astype("<i4"))
                rows = pa.Array.from_buffers(listed, len(some), [None, offsets], children=[values])
                writer.write_table(pa.Table.from_arrays([rows], schema=schema), row_group_size=len(some))
                yield from sink.taken()
                at += count
    yield from sink.taken()


class _Footer(NamedTuple):
    """What the end of a file says of its row groups."""

    metadata: Any
    rows: int
    dtype: np.dtype[Any] | None
    """The type of the tokens; None: there is no column of them."""
    ends: NDArray[np.int64]
    """Where row groups end, in tokens."""
    bytes: NDArray[np.int64]
    """Where the tokens of each begin in the file, and their last byte."""

    @property
    def tokens(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


class _Source(io.RawIOBase):
    """An open file as pyarrow wants it, for one thread."""

    def __init__(self, file: OpenFile | RemoteRanges) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._file.size - self._at))
        self._file.fill(self._at, np.frombuffer(buffer, np.uint8, count))
        self._at += count
        return count


def _read_footer(path: AnyPath, file: OpenFile | RemoteRanges) -> _Footer:
    """Read the end of a file; DamageError if it is not one of Parquet, UsageError if its row groups are too large."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(_Source(file))
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise DamageError(f"the file is not one of Parquet: {error}", place=str(path)) from None
    listed = schema.field(_COLUMN).type if _COLUMN in schema.names else None
    found = _TYPES.get(str(listed.value_type)) if listed is not None and hasattr(listed, "value_type") else None
    if found is None or not (pa.types.is_list(listed) or pa.types.is_large_list(listed)):
        return _Footer(metadata, metadata.num_rows, None, np.empty(0, np.int64), np.empty((0, 2), np.int64))
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path.partition(".")[0] == _COLUMN)
    chunks = [metadata.row_group(i).column(column) for i in range(metadata.num_row_groups)]
    counts = np.array([chunk.num_values for chunk in chunks], np.int64)
    if len(counts) and counts.max() > _LARGEST_GROUP:
        raise UsageError(
            f"a row group has {counts.max():,} tokens, and is decoded as a whole",
            place=str(path),
            hint=f"write it again with row groups of at most {_LARGEST_GROUP:,} tokens",
        )
    begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    spans = [(begin, begin + chunk.total_compressed_size - 1) for begin, chunk in zip(begins, chunks, strict=True)]
    return _Footer(metadata, metadata.num_rows, np.dtype(found), np.cumsum(counts), np.array(spans).reshape(-1, 2))


class _RowGroup(NamedTuple):
    """A decoded row group."""

    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    """Where its rows end."""


class ParquetFiles(TokenFiles):
    """Tokens across files of Parquet. Some decoded row groups are kept."""

    contiguous = False

    def __init__(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> None:
        super().__init__(files, dtype)
        known, opened = self.files, self.opened
        self.footer = lru_cache(_FOOTERS)(lambda i: _checked(known[i], _read_footer(known[i].path, opened(i))))
        self._decoded: OrderedDict[tuple[int, int], _RowGroup] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        footers = map(self.footer, range(len(self.files)))
        return _TOKEN_BYTES * max((int(np.diff(one.ends, prepend=0).max(initial=0)) for one in footers), default=0)

    def ends(self, i: int) -> NDArray[np.int64]:
        """Return where the documents of a file end, in tokens; all of it is decoded."""
        footer, found, start = self.footer(i), [np.empty(0, np.int64)], 0
        for number, end in enumerate(footer.ends.tolist()):
            found.append(self._group(i, number).ends + start)
            start = end
        return np.concatenate(found)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy: what is decoded is not kept for long."""
        return read_only(self.read(start, stop))

    def read_rows(self, starts: NDArray[np.int64], size: int) -> NDArray[Any]:
        # In the order of the files, so that rows of one row group decode it once.
        rows = np.empty((len(starts), size), self.dtype)
        self.gather(starts, np.full(len(starts), size), np.arange(len(starts)) * size, rows.reshape(-1))
        return rows

    def expect_rows(self, starts: NDArray[np.int64], size: int) -> None:
        if not self.ahead_tokens:
            return
        files = np.searchsorted(self._borders, starts, side="right") - 1
        for i in np.unique(files).tolist():
            footer = self.footer(i)
            within = np.searchsorted(footer.ends, starts[files == i] - self._borders[i], side="right")
            self._remote(i).expect(footer.bytes[np.unique(within)].reshape(-1))

    def fill(self, i: int, within: int, out: NDArray[Any]) -> None:
        ends = self.footer(i).ends
        group, done = int(np.searchsorted(ends, within, side="right")), 0
        while done < len(out):
            start = within + done - (int(ends[group - 1]) if group else 0)
            part = self._group(i, group).tokens[start : start + len(out) - done]
            out[done : done + len(part)] = part
            done, group = done + len(part), group + 1

    def fill_parts(
        self,
        i: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        # They come in the order of the file, so that each row group is decoded once.
        for start, length, place in zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True):
            self.fill(i, start, out[place : place + length])

    def _group(self, i: int, number: int) -> _RowGroup:
        """Return a row group, decoded now or before."""
        with self._lock:
            found = self._decoded.get((i, number))
            if found is not None:
                self._decoded.move_to_end((i, number))
                return found
        found = self._decode(i, number)
        with self._lock:
            self._decoded[i, number] = found
            while len(self._decoded) > 1 and sum(len(one.tokens) for one in self._decoded.values()) > _CACHED_TOKENS:
                self._decoded.popitem(last=False)
        return found

    def _decode(self, i: int, number: int) -> _RowGroup:
        """Decode a row group; DamageError if it is not what the end of the file says."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        footer, place = self.footer(i), str(self.files[i].path)
        try:
            # No threads: they do not survive a fork, and a loader may be forked.
            file = pq.ParquetFile(_Source(self.opened(i)), metadata=footer.metadata, pre_buffer=False)
            column = file.read_row_group(number, [_COLUMN], use_threads=False).column(0).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            raise DamageError(f"row group {number:,} cannot be decoded: {error}", place=place) from None
        rows = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        expected = int(footer.ends[number]) - (int(footer.ends[number - 1]) if number else 0)
        values = rows.flatten()
        lengths = np.diff(_numbers(rows.offsets)).astype(np.int64)
        if len(values) != expected or rows.null_count or values.null_count or (lengths == 0).any():
            raise DamageError(f"row group {number:,} has rows without tokens, or is damaged", place=place)
        tokens = _numbers(values)
        if tokens.dtype != self.dtype:
            limits = np.iinfo(self.dtype)
            if tokens.min() < limits.min or tokens.max() > limits.max:
                raise DamageError(f"row group {number:,} has numbers that are no tokens", place=place)
        return _RowGroup(tokens.astype(self.dtype, copy=False), np.cumsum(lengths))


def _numbers(array: Any) -> NDArray[Any]:
    """Return an array of pyarrow as one of numpy, without a copy."""
    dtype = np.dtype(str(array.type))
    return np.frombuffer(array.buffers()[1] or b"", dtype, len(array), array.offset * dtype.itemsize)


def _checked(file: TokenFile, footer: _Footer) -> _Footer:
    """Return a footer; DamageError if it does not have the tokens that the file should have."""
    if footer.tokens != file.tokens or footer.dtype is None:
        raise DamageError(f"the file lists {footer.tokens:,} tokens, not {file.tokens:,}", place=str(file.path))
    return footer


FORMAT = TokenParquet()
