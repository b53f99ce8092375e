"""One process or several: how many workers a process keeps busy, and how the work is divided beyond that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.detection import format_of
from shardmill.options import Val
from shardmill.run import Plan
from shardmill.storage import compression_of

# Workers that one process keeps busy, by the compression of the sources. One thread decompresses: 1.3 GB of text in a
# second from zstd, 0.8 from gzip, 0.08 from xz and 0.05 from bzip2, where a worker encodes 0.19. Other bytes are read
# by the workers; then it is the interpreter's lock that limits them. `python -m benchmarks cores` measures this.
BUSY_WORKERS = {"": 8, "zstd": 6, "gzip": 4, "xz": 1, "bzip2": 1}
UNFOLDS = 3
"""Bytes of text in a byte of a compressed file, roughly: 3 to 4 of JSON Lines."""
# Bytes of text for each process: a process starts in half a second, and encodes this in one.
LEAST_TEXT = 256_000_000
# Bytes of text in a part: as many parts as keep all processes busy to the end, within these bounds.
SMALLEST_PART, _LARGEST_PART, _PARTS_A_PROCESS = 128_000_000, 2_000_000_000, 4
# Bytes of memory of a process and of each of its workers with which chunks still have a good size.
_PROCESS, _WORKER = 100_000_000, 100_000_000
DRIVER = 150_000_000
"""Bytes of memory that the command itself takes, with the merge."""


@dataclass(frozen=True)
class Amounts:
    """What the division of a run depends on."""

    stored: Mapping[str, int]
    """Stored bytes of the sources by their compression; empty: none."""
    workers: int
    memory: int
    """Bytes for all processes that encode."""

    @property
    def texts(self) -> dict[str, int]:
        """Bytes of text by compression, roughly."""
        return {kind: size * (UNFOLDS if kind else 1) for kind, size in self.stored.items()}

    @property
    def text(self) -> int:
        return sum(self.texts.values())


def count_processes(amounts: Amounts) -> int:
    """Return how many processes should share the work."""
    # Each kind keeps its number of workers busy for its share of the time.
    shares = [size / BUSY_WORKERS[kind] for kind, size in amounts.texts.items()]
    wanted = math.ceil(amounts.workers * sum(shares) / max(1, amounts.text))
    by_memory = (amounts.memory - amounts.workers * _WORKER) // _PROCESS
    return max(1, min(wanted, amounts.text // LEAST_TEXT, by_memory))


def count_parts(amounts: Amounts, processes: int) -> int:
    """Return into how many parts to divide the work of these processes."""
    size = amounts.text // (processes * _PARTS_A_PROCESS)
    return max(1, -(-amounts.text // max(SMALLEST_PART, min(_LARGEST_PART, size))))


def amounts_of(plan: Plan, workers: int, memory: int) -> Amounts | None:
    """Return what the division of a plan depends on; None: only one process can do it, or one is surely enough."""
    options, sources = plan.options, plan.sources
    total = sources.total_bytes
    few = workers <= min(BUSY_WORKERS.values()) or UNFOLDS * (total or 0) < 2 * LEAST_TEXT
    if few or total is None or options.limit is not None or sources.from_python:
        return None
    # Where val ends inside a text, the merge reads that text again, for which it has no memory.
    whole_texts = bool(Val.parse(options.val).first) and options.separator is None
    stored: Counter[str] = Counter()
    for source in sources:
        if source.remote and source.path != source.name:  # a secret, which other processes are not told
            return None
        format = source.input_format if source.input_format != "auto" else format_of(source.path)
        if whole_texts and format in ("text", None):
            return None
        stored[compression_of(source.path)] += source.size or 0
    return Amounts(stored, workers, memory)
