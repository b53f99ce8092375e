"""Several calls at once, for sources that are far away: there one waits for answers much longer than one works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 8
S = TypeVar("S")
T = TypeVar("T")


def at_once(call: Callable[[S], T], items: Iterable[S], several: bool) -> Iterator[T]:
    """What `call` gives for each item, in their order; in this thread, or in a few others that are ahead of it.

    Who stops asking waits only for the calls that have begun.
    """
    if not several:
        yield from map(call, items)
        return
    pool = ThreadPoolExecutor(THREADS, "shardmill-look")
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
