"""A source's bytes: random access where its size is known, forward only where it is a stream.

The feeder thread searches a feed for the ends of chunks. The feed of a remote file is in fetching.py.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence

from shardmill.errors import SourceError
from shardmill.storage.retrying import STOP_CHECK, check_running
from shardmill.storage.source import SMALL, STDIN, Source, changed_error

FLAGS = os.O_RDONLY | os.O_CLOEXEC
STREAM_BLOCK = 1 << 18
# Bytes before a span's nominal start that a cut may look at; what a tokenizer's cuts need (tokens/cuts.py) is less.
CONTEXT = 64


class Feed(ABC):
    """The bytes of a source, for one thread."""

    shared = False
    """Whether a worker can read a range by itself, with `read_range`."""

    @abstractmethod
    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range; fewer only at the end of the source."""

    @abstractmethod
    def drop(self, offset: int) -> None:
        """Forget the bytes before offset, except for CONTEXT of them. What follows will be read in order."""

    @abstractmethod
    def end_by(self, limit: int) -> int | None:
        """Return where the source ends, or None when that is after limit."""

    @abstractmethod
    def close(self) -> None: ...

    def stored(self, offset: int) -> int:
        """Return about how many bytes are stored before offset, which are fewer in a compressed stream."""
        return offset


class Scanner:
    """Reads a feed in order, and lets it forget what was read."""

    def __init__(self, feed: Feed, at: int = 0) -> None:
        self.feed, self.at = feed, at

    def next(self, n: int) -> bytes:
        """Return the next bytes, at most n; empty at the end."""
        block = self.feed.read(self.at, self.at + n)
        self.at += len(block)
        self.feed.drop(self.at)
        return block

    @property
    def stored(self) -> int:
        """About how many bytes are stored before this place."""
        return self.feed.stored(self.at)


class RandomAccess(Feed):
    """A feed of known size, of which any part can be read in any order."""

    size: int

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """Announce the spans that will be read from now on, in ascending order."""

    def release(self, end: int) -> None:
        """Announce that what lies before `end` will not be read again."""

    def end_by(self, limit: int) -> int | None:
        return self.size if self.size <= limit else None


class Beginning(RandomAccess):
    """The beginning of another feed, which stays open."""

    def __init__(self, feed: RandomAccess, size: int) -> None:
        self._feed, self.size = feed, min(size, feed.size)
        self.shared = feed.shared
        self._begun = False

    def read(self, start: int, end: int) -> bytes:
        return self._feed.read(start, min(end, self.size))

    def drop(self, offset: int) -> None:
        if not self._begun:  # or all that follows in the other feed would be read ahead
            self._begun = True
            self._feed.expect([(max(0, offset - CONTEXT), self.size)])
        self._feed.drop(offset)

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        self._begun = True
        self._feed.expect(spans)

    def release(self, end: int) -> None:
        self._feed.release(end)

    def close(self) -> None:
        """Only the other feed is closed."""


def _open(source: Source, flags: int = FLAGS) -> int:
    try:
        return os.open(source.path, flags)
    except OSError as error:
        raise _os_error(source, error) from error


def is_unchanged(source: Source, status: os.stat_result) -> bool:
    """Whether a local file has the size and modification time that it had when it was found."""
    return status.st_size == source.size and str(status.st_mtime_ns) == source.version


def _check(source: Source, status: os.stat_result) -> None:
    if not is_unchanged(source, status):
        raise changed_error(source)


def read_range(source: Source, start: int, end: int) -> bytes:
    """Return the bytes from start to end of a local file; for any thread."""
    descriptor = _open(source)
    try:
        _check(source, os.fstat(descriptor))
        return _read_at(source, descriptor, start, end - start)
    finally:
        os.close(descriptor)


def check_unchanged(source: Source) -> None:
    """Raise SourceError when a local file's size or modification time changed since it was found."""
    if source.size is None or source.remote:  # each response for a remote one was compared
        return
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise _os_error(source, error) from error
    _check(source, status)


def _os_error(source: Source, error: OSError, offset: int | None = None) -> SourceError:
    place = source.name if offset is None else f"{source.name}, byte {offset:,}"
    if isinstance(error, FileNotFoundError):
        return SourceError("the source is not there any more", place=place)
    if isinstance(error, PermissionError):
        return SourceError("no permission to read the source", place=place)
    return SourceError(f"the source cannot be read: {error.strerror or error}", place=place)


