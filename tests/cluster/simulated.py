"""A cluster on paper: an executor whose nodes are numbers and whose clock runs ahead."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardmill.cluster.executors import Executor, PartReport
from shardmill.write import Done

_SIGN = 30.0  # seconds between two signs of life; fewer than in a real run, so that a simulation takes seconds
_NOTICED = 30.0  # seconds until an executor says that a node is gone


@dataclass(frozen=True)
class Cluster:
    """Nodes, and what goes wrong with them."""

    nodes: int = 10
    slots: int = 4
    """Parts that a node makes at a time: 16 CPUs, four for each."""
    rate: float = 240e6
    """Bytes of text a second in one slot: four threads at 60 MB/s, half of what one does with its text in memory."""
    start: float = 2.0
    """Seconds before the first byte of a part, and after its last one."""
    spread: float = 0.1
    """Standard deviation of the logarithm of a part's speed."""
    slow: float = 0.02
    """Share of the parts that meet something slow, and are made at a fifth of the speed."""
    lost: float = 0.01
    """Nodes that are lost, of each, in an hour. Half of them freeze: nobody says so."""
    away: float = 600.0
    """Seconds until another node takes the place of a lost one."""


@dataclass
class _Running:
    number: int
    node: int
    begun: float
    frozen: bool = False


class SimulatedExecutor(Executor):
    """Events in the order of their time; `clock` is now."""

    def __init__(
        self,
        cluster: Cluster,
        sizes: dict[int, int],
        seed: int = 0,
        seconds: Sequence[float] | Mapping[int, float] | None = None,
    ):
        """`seconds`: what each part takes, where that is known."""
        super().__init__("", None, None)
        self._cluster, self._sizes, self._seconds = cluster, sizes, seconds
        self._random = random.Random(seed)
        self.now = self.worked = 0.0
        """`worked`: seconds of slots that were spent, whatever came of it."""
        self.published: set[int] = set()
        self._free = dict.fromkeys(range(cluster.nodes), cluster.slots)
        self._submitted: list[int] = []
        self._running: dict[int, _Running] = {}
        self._events: list[tuple[float, int, str, int]] = []
        self._count = 0
        self._copies = itertools.count()
        self._later(_SIGN, "sign", 0)
        for node in self._free:
            self._doom(node)

    def missing(self) -> list[int]:
        return [number for number in self._sizes if number not in self.published]

    def clock(self) -> float:
        return self.now

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def submit(self, number: int) -> None:
        heapq.heappush(self._submitted, number)

    def _start(self, copy: int, number: int) -> None:
        node = max(self._free, key=self._free.__getitem__)
        self._free[node] -= 1
        self._running[copy] = _Running(number, node, self.now)
        if self._seconds is not None:
            self._later(self._seconds[number], "end", copy)
            return
        speed = self._cluster.rate * self._random.lognormvariate(0, self._cluster.spread)
        speed /= 5 if self._random.random() < self._cluster.slow else 1
        self._later(self._cluster.start + self._sizes[number] / speed, "end", copy)

    def stop(self, number: int) -> None:
        copies = [copy for copy, running in self._running.items() if running.number == number]
        for copy in copies:
            self._leave(copy)
        if not copies:
            self._submitted.remove(number)
            heapq.heapify(self._submitted)

    def _leave(self, copy: int) -> None:
        running = self._running.pop(copy)
        self.worked += self.now - running.begun
        if running.node in self._free and not running.frozen:
            self._free[running.node] += 1

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        """What happens next, and soon after it unless times are known; nothing, if that is more than seconds away."""
        while self._submitted and any(self._free.values()):
            number = heapq.heappop(self._submitted)
            self._start(next(self._copies), number)
            yield number, PartReport("started")
        if self._events[0][0] > self.now + 3 * seconds:
            self.now += 3 * seconds
            return
        until = self._events[0][0] + (0.2 if self._seconds is None else 0.0)
        while self._events[0][0] <= until:
            self.now, _, kind, which = heapq.heappop(self._events)
            if kind == "sign":
                self._later(_SIGN, "sign", 0)
                running = [one for one in self._running.values() if not one.frozen]
                yield from [
                    (one.number, PartReport("running", done=Done(int(self.now - one.begun)))) for one in running
                ]
            elif kind == "end" and which in self._running and not self._running[which].frozen:
                yield self._end(which, "done")
            elif kind == "noticed" and which in self._running:
                yield self._end(which, "lost")
            elif kind == "new node":
                self._free[which] = self._cluster.slots
                self._doom(which)
            elif kind == "doom":
                self._lose(which)

    def _end(self, copy: int, kind: str) -> tuple[int, PartReport]:
        number = self._running[copy].number
        self._leave(copy)
        if kind == "done":
            self.published.add(number)
        return number, PartReport(kind)

    def _lose(self, node: int) -> None:
        del self._free[node]
        self._later(self._cluster.away, "new node", node)
        silently = self._random.random() < 0.5
        for copy, running in self._running.items():
            if running.node == node:
                running.frozen = True
                if not silently:
                    self._later(_NOTICED, "noticed", copy)

    def _doom(self, node: int) -> None:
        if self._cluster.lost:
            self._later(self._random.expovariate(self._cluster.lost / 3600), "doom", node)

    def _later(self, seconds: float, kind: str, which: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, kind, which))
