"""Makes parts in processes of this machine, one after another or several at a time."""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections.abc import Iterable

from shardmill.cluster.executors import Executor, PartReport
from shardmill.cluster.part_process import PartProcess
from shardmill.errors import UsageError
from shardmill.run import default_memory, usable_cpus

_DRIVER = 150_000_000  # bytes that the command itself takes, with the merge


class LocalExecutor(Executor):
    """Runs `parallel` processes at a time, and divides the CPUs and the memory among them."""

    def __init__(self, out: str, memory: int | None = None, workers: int | None = None, parallel: int = 1) -> None:
        if parallel < 1:
            raise UsageError(f"`--parallel {parallel}`: must be at least 1")
        super().__init__(out, memory, workers or max(1, usable_cpus() // parallel))
        self._parallel, self._node = parallel, socket.gethostname()
        self._submitted: list[int] = []
        """A heap: the merge needs the first part first."""
        self._running: dict[int, PartProcess] = {}
        self._idle: list[PartProcess] = []

    def open(self) -> None:
        whole = self._memory or default_memory(max(usable_cpus(), self._parallel))
        self._memory = max(1, whole - _DRIVER) // self._parallel

    def submit(self, number: int) -> None:
        heapq.heappush(self._submitted, number)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        while self._submitted and len(self._running) < self._parallel:
            number = heapq.heappop(self._submitted)
            self._idle = [process for process in self._idle if process.alive]
            process = self._idle.pop() if self._idle else PartProcess(self._out, self._memory, self._workers)
            self._running[number] = process
            process.make(number)
            yield number, PartReport("started", self._node)
        if not self._running:
            time.sleep(seconds)
            return
        ready, _, _ = select.select(list(self._running.values()), [], [], seconds)
        for number, process in list(self._running.items()):
            for report in process.read(self._node) if process in ready else ():
                if report.kind == "done":
                    self._idle.append(self._running.pop(number))
                elif report.last:
                    self.stop(number)
                yield number, report

    def stop(self, number: int) -> None:
        if number in self._running:
            self._running.pop(number).end()
        else:
            self._submitted.remove(number)
            heapq.heapify(self._submitted)

    def close(self) -> None:
        processes = [*self._running.values(), *self._idle]
        self._submitted, self._running, self._idle = [], {}, []
        for process in processes:
            process.request_end()
        for process in processes:
            process.end()
