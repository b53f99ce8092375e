"""Makes parts as tasks of a Ray cluster.

A task runs a process that makes the part. All tasks are submitted at once with the CPUs and the memory that they need,
so that an autoscaler sees the demand. Their arguments are a place and a number, never data. Ray runs a task again if
its worker or its node is lost. It does not notice one that only stands, so tasks tell the driver how far they are, on
a board: an actor beside the driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill import __version__
from shardmill.cluster.executors import Executor, PartReport
from shardmill.cluster.part_process import PartProcess
from shardmill.errors import ShardmillError, UsageError
from shardmill.extras import needs
from shardmill.run import default_memory
from shardmill.units import show_bytes

_log = logging.getLogger(__name__)
# Threads of a part by default, at most: a node of 64 CPUs runs 16 parts, and a lost one costs little. A smaller node
# runs two parts with half of the threads each, since a part waits for the disk when it begins and ends.
_THREADS = 4
_TASK = 150_000_000  # bytes that the task's own process takes beside the part's; up to 110 MB were seen
_ANSWER = 10.0  # seconds for the head of a cluster, or the board, to answer at all
_EVERY = 1.5  # seconds between two reports of a part: a thousand parts must not keep the driver busy
_RETRIES = 9  # how often Ray runs a task again whose worker or node was lost
_WATCHED = 2_000  # tasks for whose end the driver waits at a time, the oldest first
_HINT = (
    "sources and output have to be on a shared folder, or in a store (s3://, gs://, az://), and every node needs the "
    "same release of shardmill"
)


class Board:
    """The newest report of each part that is being made, until the driver reads it."""

    def __init__(self) -> None:
        self._news: dict[tuple[int, int, bool], str] = {}

    def put(self, number: int, attempt: int, line: str, starts: bool) -> None:
        """Store a report in place of an earlier one. That a process `starts` is kept beside it."""
        self._news[number, attempt, starts] = line

    def take(self) -> list[tuple[tuple[int, int, bool], str]]:
        """Return what is new."""
        news, self._news = self._news, {}
        return list(news.items())


@dataclass(frozen=True)
class NodeOrder:
    """What a node needs to make parts."""

    out: str
    plan: str
    """The id of the plan there: a node that has another one does not see the driver's folder."""
    memory: int
    workers: int
    folder: str
    version: str = __version__

    def problem(self) -> str:
        """Return what keeps this machine from making parts, or an empty string."""
        from shardmill.cluster.planning import find_part_plan

        if self.version != __version__:
            return f"it has shardmill {__version__}, and the driver has {self.version}"
        try:
            plan = find_part_plan(self.out)
        except (OSError, ShardmillError) as why:
            return f"it cannot read {self.out}: {why}"
        return "" if plan is not None and plan.id == self.plan else f"its {self.out} is not the driver's"


_idle: dict[NodeOrder, PartProcess] = {}
"""In a worker of Ray: the process of its last task, which can make the next part."""


def make_on_node(number: int, attempt: int, board: Any, order: NodeOrder) -> tuple[str, str]:
    """On a node: make a part. Return the node's id, and the last report, or `problem: …` if this node cannot make any.

    Cancelling the task ends the part.
    """
    import ray

    # Imported, since Ray sends a copy of this function to the node, with globals of its own.
    from shardmill.cluster.ray_executor import _idle

    context, node = ray.get_runtime_context(), str(ray.util.get_node_ip_address())
    node_id = str(context.get_node_id())
    if problem := order.problem():
        return node_id, f"problem: the node {node} cannot make parts: {problem}"
    where = json.dumps([node_id, os.getpid()])
    board.put.remote(number, attempt, PartReport("started", node, why=where).line(), True)
    process = _idle.pop(order, None)
    if process is None or not process.alive:
        process = PartProcess(order.out, order.memory, order.workers, order.folder)
    last, told = "", 0.0
    try:
        process.make(number)
        while True:
            # Wake up now and then: Ray cancels a task between two steps of Python.
            ready, _, _ = select.select([process], [], [], 0.5)
            for report in process.read(node) if ready else ():
                if report.last:
                    last = report.kind
                    return node_id, report.line()
                if time.monotonic() > told + _EVERY:
                    told = time.monotonic()
                    board.put.remote(number, attempt, report.line(), False)
    finally:
        if last == "done":
            _idle[order] = process
        else:
            process.end()


def end_frozen(process: int) -> None:
    """On a node: kill a worker that is stopped by a signal. Ray cannot cancel its task, and it keeps its CPUs."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        worker = psutil.Process(process)
        # Only a worker of this node's Ray, not a newer process with the same id.
        if worker.ppid() == os.getppid() and worker.status() == psutil.STATUS_STOPPED:
            worker.kill()


def default_workers(nodes: Sequence[Mapping[str, float]], memory: int | None) -> int:
    """Return the threads of a part from the resources of all nodes; `memory`: of a part, if it was given."""
    largest = max(nodes, key=lambda node: node.get("CPU", 0), default={})
    cpus = int(largest.get("CPU", 0))
    half = max(1, min(_THREADS, cpus // 2))
    two_fit = 2 * ((memory or default_memory(half)) + _TASK) <= largest.get("memory", 0)
    return half if two_fit else max(1, min(_THREADS, cpus))


def parse_resources(text: str | None) -> dict[str, float]:
    """Return what `--ray-resources` says. Raise UsageError if it is not an object of numbers."""
    try:
        found = json.loads(text or "{}")
        return {str(name): float(amount) for name, amount in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise UsageError(
            f"`--ray-resources {text}`: not a JSON object", hint="""for example: '{"label": 1}'"""
        ) from None


def _check_listening(address: str) -> None:
    """Raise OSError if nobody listens there; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), _ANSWER).close()


