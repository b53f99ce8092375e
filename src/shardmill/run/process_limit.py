"""A memory limit for this process: if data takes more memory than was estimated, that is a MemoryError.

Linux cannot limit resident memory, but it can limit private writable mappings: `RLIMIT_DATA`. Memory that is mapped but
not touched does no harm, and may be a hundred megabytes: stacks of threads, tables of engines that are not full yet,
memory that an allocator keeps. So the limit is adjusted many times a second, such that resident memory cannot exceed
`--memory` if memory that was untouched for a second stays untouched.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext

_LINUX = sys.platform.startswith("linux")
_PAGE = os.sysconf("SC_PAGE_SIZE") if _LINUX else 0
# Seconds between two looks, and the number of looks after which untouched memory is expected to stay untouched.
_TICK, _LOOKS = 0.02, 50
# What a thread of ours maps for its stack, as much as Rust gives one; by default it would be 8 MB.
_STACK = 2 << 20
# What allocators map and return all the time. A seventh of the memory is spare, which covers it; where that is too
# little, with less than 400 MB, the limit lies higher by the rest.
_HEAPS, _SPARE = 60_000_000, 7
# Kept free for what is touched between two looks: this share of the memory.
_MARGIN = 64

_owned = False


def own_process() -> None:
    """Declare that this process runs nothing else, before pyarrow is loaded: then `memory_limit` may limit it.

    Arrow's own allocator maps a gigabyte at once, and a limit cannot see what it takes out of that. So Arrow takes the
    system's, whose buffers are reused too (`settle_allocator`).
    """
    global _owned
    _owned = True
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    threading.stack_size(_STACK)


def _memory() -> tuple[int, int]:
    """Bytes of resident files and shared memory, which the limit does not count; and of untouched private memory."""
    with open("/proc/self/statm", "rb") as counts:
        _, resident, shared, _, _, data, _ = (int(pages) * _PAGE for pages in counts.read().split())
    return shared, data - (resident - shared)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class _MovingLimit:
    """`RLIMIT_DATA` of this process, adjusted by a thread so that no more than `memory` becomes resident."""

    def __init__(self, memory: int) -> None:
        self._target = memory - memory // _MARGIN
        self._heaps = max(0, _HEAPS - memory // _SPARE)
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        self._untouched_at_first, self._threads_at_first = _memory()[1], _threads()
        self._untouched_before: deque[int] = deque(maxlen=_LOOKS)
        self._early_looks = 2 * _LOOKS
        self._stopped, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> bool:
        threading.Thread(target=self._keep_adjusting, name="shardmill-limit", daemon=True).start()
        self._adjust()
        return True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped.set()
            resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def _keep_adjusting(self) -> None:
        while not self._stopped.wait(_TICK):
            try:
                self._adjust()
            except MemoryError:  # the limit is reached; the thread that needs the memory gets the error too
                continue

    def _adjust(self) -> None:
        shared, untouched = _memory()
        limit = self._target - shared + min(untouched, self._stays_untouched(untouched) + self._heaps)
        soft, hard = self._before
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        with self._lock:
            if not self._stopped.is_set():
                resource.setrlimit(resource.RLIMIT_DATA, (max(0, limit), hard))

    def _stays_untouched(self, untouched: int) -> int:
        """Of the bytes that are untouched now, those that are expected to stay so."""
        self._untouched_before.append(untouched)
        staying = min(self._untouched_before) if len(self._untouched_before) == _LOOKS else 0
        if self._early_looks:  # new mappings are stacks of threads, or will be touched
            self._early_looks -= 1
            stacks = (_threads() - self._threads_at_first) * _STACK
            staying = max(staying, self._untouched_at_first + stacks)
        return staying


def memory_limit(memory: int) -> AbstractContextManager[bool]:
    """Make an allocation a MemoryError if this process would then hold more than `memory`; yields whether that works.

    Only on Linux, and only in our own process: in a program that calls us, its other threads would be limited too.
    Leases and engines together must stay well below `memory`, since a library in Rust aborts when it gets none.
    """
    return _MovingLimit(memory) if _owned and _LINUX else nullcontext(False)
