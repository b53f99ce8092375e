"""A source's bytes: random access where its size is known, forward only where it is a stream.

A feed is what the one feeder thread looks through to find where chunks end. That of a remote file is in fetching.py.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Protocol

from shardmill.errors import SourceError
from shardmill.storage.retrying import STOP_CHECK
from shardmill.storage.source import SMALL, STDIN, Source, changed

FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
STREAM_BLOCK = 1 << 18
# Bytes before a span's nominal start that a cut may look at; what a tokenizer's cuts need (tokens/cuts.py) is less.
CONTEXT = 64


class Feed(Protocol):
    """Bytes that are looked at in front and taken from behind, in order."""

    def peek(self, offset: int, n: int) -> bytes:
        """The n bytes at offset; fewer only at the end of the source."""

    def take(self, start: int, end: int) -> bytes | None:
        """The bytes for a chunk's payload; None where a worker can read them itself. What lies before end is let go."""

    def drop(self, offset: int) -> None:
        """Let go of what lies before offset, reading on and discarding where need be."""

    def end_by(self, limit: int) -> int | None:
        """Where the source ends, when that is not after limit."""

    def stored(self, offset: int) -> int:
        """About how many bytes, as they are stored, lie behind offset; for progress."""

    def close(self) -> None: ...


class RandomAccess(Feed):
    """A feed of known size, of which any part can be read in any order."""

    size: int
    """Who wants to see only so much may make it less."""

    def read(self, start: int, end: int, keep: bool = False) -> bytes | bytearray:
        """The bytes of a range. `keep`: they will be read again."""
        return self.peek(start, end - start)

    def look(self, offset: int, n: int) -> bytes:
        """The n bytes at any offset, once; fewer only at the end."""
        end = min(offset + n, self.size)
        return bytes(self.read(offset, end)) if offset < end else b""

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """These spans will be read, in this order and once each, and no others that were expected before."""

    def release(self, start: int, end: int) -> None:
        """Nobody will read these bytes any more."""

    def end_by(self, limit: int) -> int | None:
        return self.size if self.size <= limit else None

    def stored(self, offset: int) -> int:
        return offset


def open_raw(source: Source, flags: int = FLAGS) -> int:
    """A file descriptor; SourceError when the file is not there any more or is not the one that was found."""
    descriptor = _open(source, flags)
    try:
        _check_open(source, descriptor)
    except SourceError:
        os.close(descriptor)
        raise
    return descriptor


def _open(source: Source, flags: int = FLAGS) -> int:
    try:
        return os.open(source.path, flags)
    except OSError as error:
        raise _os_error(source, error) from error


def _check_open(source: Source, descriptor: int) -> None:
    if source.size is not None and not is_as_found(source, os.fstat(descriptor)):
        raise changed(source)


def is_as_found(source: Source, status: os.stat_result) -> bool:
    return status.st_size == source.size and str(status.st_mtime_ns) == source.version


def read_range(source: Source, start: int, end: int) -> bytes:
    """The bytes from start to end of a plain file of this machine, read by any thread."""
    descriptor = open_raw(source)
    try:
        return _read_at(source, descriptor, start, end - start)
    finally:
        os.close(descriptor)


def check_unchanged(source: Source) -> None:
    """Raise SourceError when the file's size or time changed since it was found.

    Of a remote source every answer was compared with what was found.
    """
    if source.size is None or source.remote:
        return
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise _os_error(source, error) from error
    if not is_as_found(source, status):
        raise changed(source)


def _os_error(source: Source, error: OSError, offset: int | None = None) -> SourceError:
    place = source.name if offset is None else f"{source.name}, byte {offset:,}"
    if isinstance(error, FileNotFoundError):
        return SourceError("the source is not there any more", place=place)
    if isinstance(error, PermissionError):
        return SourceError("no permission to read the source", place=place)
    return SourceError(f"the source cannot be read: {error.strerror or error}", place=place)


def _read_at(source: Source, descriptor: int, offset: int, n: int) -> bytes:
    """All n bytes, though one call gives at most 2 GB; short means that the file shrank."""
    parts = []
    while n > 0:
        try:
            part = _pread(descriptor, min(n, 1 << 30), offset)
        except OSError as error:
            raise _os_error(source, error, offset) from error
        if not part:
            raise changed(source)
        parts.append(part)
        offset += len(part)
        n -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _seek_and_read(descriptor: int, n: int, offset: int) -> bytes:
    # For Windows, which has no pread. Each thread has a descriptor of its own.
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, n)


_pread = getattr(os, "pread", _seek_and_read)


