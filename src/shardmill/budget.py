"""The memory of a run: how much there is, and who holds how much of it.

A chunk is worked on only while it holds a lease for its worst case. Besides the leases there is what the program itself
takes, and the engines, whose caches grow with the text: `crowded` says when an engine has to be replaced.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

import psutil

from shardmill.errors import BudgetError
from shardmill.quantities import show_bytes

MB = 1_000_000

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8  # from glibc's malloc.h
_CEILING = (
    0.86  # of --memory: what stays free is for what no lease foresees (allocator slack, thread stacks, a page fault)
)
_FRESH = 200 * MB  # what a process that has only just loaded shardmill holds at the most
_ENGINE = 34 * MB  # a new gigatoken engine with GPT-2's vocabulary takes 29 MB
_GROWTH = (
    22 * MB
)  # of an engine's caches over one chunk of words never seen before: 7 bytes a byte, and a table that doubles
_FEEDER = 12 * MB  # what the reading thread buffers: decompressor windows, parquet pages
# Text, raw text beside it, one token of two bytes per byte of text, and the same again with EOT placed: the worst case.
PER_BYTE = 6
PER_CALL = (
    9 * MB
)  # an engine call: one megabyte of text, at most a token of four bytes per byte, in a vector that doubles
SMALLEST, LARGEST = 256 * 1024, 4 * 1024 * 1024


class Budget:
    """Leases of bytes, granted in the order in which they are asked for; one thread asks."""

    def __init__(self, memory: int | None, workers: int | None) -> None:
        """BudgetError when `memory` is below the least that works; it names it."""
        self._process = psutil.Process()
        base = self.resident()
        cpus = usable_cpus()
        self.workers = workers or cpus
        # What a notebook or a larger program holds already is not ours to count, unless a limit was set.
        self.memory = memory or default_memory(self.workers) + max(0, base - _FRESH)
        least = int((base + _FEEDER + (workers or 1) * _worker_needs(SMALLEST)) / _CEILING)
        if self.memory < least:
            raise BudgetError(
                f"{show_bytes(self.memory)} of memory does not suffice for {workers or 1} workers"
                if (workers or 1) > 1
                else f"{show_bytes(self.memory)} of memory does not suffice",
                hint=f"the least that works is `--memory {-(-least // MB)}MB`"
                + (" (or fewer `--workers`)" if (workers or 1) > 1 else ""),
            )
        room = int(self.memory * _CEILING) - base - _FEEDER
        if workers is None:
            self.workers = max(1, min(cpus, room // _worker_needs(SMALLEST)))
        self.chunk_bytes = LARGEST
        while self.chunk_bytes > SMALLEST and room < self.workers * _worker_needs(self.chunk_bytes):
            self.chunk_bytes //= 2
        growth = self.workers * (_GROWTH + 5 * self.chunk_bytes)
        self._soft = int(self.memory * _CEILING) - growth
        self.capacity = max(
            self.workers * lease_for(self.chunk_bytes), (self._soft - base - _FEEDER - self.workers * _ENGINE) // 2
        )
        self.largest = max(self.chunk_bytes, (self.capacity - PER_CALL) // PER_BYTE)
        self._held = 0
        self._freed = threading.Condition()
        self._closed = False
        self.peak = base

    def resident(self) -> int:
        """Bytes that this process holds in memory now."""
        return int(self._process.memory_info().rss)

    def sample(self) -> int:
        """The same, remembering the largest."""
        now = self.resident()
        self.peak = max(self.peak, now)
        return now

    def crowded(self) -> bool:
        """Whether the engines have to give memory back before the next chunk."""
        return self.sample() > self._soft

    def lease(self, amount: int) -> bool:
        """Wait until `amount` bytes are free, and hold them; False when the budget was closed meanwhile."""
        with self._freed:
            # Waking now and then is a guard: a release that never comes must not look like one that is late.
            while not self._closed and self._held and self._held + amount > self.capacity:
                self._freed.wait(0.5)
            self._held += amount
            return not self._closed

    def release(self, amount: int) -> None:
        with self._freed:
            self._held -= amount
            self._freed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()


def lease_for(text_bytes: int) -> int:
    """What a chunk of so many bytes of text may take at the most while it is worked on."""
    return PER_BYTE * text_bytes + PER_CALL


def _worker_needs(chunk_bytes: int) -> int:
    # Two leases a worker: one that is worked on, and one that is written or read ahead.
    return _ENGINE + _GROWTH + 5 * chunk_bytes + 2 * lease_for(chunk_bytes)


def default_memory(workers: int) -> int:
    """1 GB for up to two workers and 256 MB for each more, at most half of what this process may use."""
    return min(1000 * MB + 256 * MB * max(0, workers - 2), usable_memory() // 2)


def usable_cpus() -> int:
    """CPUs that this process may use: affinity and the cgroup's quota respected."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpu_quota()
    return max(1, min(cpus, int(quota + 0.5)) if quota else cpus)


def usable_memory() -> int:
    """Bytes of RAM that this process may use: the machine's, or the smallest limit of its cgroups."""
    limits = [int(psutil.virtual_memory().total)]
    for folder in _cgroup_folders():
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(folder / name)
            if value:
                limits.append(value)
    return min(limits)


def _cgroup_cpu_quota() -> float:
    quotas = []
    for folder in _cgroup_folders():
        try:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
            quotas.append(int(quota) / int(period))
        except (OSError, ValueError):  # no such file, or `max`: no limit here
            one, other = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if one and other:
                quotas.append(one / other)
    return min(quotas, default=0.0)


def _cgroup_folders() -> list[Path]:
    """The folders of this process's cgroups (both versions) and of all above them: a limit anywhere binds."""
    root = Path("/sys/fs/cgroup")
    folders = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = root / controllers if controllers else root
        here = top / path.lstrip("/")
        folders += [here, *[above for above in here.parents if above == top or top in above.parents], top]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _number(path: Path) -> int:
    try:
        value = int(path.read_text())
    except (OSError, ValueError):  # no such file, or `max`: no limit here
        return 0
    return value if 0 < value < 1 << 60 else 0


def trim() -> None:
    """Hand memory that was freed back to the system, where the C library keeps it for itself (glibc)."""
    if _libc is not None:
        _libc.malloc_trim(0)


def settle_allocator() -> None:
    """Keep glibc from holding freed memory in an arena per thread: two arenas, and large blocks returned at once."""
    if _libc is not None:
        _libc.mallopt(_M_ARENA_MAX, 2)
        _libc.mallopt(_M_TRIM_THRESHOLD, 16 << 20)


def _load_libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim  # noqa: B018 - musl has none
    except (OSError, AttributeError):
        return None
    return libc


_libc = _load_libc()
