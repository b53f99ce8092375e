"""Makes parts in processes of this machine, one after another or several at a time."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterable

from shardmill.cluster.executors import Executor, PartReport
from shardmill.cluster.part_process import PartProcess
from shardmill.cluster.processes import DRIVER
from shardmill.errors import BudgetError, UsageError
from shardmill.run import default_memory, resident, usable_cpus

_MERGE = 80_000_000  # bytes that the merge adds to what a larger program holds already


class LocalExecutor(Executor):
    """Runs `parallel` processes at a time, and divides the memory among them."""

    final_errors = (*Executor.final_errors, BudgetError)

    def __init__(self, out: str, memory: int | None = None, workers: int | None = None, parallel: int = 1) -> None:
        if parallel < 1:
            raise UsageError(f"`--parallel {parallel}`: must be at least 1")
        share = max(1, usable_cpus() // parallel) if parallel > 1 else None  # one process decides by its memory
        super().__init__(out, memory, workers or share)
        self._parallel, self._node = parallel, socket.gethostname()
        self.memory_limit = memory or default_memory(max(usable_cpus(), parallel)) + max(0, resident() - DRIVER)
        # A budget plans with less than its memory, and a program may still grow before the merge begins.
        self.driver_memory = max(DRIVER, resident() * 5 // 4 + _MERGE)
        self._memory = max(1, self.memory_limit - self.driver_memory) // parallel
        self._submitted: deque[int] = deque()
        self._begun: set[int] = set()
        self._running: dict[int, PartProcess] = {}
        self._idle: list[PartProcess] = []

    def open(self) -> None:
        """Nothing is needed beforehand."""

    def submit(self, number: int) -> None:
        if number in self._begun:  # the merge may wait for it
            self._submitted.appendleft(number)
        else:
            self._submitted.append(number)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        while self._submitted and len(self._running) < self._parallel:
            number = self._submitted.popleft()
            self._idle = [process for process in self._idle if process.alive]
            process = self._idle.pop() if self._idle else PartProcess(self._out, self._memory, self._workers)
            self._running[number] = process
            self._begun.add(number)
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

    def close(self) -> None:
        processes = [*self._running.values(), *self._idle]
        self._submitted, self._running, self._idle = deque(), {}, []
        for process in processes:
            process.request_end()
        for process in processes:
            process.end()
