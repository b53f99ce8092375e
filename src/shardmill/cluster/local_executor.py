"""Runs parts in processes of this machine, one after another or several at a time."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable

from shardmill.cluster.executors import Executor, PartReport, Task
from shardmill.cluster.part_process import PartProcess
from shardmill.errors import UsageError
from shardmill.run import usable_cpus


class LocalExecutor(Executor):
    """Runs `parallel` processes at a time, and divides the CPUs among them."""

    def __init__(self, out: str, memory: int | None = None, workers: int | None = None, parallel: int = 1) -> None:
        if parallel < 1:
            raise UsageError(f"`--parallel {parallel}`: must be at least 1")
        super().__init__(out, memory, workers or max(1, usable_cpus() // parallel))
        self._parallel = parallel
        self._node = socket.gethostname()
        self._running: dict[int, PartProcess] = {}
        self._idle: list[PartProcess] = []
        self._new: list[int] = []

    def open(self) -> None:
        pass

    def room(self) -> int:
        return self._parallel - len(self._running)

    def start(self, copy: int, task: Task) -> None:
        process = self._idle.pop() if self._idle else PartProcess(self._out, self._memory, self._workers, self._node)
        self._running[copy] = process
        self._new.append(copy)
        process.make(task)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        while self._new:  # at once: a process that freezes before its first report must count as silent
            yield self._new.pop(), PartReport("running", self._node)
        if not self._running:
            time.sleep(seconds)
            return
        ready, _, _ = select.select(list(self._running.values()), [], [], seconds)
        for copy, process in list(self._running.items()):
            for report in process.read() if process in ready else ():
                if report.kind == "done":
                    self._idle.append(self._running.pop(copy))
                elif report.last:
                    self.stop(copy)
                yield copy, report

    def stop(self, copy: int) -> None:
        self._running.pop(copy).end()

    def close(self) -> None:
        processes = [*self._running.values(), *self._idle]
        self._running, self._idle = {}, []
        for process in processes:
            process.request_end()
        for process in processes:
            process.end()
