"""The machine as this process sees it: the CPUs and memory that it may use, what it holds, and its allocator."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_LINUX = sys.platform.startswith("linux")
_PAGE = os.sysconf("SC_PAGE_SIZE") if _LINUX else 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from glibc's malloc.h


def usable_cpus() -> int:
    """CPUs that this process may use: affinity and the cgroup's quota respected."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpu_quota()
    return max(1, min(cpus, int(quota + 0.5)) if quota else cpus)


def usable_memory() -> int:
    """Bytes of RAM that this process may use: the machine's, or the smallest limit of its cgroups."""
    limits = [_installed_memory()]
    for folder in _cgroup_folders():
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(folder / name)
            if value:
                limits.append(value)
    return min(limits)


def resident() -> int:
    """Bytes that this process holds in memory now."""
    if _LINUX:
        # Not with psutil, which takes time to import (docs/log.md).
        with open("/proc/self/statm", "rb") as counts:
            return int(counts.read().split()[1]) * _PAGE
    import psutil

    return int(psutil.Process().memory_info().rss)


def most_resident() -> int:
    """The most bytes that this process has ever held in memory; 0 where the system does not tell."""
    if _LINUX:
        with open("/proc/self/status", "rb") as facts:
            for line in facts:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    return 0


def _installed_memory() -> int:
    if _LINUX:
        # Not sysconf, which gives the host's memory where a container's own /proc gives less.
        return int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    import psutil

    return int(psutil.virtual_memory().total)


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


def trim_memory() -> None:
    """Return freed memory to the system: Arrow and the C library (glibc) keep some of it."""
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    if _libc is not None:
        _libc.malloc_trim(0)


def settle_allocator() -> None:
    """Make glibc reuse the buffers of one chunk for the next, and not keep an arena for each thread.

    By default it returns every buffer to the system, and page faults take a fifth of all time (docs/log.md).
    """
    if _libc is not None:
        _libc.mallopt(_M_ARENA_MAX, 2)
        _libc.mallopt(_M_MMAP_THRESHOLD, 5 << 20)
        _libc.mallopt(_M_TRIM_THRESHOLD, 32 << 20)


def _load_libc() -> ctypes.CDLL | None:
    if not _LINUX:
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim  # noqa: B018 - musl has none
    except (OSError, AttributeError):
        return None
    return libc


_libc = _load_libc()
