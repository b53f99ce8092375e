"""Runs parts as tasks of a Ray cluster.

A task is a relay: it runs a process that makes the part, and forwards its reports. Its arguments are a place and a
number, never data. Ray is told not to retry, because the driver does, and the driver also handles frozen nodes, for
which Ray would wait for ever.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardmill.cluster.executors import Executor, PartReport, Task
from shardmill.cluster.mark import Mark
from shardmill.cluster.part_process import PartProcess
from shardmill.errors import ShardmillError, UsageError
from shardmill.extras import needs
from shardmill.run import default_memory
from shardmill.units import show_bytes

_log = logging.getLogger(__name__)
# Threads of a part by default, at most: a node of 64 CPUs runs 16 parts, and a lost one costs little. A smaller node
# runs two parts with half of the threads each, since a part waits for the disk when it begins and ends.
_THREADS = 4
_RELAY = 150_000_000  # bytes that the task's own process takes beside the part's; up to 110 MB were seen
_ANSWER = 10.0  # seconds for the head of a cluster to answer at all
_PROBE = 60.0  # seconds for every node to start a process and look for the folder
_EVERY = 1.5  # seconds between two reports of a part: a thousand parts must not keep the driver busy
_IDLE = 5.0  # seconds for which a process is kept for the next part
_NODES_KEPT = 5.0  # seconds for which the list of nodes is cached
_SUBMITTED = 2  # tasks submitted for each that can run, so that Ray can start the next one without the driver


class _Spare:
    """On a node: keeps the process of the last part for the next task of this worker, if one comes soon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[Any, ...], PartProcess] | None = None
        self._timer: threading.Timer | None = None

    def take(self, *settings: Any) -> PartProcess:
        """Return a process with these settings, the idle one or a new one."""
        with self._lock:
            kept, self._kept = self._kept, None
            if self._timer is not None:
                self._timer.cancel()
        if kept is not None and kept[0] == settings:
            return kept[1]
        if kept is not None:
            kept[1].end()
        return PartProcess(*settings)

    def start(self, *settings: Any) -> None:
        """Start a process for the first part, unless there is one."""
        if self._kept is None:
            self.keep(PartProcess(*settings), *settings)

    def keep(self, process: PartProcess, *settings: Any) -> None:
        """Keep a process that is idle now."""
        with self._lock:
            self._kept = settings, process
            self._timer = threading.Timer(_IDLE, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].end()


_spare = _Spare()


def _relay(task: Task, mark: Mark, memory: int, workers: int, folder: str) -> Iterator[tuple[str, int, str] | str]:
    """On a node: make a part. Yield where it runs, then its reports. Cancelling the task ends the process."""
    import ray

    node = str(ray.util.get_node_ip_address())
    yield str(ray.get_runtime_context().get_node_id()), os.getpid(), node
    if problem := mark.problem():  # a node that joined after the others were asked
        error = UsageError(f"the node {node} cannot make parts: {problem}")
        yield PartReport("failed", node, error=error).line()
        return
    # Imported, since Ray sends a copy of this function to the node, with globals of its own.
    from shardmill.cluster.ray_executor import _spare

    settings = mark.out, memory, workers, node, folder
    process, last = _spare.take(*settings), ""
    try:
        process.make(task)
        told = 0.0
        while not last:
            # Wake up now and then: Ray cancels a task between two steps of Python.
            ready, _, _ = select.select([process], [], [], 0.5)
            for report in process.read() if ready else ():
                if report.last:
                    last = report.kind
                if last or time.monotonic() > told + _EVERY:
                    told = time.monotonic()
                    yield report.line()
    finally:
        if last == "done":
            _spare.keep(process, *settings)
        else:
            process.end()


def _get_ready(mark: Mark, memory: int, workers: int, folder: str) -> str:
    """On a node: return what keeps it from making parts; if nothing does, start a process for the first part."""
    import ray

    from shardmill.cluster.ray_executor import _spare

    problem = mark.problem()
    if not problem:
        _spare.start(mark.out, memory, workers, str(ray.util.get_node_ip_address()), folder)
    return problem


def _end_frozen(process: int) -> None:
    """On a node: kill a relay that is stopped by a signal. Ray cannot cancel it, and it keeps its CPUs."""
    import psutil

    try:
        relay = psutil.Process(process)
        # Only a worker of this node's Ray, not a newer process with the same id.
        if relay.ppid() == os.getppid() and relay.status() == psutil.STATUS_STOPPED:
            relay.kill()
    except psutil.NoSuchProcess:
        return


