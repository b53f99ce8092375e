"""The memory of a run: how much there is, and how it is divided.

A chunk is worked on only while it holds a lease for its worst case. The program itself and the engines, which have a
fixed size, need memory too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardmill.errors import BudgetError
from shardmill.run.machine import most_resident, resident, trim_memory, usable_cpus, usable_memory
from shardmill.units import show_bytes

MB = 1_000_000

# The share of --memory that is planned. The rest covers memory that allocators keep, and stacks of threads.
_CEILING = 0.86
# The most that a process holds right after it has loaded shardmill.
_FRESH = 200 * MB
# Two processes that do the same differ by up to this much. So it is added to the least memory that an error names.
_VARIES = 8 * MB
# Buffers of the feeder: windows of decompressors, pages of parquet.
_FEEDER = 12 * MB
# The part of them that one step may use without a reservation.
_STEP_FREE = 8 * MB
# Bytes that are fetched ahead of remote sources. If a response takes 50 ms, 8 MB give 160 MB/s; if it takes 200 ms,
# 22 MB give what two workers encode at 512 MB. With little memory, chunks need it more.
MIN_READ_AHEAD, _MAX_READ_AHEAD = 8 * MB, 64 * MB
# The HTTP clients of sixteen connections.
_CLIENT = 12 * MB
# The memory for a long line or row in times its size, until it is written: of a line that Python parses, the line
# twice, and three times as `str`; of a row, its page as it is stored and decompressed, and the row by itself.
_ROW_COPIES = 5
# The fixed cost of a task: small arrays of a few calls.
_TASK = 4 * MB
# By how much more a process may hold at the start than it did the last time: 50 MB if it has made a run before.
_DIFFERS = 64 * MB
SMALLEST, LARGEST, _STEP = 256 * 1024, 4 * 1024 * 1024, 64 * 1024


def check_memory(memory: int | None, workers: int | None) -> None:
    """BudgetError when a user asks for more memory than there is."""
    if memory is not None and memory > usable_memory():
        raise BudgetError(
            f"{_option(memory)} is more than the {show_bytes(usable_memory())} of RAM that this process may use",
            hint=f"leave it out: the default here is {_option(default_memory(workers or usable_cpus()))}",
        )


class Budget:
    """Leases of bytes, granted in the order in which they are asked for; one thread asks."""

    def __init__(
        self,
        memory: int | None,
        workers: int | None,
        token_bytes: int = 2,
        *,
        engine_bytes: int = 0,
        engines: int = 0,
        library_bytes: int = 0,
        remote: bool = False,
        beside: int = 0,
        cuts: bool = False,
    ) -> None:
        """BudgetError when `memory` is below the least that works; it names it.

        `engine_bytes`: the size of an engine. `engines`: how many exist already, so that they are not counted twice.
        `library_bytes`: what the tokenizer's library takes in addition for each byte of text.
        `remote`: sources are read ahead. `beside`: memory that is needed whatever the size of the chunks.
        `cuts`: text may be cut, so that a long row can be encoded in pieces.
        """
        self._cuts, self._remote, self.engine_bytes = cuts, remote, engine_bytes
        self._held = self._held_by_feeder = 0
        self._closed = False
        self._freed = threading.Condition()
        # Text, the raw text beside it, a token for every byte of it, the same again with EOT placed; and while the
        # engine is at work, ids of four bytes for half of the bytes, which is more than any real text gives.
        self._per_byte = 4 + 2 * token_bytes + library_bytes
        self._sampled, self._peak_before = resident(), most_resident()
        self._base = self._sampled + beside - engines * engine_bytes
        self._max_workers = self.workers = workers or usable_cpus()
        # Memory that a notebook or a larger program already holds is not counted, unless a limit was set.
        self.memory = memory or default_memory(self.workers) + int(max(0, self._sampled - _FRESH) / _CEILING)
        self.ceiling = int(self.memory * _CEILING)
        """The most that the program, the engines and the leases take together."""
        self.read_ahead = max(MIN_READ_AHEAD, min(_MAX_READ_AHEAD, self.memory // 8 - 42 * MB)) if remote else 0
        """Bytes of remote sources that may be fetched ahead."""
        fixed = self._base + _FEEDER + self.read_ahead + (_CLIENT if remote else 0)
        room, one_worker = self.ceiling - fixed, engine_bytes + 2 * self.lease_for(SMALLEST)
        if room < (workers or 1) * one_worker:
            least = int((fixed + (workers or 1) * one_worker) / _CEILING) + _VARIES
            raise _too_little(self.memory, least, workers or 1)
        if workers is None:
            self.workers = max(1, min(self._max_workers, room // one_worker))
        room -= self.workers * engine_bytes
        # Two leases for each worker: one that is worked on, and one that is written or read ahead. And one more:
        # without it they wait a tenth of the time; the least memory has no room for it. A run with chunks of 2 MB takes
        # a tenth more CPU time than with 3 MB.
        leases = 2 * self.workers + 1
        fitting = (room - leases * _TASK) // (leases * self._per_byte)
        self.chunk_bytes = max(SMALLEST, min(LARGEST, fitting & -_STEP))
        lease = self.lease_for(self.chunk_bytes)
        self.capacity = max((self.workers + (self.chunk_bytes > SMALLEST)) * lease, room // 2)
        self.largest = max(self.chunk_bytes, (self.capacity - _TASK) // self._per_byte)
        """The largest record that is encoded at once."""
        # During a large step of the feeder there is room for only one worker's chunk: the others wait.
        self.largest_step = room - lease + _STEP_FREE
        in_pieces = (self.largest_step - lease - engine_bytes) // _ROW_COPIES
        self.largest_row = max(self.largest, in_pieces) if cuts else 0
        """The largest JSON line or row of a table that is encoded in pieces; 0: nothing is."""

    @property
    def free(self) -> int:
        """Bytes that were not in use when it was made, of those that are planned."""
        return self.ceiling - self._base

    def lease_for(self, text_bytes: int, overhead: int = 0) -> int:
        """The memory that a chunk with so much text may take while it is worked on; `overhead`: of rows and rejects."""
        return self._per_byte * text_bytes + overhead + _TASK

    def too_small(
        self, message: str, record: int, place: str, hint: str = "", *, row: bool = False, beside: int = 0
    ) -> BudgetError:
        """The error for a record of more than `largest` bytes, or a line or row of more than `largest_row`.

        Its hint names the memory that suffices. `beside`: what reading it takes in addition.

        That may be more than the least that works: all workers, the largest chunks and the largest read-ahead are
        counted, so that every larger `--memory` works too. `hint`: what to do where more memory does not help.
        """
        if hint:
            return BudgetError(message, place=place, hint=hint)
        return self._needs(message, self._room_for(record, row=row) + beside, place)

    def _room_for(self, record: int, *, row: bool) -> int:
        """The capacity for leases with which there is room for a record."""
        at_once = 2 * self.lease_for(record)
        in_pieces = _ROW_COPIES * record + 2 * self.lease_for(LARGEST) + self.engine_bytes
        return min(at_once, in_pieces) if row and self._cuts else at_once

    def _needs(self, message: str, capacity: int, place: str) -> BudgetError:
        """The error that names the memory with which leases have so much `capacity`."""
        feeder = _FEEDER + (_MAX_READ_AHEAD + _CLIENT if self._remote else 0)
        engines = self._max_workers * self.engine_bytes
        work = engines + max(capacity, 2 * self._max_workers * self.lease_for(SMALLEST))
        enough = int((self._base + _DIFFERS + feeder + work) / _CEILING)
        hint = f"with {_option(enough)} there is room for it"
        if enough > usable_memory():
            hint += f"; this machine allows {show_bytes(usable_memory())}"
        return BudgetError(message, place=place, hint=hint)

    def exhausted(self, place: str, *, ours: bool) -> BudgetError:
        """The error for memory that ran out in spite of all estimates; `ours`: at `--memory`, not at a system limit."""
        if not ours:
            hint = "close other programs, or raise the memory limit of this process"
            return BudgetError("out of memory", place=place, hint=hint)
        return BudgetError(
            f"the data takes more than {show_bytes(self.memory)} of memory",
            place=place,
            hint=f"try {_option(2 * self.memory)}; how much it takes is not known",
        )

    def sample(self) -> int:
        """The resident size of this process now; the largest is remembered."""
        now = resident()
        self._sampled = max(self._sampled, now)
        return now

    @property
    def peak(self) -> int:
        """The largest resident size since the budget was made, also between two samples."""
        peak = most_resident()
        return max(self._sampled, peak) if peak > self._peak_before else self._sampled

    def trim(self) -> None:
        """Return unused memory of the allocators to the system, if the process holds more than is planned."""
        if self.sample() > self.ceiling:
            trim_memory()

    def lease(self, amount: int, spare: int = 0) -> bool:
        """Wait until `amount` and `spare` bytes are free, and hold `amount`; False when the budget has been closed."""
        with self._freed:
            # Not for what the feeder itself holds, which would never be released. With a timeout, so that a lost
            # notification cannot block for ever.
            while (
                not self._closed and self._held > self._held_by_feeder and self._held + amount + spare > self.capacity
            ):
                self._freed.wait(0.5)
            self._held += amount
            return not self._closed

    @contextmanager
    def hold(self, amount: int, what: str, place: str) -> Iterator[None]:
        """Hold memory for a step of the feeder, in addition to leases; wait until it is free. Only the feeder calls it.

        BudgetError when there is never so much. It names what suffices, also for a record of a third of it.
        """
        together = self._held_by_feeder + amount  # a page is held while its dictionary is
        if together > self.largest_step:
            # With more memory a step may take more, up to `largest`, which is less than this share of it.
            step = together + together // self._per_byte + self.lease_for(LARGEST)
            room = max(step, self._room_for(together // 3, row=True))
            raise self._needs(f"{what} takes {show_bytes(amount)} of memory to decode", room, place)
        amount = max(0, amount - _STEP_FREE)
        self.lease(amount, self.lease_for(self.chunk_bytes))
        self._held_by_feeder += amount
        try:
            yield
        finally:
            self._held_by_feeder -= amount
            self.release(amount)

    def release(self, amount: int) -> None:
        with self._freed:
            self._held -= amount
            self._freed.notify_all()

    def close(self) -> None:
        """Wake all waiting threads; no more leases are granted."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()


_here = threading.local()


def set_thread_budget(budget: Budget) -> None:
    """Declare that this thread is the feeder of a run with that budget."""
    _here.budget = budget


def thread_budget() -> Budget | None:
    """The budget of the run whose feeder this thread is."""
    return getattr(_here, "budget", None)


def _too_little(memory: int, least: int, workers: int) -> BudgetError:
    for_workers, fewer = (f" for {workers} workers", " (or fewer `--workers`)") if workers > 1 else ("", "")
    return BudgetError(
        f"{show_bytes(memory)} of memory does not suffice{for_workers}",
        hint=f"the least that works is {_option(least)}{fewer}",
    )


def _option(memory: int) -> str:
    return f"`--memory {-(-memory // MB)}MB`"


def default_memory(workers: int) -> int:
    """1 GB for up to two workers and 256 MB for each more, at most half of what this process may use."""
    return min(1000 * MB + 256 * MB * max(0, workers - 2), usable_memory() // 2)
