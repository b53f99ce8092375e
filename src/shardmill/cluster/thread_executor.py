"""Pieces in threads of this process: copying and hashing release the interpreter, and share one process's memory."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from shardmill.cluster.executors import Executor, PartReport
from shardmill.cluster.pieces import make_piece
from shardmill.errors import Interrupted, ShardmillError
from shardmill.run import Done, Progress, resident, usable_cpus
from shardmill.units import parse_bytes

_EVERY = 1.0  # seconds between two reports
_PROCESS, _PIECE = 150_000_000, 60_000_000  # bytes of memory that a merge takes, and each piece that is being written
_AT_ONCE = 4  # pieces that are written together, where nobody says: a disk is busy with fewer
_Said: TypeAlias = "queue.SimpleQueue[tuple[int, PartReport | Future[None]]]"


class ThreadExecutor(Executor):
    """`workers` threads at a time; by default as many as CPUs, disk and memory have use for."""

    def __init__(self, out: str, memory: int | str | None, workers: int | None) -> None:
        by_memory = _AT_ONCE if memory is None else max(1, (parse_bytes(memory) - _PROCESS) // _PIECE)
        # More than CPUs: while one piece is brought to the disk, another can be hashed.
        self._parallel = workers or min(_AT_ONCE, 2 * usable_cpus(), by_memory)
        super().__init__(out, None, None)
        self._running: dict[int, threading.Event] = {}
        self._threads = ThreadPoolExecutor(self._parallel, "shardmill-piece")
        self._said: _Said = queue.SimpleQueue()

    def open(self) -> None:
        pass

    def room(self) -> int:
        return self._parallel - len(self._running)

    def start(self, copy: int, number: int) -> None:
        stopped = self._running[copy] = threading.Event()
        made = self._threads.submit(self._make, copy, number, stopped)
        made.add_done_callback(lambda made: self._said.put((copy, made)))

    def _make(self, copy: int, number: int, stopped: threading.Event) -> None:
        progress = _ThreadReports(self._said, copy)
        try:
            progress.tell("running")
            make_piece(self._out, number, progress=progress, stopped=stopped)
            progress.tell("done")
        except Interrupted:
            progress.tell("lost")
        except ShardmillError as error:
            progress.tell("failed", error)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        try:
            copy, said = self._said.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(said, Future):
            said.result()  # raises what nobody expects
            return
        if said.last:
            self._running.pop(copy, None)
        yield copy, said

    def stop(self, copy: int) -> None:
        self._running.pop(copy).set()

    def close(self) -> None:
        for copy in list(self._running):
            self.stop(copy)
        self._threads.shutdown(cancel_futures=True)


class _ThreadReports(Progress):
    """The state of a piece, told now and then."""

    def __init__(self, said: _Said, copy: int) -> None:
        self._said, self._copy = said, copy
        self._done, self._told = Done(), 0.0

    def update(self, done: Done) -> None:
        self._done = done
        if time.monotonic() >= self._told + _EVERY:
            self.tell("running")

    def tell(self, kind: str, error: ShardmillError | None = None) -> None:
        self._told = time.monotonic()
        self._said.put((self._copy, PartReport(kind, socket.gethostname(), self._done, resident(), 0, error)))
