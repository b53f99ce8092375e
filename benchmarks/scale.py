"""A cluster on paper: the real driver, with an executor whose nodes are numbers and whose clock runs ahead.

What `python -m benchmarks scale` prints stands in docs/scale.md. tests/cluster/test_scale.py compares it with real
runs.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks import results
from shardmill.cluster import driver
from shardmill.cluster.executors import Executor, PartReport
from shardmill.run import Done
from shardmill.run.progress import Progress

GB = 10**9
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


@dataclass(frozen=True)
class Outcome:
    seconds: float
    ideal: float
    """Seconds if nothing went wrong, started or ended."""
    worked: float
    """Slot-seconds spent, of those that an ideal run would take."""


def simulate(cluster: Cluster, text: float, part: float, seed: int = 0) -> Outcome:
    """A run of the real driver over `text` bytes in parts of `part`."""
    count = max(1, round(text / part))
    sizes = dict.fromkeys(range(count), int(text / count))
    executor = SimulatedExecutor(cluster, sizes, seed)
    driver.Driver(sizes, executor.missing, executor, Progress(), executor.clock).run()
    ideal = text / cluster.rate
    return Outcome(executor.now, ideal / (cluster.nodes * cluster.slots), executor.worked / ideal)


def replay(seconds: list[float], slots: int) -> float:
    """How long a run takes on one node whose parts take so many seconds."""
    sizes = dict.fromkeys(range(len(seconds)), GB)
    executor = SimulatedExecutor(Cluster(nodes=1, slots=slots, lost=0.0), sizes, seconds=seconds)
    driver.Driver(sizes, executor.missing, executor, Progress(), executor.clock).run()
    return executor.now


TEXTS = {
    "FineWeb-Edu 10BT": (10e9, 27.6e9),
    "FineWeb-Edu 100BT": (100e9, 277.4e9),
    "FineWeb 15T": (15e12, 44e12),
    "100 TB of text": (23e12, 67.5e12),
}
"""Tokens, and bytes as they are stored."""
BYTES_A_TOKEN = 4.35  # the README's web text
CORE = 114e6  # bytes of text in a second of a core: parquet in the README's table, 228 MB/s on two
CPU = 60e6  # bytes of text in a second of a rented CPU, which is half a core, with the other half busy too
NETWORK = 1.25e9  # bytes a second of a node: 12.5 Gbit/s, less what is lost
NODE = 16  # CPUs
GET, PUT, MONTH, HOUR = 0.4e-6, 5e-6, 0.023e-9, 0.05  # dollars: a request, a request, a byte, a CPU


def merge_rate() -> float:
    """Bytes of tokens in a second of CPU of a merge, by the last run of `python -m benchmarks machines` with one."""
    found = (json.loads(path.read_text()) for path in sorted(results.FOLDER.glob("*-machines.json")))
    *_, last = (row for result in found for row in result["rows"] if row["way"] == "merge")
    return float(last["bytes"] / min(last["cpu"]))


def paper() -> Iterable[str]:
    """What each text takes, from measured rates; without what goes wrong, which is what is simulated."""
    yield "| | text | tokens stored | core-hours | read | GET | PUT | requests | CPUs | a month of storage |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, (tokens, stored) in TEXTS.items():
        text, out = tokens * BYTES_A_TOKEN, 2 * tokens
        gets, puts = (stored + out) / 4e6, 2 * out / 8e6  # the tokens once as parts, once as the dataset
        yield (
            f"| {name} | {_amount(text)} | {_amount(out)} | {text / CORE / 3600:,.1f} | {_amount(stored)} "
            f"| {gets / 1e6:,.2f}M | {puts / 1e6:,.2f}M | ${gets * GET + puts * PUT:,.2f} "
            f"| ${text / CPU / 3600 * HOUR:,.2f} | ${out * MONTH:,.2f} |"
        )
    yield ""
    yield "| parts, without the merge | 1 node | 10 nodes | 100 nodes | the merge, one process | over the network |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, (tokens, stored) in TEXTS.items():
        text, out = tokens * BYTES_A_TOKEN, 2 * tokens
        times = [max(text / (NODE * CPU), (stored + out) / NETWORK) / nodes for nodes in (1, 10, 100)]
        merging = [out / merge_rate(), 2 * out / NETWORK]
        yield f"| {name} | {' | '.join(_time(one) for one in times + merging)} |"


def _amount(size: float) -> str:
    return f"{size / 1e12:,.1f} TB" if size >= 1e12 else f"{size / 1e9:,.0f} GB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def main() -> None:
    """The tables of docs/scale.md."""
    print("\n".join(paper()), end="\n\n", flush=True)
    print("| text | nodes | part | time | longer than ideal | work beyond ideal |\n|---|---:|---:|---:|---:|---:|")
    for text, nodes in ((277 * GB, 1), (277 * GB, 10), (44_000 * GB, 10), (44_000 * GB, 100)):
        for part in (1, 4, 8, 16, 64):
            row = _mean([simulate(Cluster(nodes=nodes), text, part * GB, seed) for seed in range(3)])
            print(f"| {text / GB:,.0f} GB | {nodes} | {part:g} GB | {_shown(row)} |", flush=True)


def _mean(outcomes: list[Outcome]) -> Outcome:
    def mean(name: str) -> float:
        return float(sum(getattr(one, name) for one in outcomes)) / len(outcomes)

    return replace(outcomes[0], seconds=mean("seconds"), worked=mean("worked"))


def _shown(row: Outcome) -> str:
    return f"{row.seconds / 60:,.1f} min | {row.seconds / row.ideal - 1:.0%} | {row.worked - 1:.0%}"


if __name__ == "__main__":
    main()