def _read_at(source: Source, descriptor: int, offset: int, n: int) -> bytes:
    """All n bytes, although one call returns at most 2 GB; raises SourceError when the file is shorter."""
    parts = []
    while n > 0:
        try:
            part = os.pread(descriptor, min(n, 1 << 30), offset)
        except OSError as error:
            raise _os_error(source, error, offset) from error
        if not part:
            raise changed_error(source)
        parts.append(part)
        offset += len(part)
        n -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class FileFeed(RandomAccess):
    """A plain file of known size. Never mapped: mapped pages count as resident memory."""

    def __init__(self, source: Source, stopped: threading.Event | None = None) -> None:
        """`stopped`: set when the run has ended, to end a search through a terabyte without a newline."""
        assert source.size is not None
        self._source = source
        self._stopped = stopped
        self.size = source.size
        self._whole: bytes | None = None
        self._descriptor = _open(source)
        try:
            if self.size <= SMALL:
                self._whole = _read_at(source, self._descriptor, 0, self.size)
            _check(source, os.fstat(self._descriptor))
        except BaseException:
            self.close()
            raise
        self.shared = not self.whole
        if self.whole:
            self.close()

    @property
    def whole(self) -> bool:
        """Whether all of it was read and checked when it was opened."""
        return self._whole is not None

    def read(self, start: int, end: int) -> bytes:
        if self._whole is not None:
            return self._whole[start:end]
        check_running(self._stopped)
        n = min(end, self.size) - start
        return _read_at(self._source, self._descriptor, start, n) if n > 0 else b""

    def drop(self, offset: int) -> None:
        if offset > self.size:
            raise changed_error(self._source)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StreamFeed(Feed):
    """A stream that only moves forward. It holds the blocks after the last `drop`, and CONTEXT bytes before."""

    def __init__(self, name: str, blocks: Generator[bytes], raw: Scanner | None = None) -> None:
        """`raw`: reads the bytes from which the blocks are decoded, if any."""
        self._name, self._new_blocks, self._raw = name, blocks, raw
        self._blocks: deque[bytes] = deque()
        self._base = self._end = 0  # of the blocks that are held
        self._ended = False
        self._failed: BaseException | None = None
        self._read = 0  # bytes of the raw feed
        self._last_ratio = 0, 0  # an offset, and the bytes of the raw feed that were read to get there
        self.limit = 1 << 62
        """May be reduced, to read only the beginning: the stream then ends at the next block after it."""

    def read(self, start: int, end: int) -> bytes:
        """Raise ValueError when bytes before those that are held are asked for."""
        if start < self._base:
            raise ValueError(f"byte {start:,} of a stream was forgotten: what is held begins at {self._base:,}")
        self._fill(end)
        parts = []
        at = self._base
        for block in self._blocks:
            if at >= end:
                break
            if at + len(block) > start:
                parts.append(block[max(0, start - at) : end - at])
            at += len(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def reached(self) -> int:
        """The end of the last block that was read."""
        return self._end

    def drop(self, offset: int) -> None:
        keep = max(0, offset - CONTEXT)
        self._forget(keep)
        while not self._ended and self._end < keep:
            self._fill(self._end + 1)
            self._forget(keep)
        if keep > self._end:
            raise SourceError("the stream is shorter than it was when this run began", place=self._name)

    def end_by(self, limit: int) -> int | None:
        self._fill(limit + 1)
        return self._end if self._ended and self._end <= limit else None

    def stored(self, offset: int) -> int:
        if self._raw is None:
            return offset
        # Much more text may come out of the last raw block than was read so far.
        text, stored = self._last_ratio
        return min(stored * offset // text, self._read) if text else self._read

    def close(self) -> None:
        (self._raw.feed if self._raw else self._new_blocks).close()

    def _fill(self, end: int) -> None:
        while not self._ended and self._end < end:
            if self._failed is not None:  # a generator that has raised would look like one that has ended
                raise self._failed
            try:
                block = next(self._new_blocks, b"") if self._end < self.limit else b""
            except BaseException as error:
                self._failed = error
                raise
            if self._raw is not None and (stored := self._raw.stored) > self._read:
                self._last_ratio, self._read = (self._end, self._read), stored
            if block:
                self._blocks.append(block)
                self._end += len(block)
            else:
                self._ended = True

    def _forget(self, keep: int) -> None:
        while self._blocks and self._base + len(self._blocks[0]) <= keep:
            self._base += len(self._blocks.popleft())


def pipe_blocks(source: Source, stopped: threading.Event | None = None) -> Generator[bytes]:
    """Yield the blocks of a pipe, a device or standard input, and wait for a silent one until `stopped`."""
    # Opening a pipe that nobody writes to would block for ever. Only Linux can tell it from one that has ended.
    flags = FLAGS | (os.O_NONBLOCK if sys.platform == "linux" else 0)
    descriptor = 0 if source.path == STDIN else _open(source, flags)
    offset = 0
    try:
        while True:
            try:
                _wait_for(descriptor, stopped)
                block = os.read(descriptor, STREAM_BLOCK)
            except BlockingIOError:  # another reader of the same pipe was faster
                continue
            except OSError as error:
                raise _os_error(source, error, offset) from error
            if not block:
                return
            offset += len(block)
            yield block
    finally:
        if descriptor:
            os.close(descriptor)


def _wait_for(descriptor: int, stopped: threading.Event | None) -> None:
    """Return when there is something to read, or when the writers of a pipe have closed it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll(STOP_CHECK * 1000):
        check_running(stopped)