def default_workers(nodes: Sequence[Mapping[str, float]], memory: int | None) -> int:
    """Return the threads of a part from the resources of all nodes; `memory`: of a part, if it was given."""
    largest = max(nodes, key=lambda node: node.get("CPU", 0), default={})
    cpus = int(largest.get("CPU", 0))
    half = max(1, min(_THREADS, cpus // 2))
    two_fit = 2 * ((memory or default_memory(half)) + _RELAY) <= largest.get("memory", 0)
    return half if two_fit else max(1, min(_THREADS, cpus))


def _check_listening(address: str) -> None:
    """Raise OSError if nobody listens there; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), _ANSWER).close()


class RayExecutor(Executor):
    """Runs as many parts at a time as the cluster has CPUs and memory for."""

    def __init__(
        self, out: str, memory: int | None = None, workers: int | None = None, ray_address: str | None = None
    ) -> None:
        super().__init__(out, memory, workers)
        self._address = ray_address
        self._ray: Any = needs("ray", "ray", "the executor `ray`")
        self._joined = False
        self._task: Any = None
        self._tasks: dict[int, Any] = {}
        self._where: dict[int, list[Any]] = {}
        self._slots_counted = 0.0
        self._slots = 0

    def open(self) -> None:
        """Join the cluster, and ask each of its nodes whether it sees the output folder."""
        if self._task is not None:
            return
        if not self._ray.is_initialized():
            self._join()
        self._workers = self._workers or default_workers([node["Resources"] for node in self._nodes()], self._memory)
        self._memory = self._memory or default_memory(self._workers)
        if self.room() < 1:
            raise UsageError(
                f"no node of the cluster has {self._workers} CPUs and {show_bytes(self._memory + _RELAY)} of memory",
                hint="`--workers` and `--memory` say what a part takes",
            )
        self._ask_nodes()
        self._task = self._ray.remote(
            num_cpus=self._workers, memory=self._memory + _RELAY, max_retries=0, num_returns="streaming"
        )(_relay)

    def _join(self) -> None:
        address = self._address or os.environ.get("RAY_ADDRESS") or "auto"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_listening(address)
            self._ray.init(
                address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as why:
            raise UsageError(
                f"no Ray cluster answers at {address}" if address != "auto" else "no Ray cluster was found",
                place=str(why).splitlines()[0],
                hint="start one (`ray start --head`), and name it: `--ray-address HOST:6379`",
            ) from None
        finally:
            if handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
                signal.signal(signal.SIGTERM, handler)  # Ray has replaced ours
        self._joined = True

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _fitting(self, node: dict[str, Any]) -> int:
        """Return how many parts fit on a node."""
        assert self._workers is not None and self._memory is not None
        resources = node["Resources"]
        by_memory = resources.get("memory", 0) // (self._memory + _RELAY)
        return int(min(resources.get("CPU", 0) // self._workers, by_memory))

    def _ask_nodes(self) -> None:
        self._mark = Mark.leave(self._out)
        # One task for each part that fits: Ray starts its workers at the same time, not one after another.
        asked = {
            self._on(node["NodeID"], _get_ready).remote(*self._settings()): node["NodeManagerAddress"]
            for node in self._nodes()
            for _ in range(self._fitting(node))
        }
        answered, silent = self._ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE)
        for answer in answered:
            try:
                problem = self._ray.get(answer)
            except self._ray.exceptions.RayTaskError as why:
                problem = f"it cannot run shardmill: {why.cause or why}"
            except self._ray.exceptions.RayError:
                continue  # the node is gone; Ray will not send parts there
            if problem:
                raise UsageError(
                    f"the node {asked[answer]} cannot make parts: {problem}",
                    hint="sources and output have to be on a shared folder, or in a store (s3://, gs://, az://), "
                    "and every node needs the same release of shardmill",
                )
        for node in {asked[answer] for answer in silent}:
            _log.warning("the node %s does not answer", node)

    def _on(self, node: str, function: Any) -> Any:
        """Return a task that runs on this node, even if it is busy."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=where)(function)

    def room(self) -> int:
        if time.monotonic() > self._slots_counted + _NODES_KEPT:
            self._slots = sum(map(self._fitting, self._nodes()))
            self._slots_counted = time.monotonic()
        return _SUBMITTED * self._slots - len(self._tasks)

    def start(self, copy: int, task: Task) -> None:
        self._tasks[copy] = self._task.remote(task, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        """What a node needs to make parts."""
        return self._mark, self._memory, self._workers, os.getcwd()

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        if not self._tasks:
            time.sleep(seconds)
            return
        tasks = list(self._tasks.values())
        # Not longer: Ray looks for signals once a second, and Ctrl-C must end within two.
        if not self._ray.wait(tasks, timeout=min(seconds, 0.25))[0]:
            return
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for copy, task in list(self._tasks.items()):
            if task in ready:
                report = self._next(copy, task)
                if report.last:
                    del self._tasks[copy]
                    self._where.pop(copy, None)
                yield copy, report

    def _next(self, copy: int, task: Any) -> PartReport:
        """Return the next report of a task; the first thing a task yields is where it runs."""
        known = self._ray.exceptions
        try:
            item = self._ray.get(next(task))
        except StopIteration:
            return PartReport("lost", why="its task ended without a report")
        except known.RayTaskError as why:
            return PartReport("failed", error=ShardmillError(f"the task of a part failed: {why.cause or why}"))
        except known.RayError as why:
            return PartReport("lost", why=str(why).splitlines()[0])
        if isinstance(item, str):
            return PartReport.read(item)
        *self._where[copy], name = item
        return PartReport("running", name)

    def stop(self, copy: int) -> None:
        self._ray.cancel(self._tasks.pop(copy), force=False)
        if copy in self._where:
            node, process = self._where.pop(copy)
            self._on(node, _end_frozen).remote(process)

    def close(self) -> None:
        self._task = None
        if self._joined:
            self._joined, self._tasks, self._where = False, {}, {}
            self._ray.shutdown()  # ends this driver's tasks; the processes of their parts record what is done
            return
        for copy in list(self._tasks):
            self.stop(copy)
