"""A limit for this process below all that is reckoned: data of a shape that nobody has thought of is a MemoryError.

Linux has no limit for what is resident, but one for what is mapped to be written to, `RLIMIT_DATA`. What a process has
mapped and not touched does no harm, and may be a hundred megabytes: stacks of threads, tables of engines that will
fill, what an allocator keeps. So the limit is moved many times a second: it lies where what is resident cannot pass
`--memory`, given that what was left untouched for a second is left so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_LINUX = sys.platform.startswith("linux")
_PAGE = os.sysconf("SC_PAGE_SIZE") if _LINUX else 0
# Seconds between two looks, and looks after which what is untouched is taken to stay so: a buffer is filled at once.
_TICK, _LOOKS = 0.02, 50
# What a thread of ours maps for its stack, as much as Rust gives one; by default it would be 8 MB.
_STACK = 2 << 20
# What allocators map and hand back all the time. A seventh of the memory is spare, which covers it; where that is too
# little, with less than 400 MB, the limit lies higher by the rest.
_HEAPS, _SPARE = 60_000_000, 7
# Kept free for what is touched between two looks: this share of the memory.
_MARGIN = 64

_owned = False


def own_process() -> None:
    """Say that this process is ours alone, before pyarrow is loaded: then `limited` may limit it.

    Arrow's allocator would map a gigabyte at once, out of which it then takes what no limit sees.
    """
    global _owned
    _owned = True
    os.environ.setdefault("MIMALLOC_ARENA_EAGER_COMMIT", "0")
    threading.stack_size(_STACK)


class _Held(NamedTuple):
    """Bytes that this process holds now."""

    shared: int
    """Of files and shared memory, which are resident and which the limit does not count."""
    untouched: int
    """Mapped to be written to, and not resident."""

    @classmethod
    def now(cls) -> _Held:
        with open("/proc/self/statm", "rb") as counts:
            _, resident, shared, _, _, data, _ = (int(pages) * _PAGE for pages in counts.read().split())
        return cls(shared, data - (resident - shared))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


@contextmanager
def limited(memory: int) -> Iterator[bool]:
    """While it lasts, an allocation that would make this process hold more than `memory` is a MemoryError; whether so.

    Only on Linux, and only where the process is ours: in a program that calls us it would be the limit of its other
    threads too. What leases and engines add up to must lie well below `memory`: a library in Rust aborts where it gets
    none.
    """
    if not (_owned and _LINUX):
        yield False
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory - memory // _MARGIN
    at_first, threads = _Held.now().untouched, _threads()
    seen: deque[int] = deque(maxlen=_LOOKS)
    early, heaps = 2 * _LOOKS, max(0, _HEAPS - memory // _SPARE)
    over, moving = threading.Event(), threading.Lock()

    def look() -> None:
        nonlocal early
        held = _Held.now()
        seen.append(held.untouched)
        lasting = min(seen) if len(seen) == _LOOKS else 0
        if early:  # what comes now is stacks of threads, or will be touched
            early -= 1
            lasting = max(lasting, at_first + (_threads() - threads) * _STACK)
        limit = most - held.shared + min(held.untouched, lasting + heaps)
        if before[0] != resource.RLIM_INFINITY:
            limit = min(limit, before[0])
        with moving:
            if not over.is_set():
                resource.setrlimit(resource.RLIMIT_DATA, (max(0, limit), before[1]))

    def keep_looking() -> None:
        while not over.wait(_TICK):
            try:
                look()
            except MemoryError:  # the limit is reached; whoever has reached it will say so
                continue

    threading.Thread(target=keep_looking, name="shardmill-limit", daemon=True).start()
    look()
    try:
        yield True
    finally:
        with moving:
            over.set()
            resource.setrlimit(resource.RLIMIT_DATA, before)
