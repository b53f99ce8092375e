"""Sources that are far away: several requests at once, and how fast bytes come from there."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from shardmill.storage import CONNECTIONS, Fetcher, Patience

if TYPE_CHECKING:
    from shardmill.storage import Source

_THREADS = 8
_WINDOW = 2 << 20  # bytes that looks may have on their way: what is read ahead of one is for nothing when it ends
_SMALLEST, _PIECE = 1 << 17, 1 << 20
_SECONDS = 1.0  # of downloading, to see how fast it is
_MOST = 32 << 20  # bytes, however fast it is
S = TypeVar("S")
T = TypeVar("T")


def looking_fetcher() -> Fetcher:
    """A fetcher for a look: one that gives up within seconds, not minutes."""
    given = Patience.from_environment()
    return Fetcher((), _WINDOW, Patience(min(3, given.tries), 20.0, given.pause, 5.0, min(10.0, given.timeout)))


def at_once(call: Callable[[S], T], items: Iterable[S], several: bool) -> Iterator[T]:
    """What `call` gives for each item, in their order; in this thread, or in a few others that are ahead of it.

    Who stops asking waits only for the calls that have begun.
    """
    if not several:
        yield from map(call, items)
        return
    pool = ThreadPoolExecutor(_THREADS, "shardmill-look")
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def download_speed(sources: Sequence[Source], fetcher: Fetcher) -> float:
    """Bytes a second over as many connections as a run has; 0 where nothing is large enough to tell."""
    largest = max((source for source in sources if source.remote), key=lambda source: source.size or 0)
    size = min(_MOST, largest.size or 0)
    piece = min(_PIECE, size // CONNECTIONS)
    if piece < _SMALLEST:
        return 0.0
    began = ended = time.monotonic()
    got = 0

    def fetch(start: int) -> int:
        in_time = time.monotonic() < began + _SECONDS
        return len(fetcher.read(largest, start, min(start + piece, size))) if in_time else 0

    for one in at_once(fetch, range(0, size, piece), several=True):
        if not one:
            break
        got, ended = got + one, time.monotonic()
    return got / max(1e-6, ended - began)
