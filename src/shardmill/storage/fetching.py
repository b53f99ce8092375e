"""Bytes of remote sources for a whole run: the threads that fetch them, and how many bytes may lie ready.

Every request is made by one of a few daemon threads: who waits for one looks now and then whether the run still goes
on, so that a server which has fallen silent never holds up the end of a run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from shardmill.errors import ShardmillError, SourceError
from shardmill.storage.addresses import BUCKETS, scheme_of
from shardmill.storage.feeds import SMALL
from shardmill.storage.names import format_of
from shardmill.storage.retrying import Patience, Retries, Stopped, patiently
from shardmill.storage.source import Source

if TYPE_CHECKING:
    from shardmill.storage.cache import Cache

# All of the window is on its way when the reader is fast: with 200 ms for an answer and 16 MB of it, 16 pieces on 16
# connections give 80 MB/s, where 8 connections with pieces of half the size gave 30.
CONNECTIONS = 16
LITTLE_WINDOW = 8 << 20
# Files up to this size are fetched whole when they are opened.
WHOLE = 1 << 20
FOOTER = 1 << 16
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 18, 4 << 20
_LARGEST_FOOTER = 16 << 20
_OPEN_AHEAD = 8  # files whose beginnings are fetched before their turn, at the most
_FOOTERS_AHEAD = 2
_TICK = 0.5  # seconds
Bytes = bytes | bytearray


class Store(Protocol):
    """Where remote bytes come from; each call is one try."""

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> Bytes: ...

    def stream(self, source: Source, write: Callable[[bytes], object], deadline: float) -> None: ...


class Fetch:
    """Some bytes that were asked for."""

    __slots__ = ("call", "data", "done", "error", "size")

    def __init__(self, call: Callable[[], Bytes], size: int) -> None:
        self.call: Callable[[], Bytes] | None = call
        self.size = size
        self.done = False
        self.data: Bytes = b""
        self.error: BaseException | None = None


class Fetcher:
    """What a run fetches with. Leaving it as a context ends all waits; it needs no context where nothing is waited for.

    `window`: bytes that may lie ready or be on their way at once.
    """

    def __init__(
        self,
        sources: Sequence[Source] = (),
        window: int = LITTLE_WINDOW,
        patience: Patience | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.cache = cache
        self.patience = patience or Patience.from_environment()
        self.retries = Retries()
        self.stopped = threading.Event()
        self.changed = threading.Condition()
        """Guards all that this file and ranges.py keep; notified when a fetch is done or bytes were let go."""
        self._spare = window // 4
        self.free = window - self._spare
        self.piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, self.free // CONNECTIONS))
        self.advance: list[Callable[[], None]] = []
        """Called, with the lock held, when bytes were let go: each may ask for more."""
        self._sources, self._next = sources, 0
        self._heads: dict[str, tuple[Fetch, Fetch | None]] = {}
        self._waiting: deque[Fetch] = deque()
        self._threads: list[threading.Thread] = []
        self._stores: dict[str, Store] = {}
        self._idle = 0

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with self.changed:
            self._waiting.clear()
            self._heads.clear()
            self.changed.notify_all()

    def store(self, source: Source) -> Store:
        """The store that a source lies in; UsageError where its library is missing."""
        scheme = scheme_of(source.path)
        kind = "buckets" if scheme in BUCKETS else "web"
        with self.changed:
            if kind not in self._stores:
                self._stores[kind] = store_for(scheme, self.patience)
            return self._stores[kind]

    def read(self, source: Source, start: int, end: int) -> Bytes:
        """The bytes of a range, now."""
        if start >= end:
            return b""
        with self.changed:
            fetch = self.begin(source, start, end, urgent=True)
        return self.wait(fetch)

    def begin(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch:
        """Ask for a range; the caller holds the lock."""
        return self._begin(lambda: self._range(source, start, end), end - start, urgent)

    def wait(self, fetch: Fetch) -> Bytes:
        """The bytes that were asked for; what went wrong with them is raised here."""
        with self.changed:
            while not fetch.done:
                if self.stopped.is_set():
                    raise SourceError("the run has ended")
                self.changed.wait(_TICK)
        if fetch.error is not None:
            raise fetch.error
        return fetch.data

    def head(self, source: Source) -> Bytes:
        """The beginning of a source, or all of it if it is small; the sources after it are begun too."""
        return self.wait(self._opened(source)[0])

    def tail(self, source: Source) -> Bytes:
        """The end of a source: a parquet file's footer, whole."""
        with self.changed:
            footer = self._heads[source.path][1] if source.path in self._heads else None
            if footer is None:
                footer = self._begin(lambda: self._footer(source), FOOTER, True)
        return self.wait(footer)

    def close(self, source: Source) -> None:
        """Let go of the beginning of a source."""
        with self.changed:
            for fetch in self._heads.pop(source.path, ()):
                if fetch is not None:
                    self._spare += fetch.size

    def following(self, source: Source) -> Source | None:
        """The source whose turn comes after this one, if it is remote."""
        with self.changed:
            self._move_to(source)
            after = self._sources[self._next + 1 : self._next + 2]
        return after[0] if after and after[0].remote else None

    def let_go(self, size: int) -> None:
        """Bytes are free again; the caller holds the lock."""
        self.free += size
        for advance in list(self.advance):
            advance()
        self.changed.notify_all()

    def _opened(self, source: Source) -> tuple[Fetch, Fetch | None]:
        with self.changed:
            opened = self._open(source)
            self._move_to(source)
            after = self._sources[self._next + 1 : self._next + 1 + _OPEN_AHEAD] if self.cache is None else ()
            for number, following in enumerate(after):
                # The footers of large parquet files are megabytes, so fewer of these.
                if self._spare <= 0 or (_is_parquet(following) and number >= _FOOTERS_AHEAD):
                    break
                if following.remote and following.size is not None:
                    self._open(following)
            return opened

    def _move_to(self, source: Source) -> None:
        while self._next < len(self._sources) and self._sources[self._next] != source:
            self._next += 1

    def _open(self, source: Source) -> tuple[Fetch, Fetch | None]:
        if source.path not in self._heads:
            size = source.size or 0
            end = size if size <= WHOLE else SMALL
            whole = self.begin(source, 0, end)
            footer = None
            if end < size and _is_parquet(source):
                footer = self._begin(lambda: self._footer(source), FOOTER)
            self._heads[source.path] = whole, footer
            self._spare -= sum(fetch.size for fetch in (whole, footer) if fetch is not None)
        return self._heads[source.path]

    def _begin(self, call: Callable[[], Bytes], size: int, urgent: bool = False) -> Fetch:
        fetch = Fetch(call, size)
        if urgent:
            self._waiting.appendleft(fetch)
        else:
            self._waiting.append(fetch)
        if not self._idle and len(self._threads) < CONNECTIONS:
            thread = threading.Thread(target=self._work, name="shardmill-fetcher", daemon=True)
            self._threads.append(thread)
            thread.start()
        self.changed.notify_all()
        return fetch

    def _work(self) -> None:
        while True:
            with self.changed:
                self._idle += 1
                while not self._waiting and not self.stopped.is_set():
                    self.changed.wait(_TICK)
                self._idle -= 1
                if self.stopped.is_set():
                    return
                fetch = self._waiting.popleft()
            data: Bytes = b""
            error: BaseException | None = None
            try:
                assert fetch.call is not None
                data = fetch.call()
            except (ShardmillError, Stopped) as why:
                error = why
            except BaseException as why:  # noqa: BLE001 - handed to whoever waits for the bytes
                error = why
            with self.changed:
                fetch.data, fetch.error, fetch.done, fetch.call = data, error, True, None
                self.changed.notify_all()

    def _range(self, source: Source, start: int, end: int) -> Bytes:
        if start >= end:
            return b""
        store = self.store(source)
        return patiently(
            lambda deadline: store.fetch(source, start, end, deadline),
            f"{source.name}, byte {start:,}",
            self.patience,
            self.retries,
            self.stopped,
        )

    def _footer(self, source: Source) -> Bytes:
        """The last bytes; all of the footer, if its length, which stands eight bytes before the end, is larger."""
        size = source.size or 0
        last = self._range(source, max(0, size - FOOTER), size)
        length = int.from_bytes(last[-8:-4], "little") + 8
        if len(last) < length < min(size, _LARGEST_FOOTER):
            return bytes(self._range(source, size - length, size - len(last))) + bytes(last)
        return last


def _is_parquet(source: Source) -> bool:
    return (format_of(source.path) or source.input_format) == "parquet"


def store_for(scheme: str, patience: Patience) -> Store:
    """UsageError where the scheme is unknown or its library is missing."""
    if scheme in BUCKETS:
        from shardmill.storage.buckets import BucketStore

        return BucketStore(patience)
    from shardmill.storage.web import WebStore

    return WebStore(patience)


_shared: list[Fetcher] = []


def shared_fetcher() -> Fetcher:
    """For looks into single sources, outside of a run."""
    if not _shared:
        _shared.append(Fetcher())
    return _shared[0]
