"""One process or several: how many workers a process keeps busy, and how the work is divided beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.detection import format_of
from shardmill.options import Val
from shardmill.run import Plan
from shardmill.storage import compression_of

# Workers that one process keeps busy; `python -m benchmarks cores` measures it. One thread decompresses a stream, and
# the bytes of all others are read by the workers themselves.
BUSY_WORKERS = {"compressed": 4, "other": 8}
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

    compressed: int
    """Stored bytes of compressed sources."""
    other: int
    """Stored bytes of the others."""
    workers: int
    memory: int
    """Bytes for all processes that encode."""

    @property
    def text(self) -> int:
        return self.other + UNFOLDS * self.compressed


def count_processes(amounts: Amounts) -> int:
    """Return how many processes should share the work."""
    kind = "compressed" if UNFOLDS * amounts.compressed > amounts.other else "other"
    wanted = -(-amounts.workers // BUSY_WORKERS[kind])
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
    compressed = 0
    for source in sources:
        if source.remote and source.path != source.name:  # a secret, which other processes are not told
            return None
        format = source.input_format if source.input_format != "auto" else format_of(source.path)
        if whole_texts and format in ("text", None):
            return None
        compressed += (source.size or 0) if compression_of(source.path) else 0
    return Amounts(compressed, total - compressed, workers, memory)
