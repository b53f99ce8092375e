"""Blocks of remote files on disk, shared by all processes of a machine, and never more than a given size.

A block is a file of its own in a folder that is named by a hash of the remote file's name, size and version. Its last
four bytes are a checksum of the others. It is written under another name, and renamed when it is complete. The blocks
that were not used for the longest time are deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from shardmill.errors import DamageError, OutputError
from shardmill.storage.files import PARTIAL
from shardmill.storage.local_file import OpenFile
from shardmill.storage.retrying import Transient, check_running
from shardmill.storage.source import Source

if TYPE_CHECKING:
    from shardmill.storage.fetching import Fetcher
    from shardmill.storage.pool import Fetch

CACHE_BLOCK = 2 << 20
_CHECKSUM_BYTES = 4
_OPEN_BLOCKS = 64
_MOST_AHEAD = 256  # blocks that are requested or wait to be; a few of them are under way at a time
_LOOK_AFTER = 64 << 20  # bytes that are written between two looks at the size of the cache
_KEEP = 0.9  # of the limit, when blocks are deleted
_TOUCH_SECONDS = 60.0
_CLAIM_SECONDS = 0.02  # between two looks at a block that another process is fetching
_ABANDONED_SECONDS = 3600.0  # after which an unfinished block is one of a killed process
_MOST_CHECKED = 1 << 17  # blocks


class BlockCache:
    """The blocks that one process reads. Several processes and threads may use the same folder."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes on disk, which processes that write at the same time may exceed by 64 MB each."""
        self.folder, self.limit = folder / "blocks", max(limit, 4 * CACHE_BLOCK)
        self._anonymous = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, tuple[OpenFile, float]] = OrderedDict()
        self._checked: set[Path] = set()
        """Blocks whose checksums this process has seen to be right."""
        self._coming: dict[Path, Fetch[None]] = {}
        self._unseen = self.limit  # bytes written since the last look: there may be much from earlier

    def opened(self, source: Source, number: int, fetcher: Fetcher) -> OpenFile:
        """Return a block of a remote file, which is fetched if it is not there."""
        path = self._path(source, number)
        for _ in range(3):  # other processes may delete what they believe to be old
            if (found := self._look_up(path, _size(source, number))) is not None:
                return found
            fetcher.wait(self._request(source, number, path, fetcher, urgent=True))
        raise OutputError(
            "blocks vanish from the cache as soon as they are written",
            place=str(self.folder),
            hint="allow a larger cache: `--cache-size`",
        )

    def expect(self, source: Source, numbers: Iterable[int], fetcher: Fetcher) -> None:
        """Begin to fetch blocks that will be read soon."""
        for number in numbers:
            path = self._path(source, number)
            with self._lock:
                known = path in self._open or path in self._coming
                full = len(self._coming) >= _MOST_AHEAD
            if full:
                return
            if not known and not path.exists():
                self._request(source, number, path, fetcher, urgent=False)

    def _path(self, source: Source, number: int) -> Path:
        # What a server gives no version to must not be taken for what it gave another time.
        version = source.version or self._anonymous
        key = hashlib.sha256(f"{source.name}\n{source.size}\n{version}".encode()).hexdigest()[:32]
        return self.folder / key / str(number)

    def _look_up(self, path: Path, size: int) -> OpenFile | None:
        """The block in a file, if it is there and whole."""
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                found, touched = self._open[path]
                if time.monotonic() - touched > _TOUCH_SECONDS:
                    self._open[path] = found, time.monotonic()
                    _touch(path)
                return found
        try:
            found = OpenFile(path)
        except DamageError:  # it is not there
            return None
        except OSError as error:
            raise _unusable(path, error) from error
        if path not in self._checked and not _is_whole(found, size):
            path.unlink(missing_ok=True)
            return None
        _touch(path)
        with self._lock:
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked.add(path)
            self._open[path] = found, time.monotonic()
            while len(self._open) > _OPEN_BLOCKS:
                self._open.popitem(last=False)
        return found

    def _request(self, source: Source, number: int, path: Path, fetcher: Fetcher, *, urgent: bool) -> Fetch[None]:
        with self._lock:
            known = self._coming.get(path)
            if known is not None:
                return known
            start = number * CACHE_BLOCK
            end = start + _size(source, number)
            fetch = fetcher.submit(
                lambda: self._fetch(path, lambda: fetcher.fetch(source, start, end), fetcher),
                f"{source.name}, byte {start:,}",
                urgent=urgent,
            )
            self._coming[path] = fetch
        fetch.add_done_callback(lambda _: self._forget(path))
        return fetch

    def _forget(self, path: Path) -> None:
        with self._lock:
            self._coming.pop(path, None)

    def _fetch(self, path: Path, get: Callable[[], bytes | bytearray], fetcher: Fetcher) -> None:
        """Fetch a block, or wait while another process does; one attempt."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _claimed(path, fetcher)
            if file is None:
                return
            with file:
                data = get()
                file.truncate(0)
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little"))
                file.flush()
                os.replace(_partial(path), path)
            self._make_room(len(data))
        except OSError as error:
            raise _unusable(path, error) from error

    def _make_room(self, written: int) -> None:
        """Delete the oldest blocks when there are too many."""
        with self._lock:
            self._unseen += written
            if self._unseen < min(_LOOK_AFTER, self.limit // 8):
                return
            self._unseen = 0
        found = sorted(_blocks_in(self.folder))
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for _, size, path in found:
            if total <= self.limit * _KEEP:
                break
            with suppress(OSError):  # another process may have deleted it
                os.unlink(path)
            total -= size
        for folder in {os.path.dirname(path) for _, _, path in found}:
            with suppress(OSError):  # it has blocks
                os.rmdir(folder)


def _size(source: Source, number: int) -> int:
    """Bytes of a block; the last one of a file is shorter."""
    return min(CACHE_BLOCK, (source.size or 0) - number * CACHE_BLOCK)


def _is_whole(file: OpenFile, size: int) -> bool:
    """Whether a file has a block of this size, and its checksum: a power failure may leave files of zeros."""
    if file.size != size + _CHECKSUM_BYTES:
        return False
    found = np.empty(size + _CHECKSUM_BYTES, np.uint8)
    file.fill(0, found)
    data = found.tobytes()
    return zlib.crc32(data[:size]) == int.from_bytes(data[size:], "little")


def _touch(path: Path) -> None:
    with suppress(OSError):  # it is deleted: then nobody else needs it
        os.utime(path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _claimed(path: Path, fetcher: Fetcher) -> BinaryIO | None:
    """Return the file for a block, locked; None: another process has just fetched the block. Transient if it hangs."""
    deadline = time.monotonic() + fetcher.policy.timeout
    while not path.exists():
        try:
            file = open(_partial(path), "ab")  # noqa: SIM115 - the caller closes it
        except FileNotFoundError:  # its folder was empty, and so another process deleted it
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claimed = True
        except BlockingIOError:
            claimed = False
        except OSError:  # a disk without locks: a block that two write at once has a wrong checksum, and is discarded
            claimed = True
        # Who renamed it has left us with a lock on the finished block.
        if claimed and _is_same(file, _partial(path)):
            return file
        file.close()
        if not claimed:
            check_running(fetcher.stopped)
            if time.monotonic() > deadline:
                raise Transient("another process does not finish what it fetches")
            time.sleep(_CLAIM_SECONDS)
    return None


def _is_same(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _blocks_in(folder: Path) -> Iterable[tuple[float, int, str]]:
    """Yield when each block was last used, its size and its path."""
    with suppress(FileNotFoundError):
        for inside in os.scandir(folder):
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(inside.path):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        if not entry.name.endswith(PARTIAL) or time.time() - status.st_mtime > _ABANDONED_SECONDS:
                            yield status.st_mtime, status.st_size, entry.path


def _unusable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"the cache cannot be used: {error.strerror or error}",
        place=str(path.parent.parent),
        hint="choose another folder with `--cache`, or less with `--cache-size`",
    )
