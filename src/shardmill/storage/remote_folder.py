"""A folder of files on a web server, at the hub or in an object store, read by ranges as if it were on this machine."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np

from shardmill.errors import DamageError, SourceError, UsageError
from shardmill.storage.block_cache import CACHE_BLOCK, BlockCache
from shardmill.storage.fetching import CONNECTIONS, Fetcher
from shardmill.storage.local_file import OpenFile
from shardmill.storage.names import BUCKETS, public_url, scheme_of
from shardmill.storage.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.storage.pool import Fetch
    from shardmill.storage.remote_file import Bytes

_READ_AHEAD = 8  # blocks that are requested after those that are read in order
_HEAD_BYTES = 4096  # of a file that is announced
_BUFFER_BYTES = 1 << 18
_MOST_ROWS = 4096  # that are requested ahead of their turn
_STREAM_PIECE = 1 << 20


class RemoteFolder:
    """The files below a URL, each in the version that was found first. Any thread may use it.

    It can be pickled; another process makes its own requests, and shares the cache.
    """

    def __init__(self, url: str, cache: Path, limit: int, files: Mapping[str, Source] | None = None) -> None:
        """`files`: all that are there, by their names; None: a web server, which is asked for each.

        `cache`, `limit`: the folder for blocks, and how many bytes they may take.
        """
        self._address, self._where, self.listed = url.rstrip("/"), (cache, limit), files is not None
        self.url = public_url(self._address)
        self._files: dict[str, Source | None] = dict(files or {})
        self.folders = {_inside(parent) for name in self._files for parent in PurePosixPath(name).parents} | {""}
        """The folders that have files; of a web server only the root is known."""
        self._begin()

    def _begin(self) -> None:
        self.cache = BlockCache(*self._where)
        self._lock = threading.RLock()
        self._made_by, self._process, self._own_fetcher = os.getpid(), 0, None
        self._opened: dict[str, RemoteRanges] = {}
        self._heads: dict[str, Fetch[Bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("url", "_address", "_where", "listed", "_files", "folders")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    _own_fetcher: Fetcher | None

    @property
    def fetcher(self) -> Fetcher:
        """What makes the requests of this process: threads do not survive a fork.

        Raise UsageError in a fork for an object store: its library has threads too, and would wait for ever.
        """
        with self._lock:
            if self._made_by != os.getpid() and scheme_of(self.url) in BUCKETS:
                raise UsageError(
                    "a process that was forked cannot read from an object store",
                    place=self.url,
                    hint='start processes with "spawn", as in `DataLoader(…, multiprocessing_context="spawn")`',
                )
            if self._own_fetcher is None or self._process != os.getpid():
                self._process, self._own_fetcher = os.getpid(), Fetcher()
                weakref.finalize(self, self._own_fetcher.__exit__)
            return self._own_fetcher

    def find(self, name: str) -> Source | None:
        """Return a file by its name, or None if it is not there."""
        with self._lock:
            if name not in self._files and not self.listed:
                self._files[name] = self._asked(name)
            return self._files.get(name)

    def _asked(self, name: str) -> Source | None:
        fetcher, url = self.fetcher, f"{self._address}/{quote(name)}"
        try:
            size, version = fetcher.request(partial(fetcher.web.find, url), public_url(url))
        except SourceError as error:
            if error.message == "the source is not there":
                return None
            raise
        return Source(public_url(url), url, size, version)

    def names(self) -> Iterable[str]:
        """Return the names of all files; of a web server, of those that were asked for."""
        with self._lock:
            return [name for name, source in self._files.items() if source is not None]

    def announce(self, names: Iterable[str]) -> None:
        """Begin to fetch the first bytes of files."""
        for name in names:
            source = self.find(name)
            if source is not None and name not in self._heads:
                self._heads[name] = self.fetcher.submit_range(source, 0, min(_HEAD_BYTES, source.size or 0))

    def head(self, name: str) -> Bytes | None:
        """Return the first bytes of a file that was announced; None for others."""
        fetch = self._heads.get(name)
        return None if fetch is None else self.fetcher.wait(fetch)

    def opened(self, name: str) -> RemoteRanges:
        """Return a file to read; raise FileNotFoundError if it is not there."""
        with self._lock:
            if name not in self._opened:
                source = self.find(name)
                if source is None:
                    raise FileNotFoundError(2, "the file is not there", f"{self.url}/{name}")
                if len(self._opened) >= _MOST_ROWS:
                    self._opened.clear()
                self._opened[name] = RemoteRanges(self, source)
            return self._opened[name]


class RemoteStatus(NamedTuple):
    """What `RemotePath.stat` returns."""

    st_size: int


@dataclass(frozen=True)
class RemotePath:
    """A file or folder below a remote folder, with those methods of `pathlib.Path` that readers need."""

    folder: RemoteFolder
    inside: str = ""

    def __str__(self) -> str:
        return f"{self.folder.url}/{self.inside}".rstrip("/")

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.folder, str(PurePosixPath(self.inside, name)))

    def __lt__(self, other: RemotePath) -> bool:
        return self.inside < other.inside

    @property
    def name(self) -> str:
        return str(self).rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.inside).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.inside).stem

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.folder, _inside(PurePosixPath(self.inside).parent))

    def with_suffix(self, suffix: str) -> RemotePath:
        return RemotePath(self.folder, str(PurePosixPath(self.inside).with_suffix(suffix)))

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(self.folder, str(PurePosixPath(self.inside).with_name(name)))

    def resolve(self) -> RemotePath:
        return self

    def relative_to(self, other: RemotePath) -> PurePosixPath:
        return PurePosixPath(self.inside).relative_to(other.inside or ".")

    @property
    def version(self) -> str:
        """The server's version of a file."""
        return self.folder.opened(self.inside).source.version

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self.inside) and self.folder.find(self.inside) is not None

    def is_dir(self) -> bool:
        return self.inside in self.folder.folders

    def iterdir(self) -> Iterator[RemotePath]:
        below = f"{self.inside}/" if self.inside else ""
        inside = (name[len(below) :].partition("/")[0] for name in self.folder.names() if name.startswith(below))
        return (self / name for name in dict.fromkeys(inside))

    def stat(self) -> RemoteStatus:
        return RemoteStatus(self.folder.opened(self.inside).size)

    def ranges(self) -> RemoteRanges:
        """Return the file to be read at any offset; raise FileNotFoundError if it is not there."""
        return self.folder.opened(self.inside)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return the file to be read from its beginning. Its bytes do not go to the cache."""
        assert mode == "rb"
        raw = _Forward(self.ranges(), self.folder.head(self.inside))
        return io.BufferedReader(raw, _BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        return b"".join(self.ranges().stream())


class RemoteRanges:
    """A remote file that any number of threads read at any offset, in blocks that the cache keeps."""

    def __init__(self, folder: RemoteFolder, source: Source) -> None:
        self.source, self.size = source, source.size or 0
        self._remote, self._next_block = folder, 0
        self._rows: dict[tuple[int, int], Fetch[Bytes]] = {}

    def fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Fill an array with the bytes from `at` on; SourceError if the file ends too early."""
        end = at + len(out)
        self._check_end(end)
        first, last = at // CACHE_BLOCK, -(-end // CACHE_BLOCK)
        if self._next_block - 1 <= first <= self._next_block:
            self._expect(range(first, last + _READ_AHEAD))
        self._next_block = last
        for number in range(first, last):
            begin, stop = max(at, number * CACHE_BLOCK), min(end, (number + 1) * CACHE_BLOCK)
            self._block(number).fill(begin - number * CACHE_BLOCK, out[begin - at : stop - at])

    def fill_parts(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        """Read parts of the file, each to its place in an array; SourceError if the file ends too early."""
        if not len(starts):
            return
        ends = starts + lengths
        self._check_end(int(ends.max()))
        numbers = starts // CACHE_BLOCK
        crossing = (ends - 1) // CACHE_BLOCK > numbers
        order = np.argsort(numbers, kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        borders = [*begins.tolist(), len(order)]
        for i, number in enumerate(found.tolist()):
            self._expect(found[i + 1 : i + 1 + CONNECTIONS].tolist())
            some = order[borders[i] : borders[i + 1]]
            inside = some[~crossing[some]]
            if len(inside):
                begin = starts[inside] - number * CACHE_BLOCK
                self._block(number).fill_parts(begin, lengths[inside], places[inside], out)
            for at in some[crossing[some]].tolist():
                self.fill(int(starts[at]), out[int(places[at]) : int(places[at] + lengths[at])])

    def expect(self, starts: NDArray[np.int64]) -> None:
        """Begin to fetch the blocks of some bytes."""
        self._expect(np.unique(starts // CACHE_BLOCK).tolist())

    def request(self, start: int, end: int) -> None:
        """Begin to fetch some bytes for `row`, without the cache."""
        if len(self._rows) >= _MOST_ROWS:
            self._rows.clear()
        if (start, end) not in self._rows:
            self._rows[start, end] = self._remote.fetcher.submit_range(self.source, start, end)

    def row(self, start: int, end: int) -> Bytes:
        """Return some bytes, which do not go to the cache."""
        self._check_end(end)
        fetch = self._rows.pop((start, end), None)
        fetcher = self._remote.fetcher
        return fetcher.read(self.source, start, end) if fetch is None else fetcher.wait(fetch)

    def stream(self) -> Iterator[Bytes]:
        """Yield the file in blocks of a megabyte. Some are requested ahead, and none goes to the cache."""
        fetcher, coming = self._remote.fetcher, deque[Any]()
        for start in range(0, self.size, _STREAM_PIECE):
            coming.append(fetcher.submit_range(self.source, start, min(self.size, start + _STREAM_PIECE)))
            if len(coming) == CONNECTIONS:
                yield fetcher.wait(coming.popleft())
        while coming:
            yield fetcher.wait(coming.popleft())

    def _expect(self, numbers: Iterable[int]) -> None:
        within = [number for number in numbers if number * CACHE_BLOCK < self.size]
        self._remote.cache.expect(self.source, within, self._remote.fetcher)

    def _block(self, number: int) -> Any:
        return self._remote.cache.opened(self.source, number, self._remote.fetcher)

    def _check_end(self, end: int) -> None:
        if end > self.size:
            raise SourceError("the file ends too early", place=self.source.name)


class _Forward(io.RawIOBase):
    """A remote file as Python's own files are. What `head` has is not fetched again."""

    def __init__(self, file: RemoteRanges, head: Bytes | None) -> None:
        self._file, self._head, self._at = file, bytes(head or b""), 0

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
        end = min(self._at + len(buffer), self._file.size)
        if self._at < len(self._head):
            data: Bytes = self._head[self._at : end]
        else:
            data = self._file.row(self._at, end) if self._at < end else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _inside(path: PurePosixPath) -> str:
    return "" if str(path) == "." else str(path)


AnyPath = Path | RemotePath
"""Where a file or folder is."""


def open_file(path: AnyPath) -> OpenFile | RemoteRanges:
    """Return a file that is read at any offset; raise DamageError if it is not there."""
    if isinstance(path, Path):
        return OpenFile(path)
    try:
        return path.ranges()
    except FileNotFoundError:
        raise DamageError("the file is gone", place=str(path)) from None


class RemoteArray:
    """An array in a remote file, of which items and slices are read when they are needed."""

    def __init__(self, path: RemotePath, dtype: np.dtype[Any], offset: int, count: int) -> None:
        self._file, self._dtype, self._offset, self._count = path.ranges(), dtype, offset, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, which: Any) -> Any:
        """Return an item, a slice, or items by an array of their numbers, between which everything is read."""
        if isinstance(which, slice):
            first, last, step = which.indices(self._count)
            return self._read(first, max(first, last))[::step]
        if isinstance(which, np.ndarray):
            if not len(which):
                return np.empty(0, self._dtype)
            first = int(which.min())
            return self._read(first, int(which.max()) + 1)[which - first]
        at = int(which) + (self._count if which < 0 else 0)
        if not 0 <= at < self._count:
            raise IndexError(f"there is no item {which:,} in {self._count:,}")
        return self._read(at, at + 1)[0]

    def _read(self, first: int, last: int) -> NDArray[Any]:
        out = np.empty(last - first, self._dtype)
        self._file.fill(self._offset + first * self._dtype.itemsize, out.view(np.uint8))
        return out


def open_array(path: AnyPath, dtype: np.dtype[Any], offset: int, count: int) -> Any:
    """Return an array in a file: a memory map, or a `RemoteArray`."""
    if not isinstance(path, Path):
        return RemoteArray(path, dtype, offset, count)
    # An empty array cannot be mapped.
    return np.memmap(path, dtype, "r", offset, (count,)) if count else np.empty(0, dtype)
