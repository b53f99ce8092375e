"""Remote sources: several requests at once, and the speed of the download."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardmill.documents import footer_bytes
from shardmill.storage import CONNECTIONS, Fetcher, RetryPolicy

if TYPE_CHECKING:
    from shardmill.storage import Source

_THREADS = 8
_WINDOW = 2 << 20  # bytes that are fetched ahead; at the end of a place they were fetched in vain
_SMALLEST, _PIECE = 1 << 17, 1 << 20
_SECONDS, _MOST = 1.0, 32 << 20  # seconds and bytes of the download that is tried
S = TypeVar("S")
T = TypeVar("T")


def looking_fetcher() -> Fetcher:
    """Return a fetcher that gives up within seconds, not minutes."""
    given = RetryPolicy.from_environment()
    policy = RetryPolicy(min(3, given.tries), 20.0, given.pause, 5.0, min(10.0, given.timeout))
    return Fetcher((), _WINDOW, policy, footer_bytes=footer_bytes)


def at_once(call: Callable[[S], T], items: Iterable[S], several: bool) -> Iterator[T]:
    """Yield what `call` returns for each item, in order; `several`: some at a time, in as many threads."""
    if not several:
        yield from map(call, items)
        return
    coming = iter(items)
    with ThreadPoolExecutor(_THREADS, "shardmill-look") as pool:
        waiting = deque(pool.submit(call, item) for item in islice(coming, _THREADS))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(call, item) for item in islice(coming, 1))
            yield result


def download_speed(sources: Sequence[Source], fetcher: Fetcher) -> float:
    """Measure bytes per second over as many connections as a run has; 0 if every source is too small."""
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

    with ThreadPoolExecutor(_THREADS, "shardmill-look") as pool:
        for one in pool.map(fetch, range(0, size, piece)):
            if not one:
                break
            got, ended = got + one, time.monotonic()
    return got / max(1e-6, ended - began)