class FileFeed(RandomAccess):
    """A plain file of known size. Never mapped: mapped pages count as resident memory."""

    def __init__(self, source: Source, stopped: threading.Event | None = None) -> None:
        """`stopped`: set when the run has ended, so that a search through a terabyte without a newline ends too."""
        assert source.size is not None
        self._source = source
        self._stopped = stopped
        self.size = source.size
        self._whole: bytes | None = None
        if self.size > SMALL:
            self._descriptor = open_raw(source)
        else:
            self._descriptor = _open(source)
            try:
                self._whole = _read_at(source, self._descriptor, 0, self.size) if self.size else b""
                _check_open(source, self._descriptor)
            finally:
                self.close()

    @property
    def whole(self) -> bool:
        """All of it was read at once, and has not changed while it was: nothing more needs to be checked."""
        return self._whole is not None

    def peek(self, offset: int, n: int) -> bytes:
        if self._whole is not None:
            return self._whole[offset : min(offset + n, self.size)]
        if self._stopped is not None and self._stopped.is_set():
            raise SourceError("the run has ended")
        n = min(n, self.size - offset)
        return _read_at(self._source, self._descriptor, offset, n) if n > 0 else b""

    def take(self, start: int, end: int) -> bytes | None:
        return None if self._whole is None else self._whole[start:end]

    def drop(self, offset: int) -> None:
        if offset > self.size:
            raise changed(self._source)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StreamFeed(Feed):
    """A stream that only goes forward: the blocks that were looked at and not yet taken are held, and CONTEXT bytes."""

    def __init__(self, name: str, blocks: Generator[bytes], raw: FeedStream | None = None) -> None:
        """`raw`: the stream that the blocks are made from, if there is one."""
        self._name, self._coming, self._raw = name, blocks, raw
        self._blocks: deque[bytes] = deque()
        self._base = self._end = 0  # of the blocks that are held
        self._ended = False
        self._failed: BaseException | None = None
        self._read = 0  # bytes of the raw stream
        self._used_up = 0, 0  # bytes that were made when so many of these had been read, and no more of them were left
        self.limit = 1 << 62  # it is taken for ended about there, by who wants to see only so much

    def peek(self, offset: int, n: int) -> bytes:
        self._fill(offset + n)
        parts = []
        at = self._base
        for block in self._blocks:
            if at >= offset + n:
                break
            if at + len(block) > offset:
                parts.append(block[max(0, offset - at) : offset + n - at])
            at += len(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def reached(self) -> int:
        """Bytes that were made so far, whether anybody has looked at them or not."""
        return self._end

    def take(self, start: int, end: int) -> bytes | None:
        taken = self.peek(start, end - start)
        self.drop(end)
        return taken

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
        # What was read last may last for much more text than was made of it so far.
        text, stored = self._used_up
        return min(stored * offset // text, self._read) if text else self._read

    def close(self) -> None:
        (self._raw or self._coming).close()

    def _fill(self, end: int) -> None:
        while not self._ended and self._end < end:
            if self._failed is not None:  # a generator that has raised would look like one that has ended
                raise self._failed
            try:
                block = next(self._coming, b"") if self._end < self.limit else b""
            except BaseException as error:
                self._failed = error
                raise
            if self._raw is not None and (stored := self._raw.stored()) > self._read:
                self._used_up, self._read = (self._end, self._read), stored
            if block:
                self._blocks.append(block)
                self._end += len(block)
            else:
                self._ended = True

    def _forget(self, keep: int) -> None:
        while self._blocks and self._base + len(self._blocks[0]) <= keep:
            self._base += len(self._blocks.popleft())


def pipe_blocks(source: Source, stopped: threading.Event | None = None) -> Generator[bytes]:
    """The blocks of a pipe, a device or standard input; a silent one is waited for until `stopped`."""
    # To open a pipe that nobody writes to would wait for ever. Only Linux can tell such a one from one at its end.
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
    """Return when there is something to be read, or when the writers of a pipe have closed it."""
    if os.name == "nt":  # there it waits in the read, and only for files and consoles
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll(STOP_CHECK * 1000):
        if stopped is not None and stopped.is_set():
            raise SourceError("the run has ended")


class FeedStream:
    """A feed read from a place to its end, for what decompresses or parses it; also a file as pyarrow wants one."""

    def __init__(self, feed: Feed, offset: int = 0) -> None:
        self._feed = feed
        self.offset = offset
        self.closed = False

    def read(self, n: int = -1) -> bytes:
        block = self._feed.peek(self.offset, STREAM_BLOCK if n < 0 else n)
        self.offset += len(block)
        self._feed.drop(self.offset)
        return block

    def stored(self) -> int:
        return self._feed.stored(self.offset)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._feed.close()