class RayExecutor(Executor):
    """Submits all parts as tasks, and reads their reports."""

    def __init__(
        self,
        out: str,
        memory: int | None = None,
        workers: int | None = None,
        ray_address: str | None = None,
        ray_resources: str | None = None,
    ) -> None:
        super().__init__(out, memory, workers)
        self._address, self._resources = ray_address, parse_resources(ray_resources)
        self._ray: Any = needs("ray", "ray", "the executor `ray`")
        self._joined = False
        self._tasks: dict[Any, int] = {}
        self._attempts: dict[int, int] = {}
        self._workers_of: dict[int, tuple[str, int]] = {}
        """The node and the process of the task of each part that has started."""
        self._unusable: set[str] = set()
        self._asked = 0.0

    def open(self) -> None:
        """Join the cluster. Nodes are not asked for anything: those that will make the parts may not exist yet."""
        from shardmill.cluster.planning import read_part_plan

        if not self._ray.is_initialized():
            self._join()
        self._workers = self._workers or default_workers([node["Resources"] for node in self._nodes()], self._memory)
        self._memory = self._memory or default_memory(self._workers)
        plan = read_part_plan(self._out)
        self._order = NodeOrder(self._out, plan.id, self._memory, self._workers, os.getcwd())
        self._board = self._ray.remote(num_cpus=0, max_restarts=-1)(Board).remote()
        self._task = self._define_task()
        if self.waiting():
            _log.warning("note: %s", self.waiting())

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
        return [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._unusable]

    def _needs(self) -> dict[str, float]:
        assert self._workers is not None and self._memory is not None
        return {"CPU": self._workers, "memory": self._memory + _TASK, **self._resources}

    def waiting(self) -> str:
        needed = self._needs()
        if any(all(node["Resources"].get(name, 0) >= need for name, need in needed.items()) for node in self._nodes()):
            return ""
        more = "".join(f", {amount:g} {name}" for name, amount in self._resources.items())
        return (
            f"no node of the cluster has {self._workers} CPUs and {show_bytes(int(needed['memory']))} of memory{more}: "
            "waiting for one"
        )

    def submit(self, number: int) -> None:
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        self._tasks[self._task.remote(number, attempt, self._board, self._order)] = number

    def _define_task(self) -> Any:
        """Return the task with what it needs, for all nodes but those that cannot make parts."""
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where: dict[str, Any] = {}
        if self._unusable:
            elsewhere = {"ray.io/node-id": NotIn(*sorted(self._unusable))}
            where["scheduling_strategy"] = NodeLabelSchedulingStrategy(elsewhere)
        memory = self._needs()["memory"]
        return self._ray.remote(
            num_cpus=self._workers, memory=memory, resources=self._resources, max_retries=_RETRIES, **where
        )(make_on_node)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        yield from self._news()
        if not self._tasks:
            time.sleep(seconds)
            return
        tasks = list(self._tasks)[:_WATCHED]
        # Not longer: Ray looks for signals once a second, and Ctrl-C must end within two.
        if not self._ray.wait(tasks, timeout=min(seconds, 0.25))[0]:
            return
        ended, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        yield from self._news()  # a part has started before it ends
        for task in ended:
            number = self._tasks.pop(task)
            self._workers_of.pop(number, None)
            if report := self._result(number, task):
                yield number, report

    def _news(self) -> Iterable[tuple[int, PartReport]]:
        """Yield what is new on the board, at most once a second."""
        if time.monotonic() < self._asked + 1.0:
            return
        self._asked, known = time.monotonic(), self._ray.exceptions
        try:
            news = self._ray.get(self._board.take.remote(), timeout=_ANSWER)
        except (known.RayActorError, known.GetTimeoutError):
            return  # it is being started again: the reports come later
        for (number, attempt, starts), line in news:
            if self._attempts.get(number) == attempt:
                report = PartReport.read(line)
                if starts:
                    self._workers_of[number] = tuple(json.loads(report.why))
                yield number, report

    def _result(self, number: int, task: Any) -> PartReport | None:
        """Return the last report of a part; None: its node cannot make parts, and others get it."""
        known = self._ray.exceptions
        try:
            node, line = self._ray.get(task)
        except known.RayTaskError as why:
            return PartReport("failed", error=ShardmillError(f"the task of a part failed: {why.cause or why}"))
        except known.RayError as why:
            return PartReport("lost", why=str(why).splitlines()[0])
        if not line.startswith("problem: "):
            return PartReport.read(line)
        problem = line.removeprefix("problem: ")
        if node not in self._unusable:
            self._unusable.add(node)
            self._task = self._define_task()
            _log.warning("warning: %s; it is not used", problem)
        if not self._nodes():
            return PartReport("failed", error=UsageError(problem, hint=_HINT))
        self.submit(number)
        return None

    def stop(self, number: int) -> None:
        for task in [task for task, made in self._tasks.items() if made == number]:
            del self._tasks[task]
            self._ray.cancel(task, force=False)
        if number in self._workers_of:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            node, process = self._workers_of.pop(number)
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(end_frozen).remote(process)

    def close(self) -> None:
        tasks, self._tasks, self._workers_of = list(self._tasks), {}, {}
        if self._joined:
            self._joined = False
            self._ray.shutdown()  # ends this driver's tasks; the processes of their parts record what is done
            return
        for task in tasks:
            self._ray.cancel(task, force=False)
