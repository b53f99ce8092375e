"""The threads of a run: a feeder, the workers, and a consumer who gets their results in the order of the plan.

The feeder takes a lease for every task before it is worked on, in plan order: the consumer waits for the oldest task,
and a young one that held the last bytes would make it wait for ever. A lease shrinks to what the result takes, and ends
when the result has been consumed, so a slow disk holds up the feeder and nothing piles up. Every wait looks now and
then whether it still makes sense.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardmill.documents.tiny_files import Bunch
from shardmill.errors import Interrupted
from shardmill.run.worker import Entry, Milled, Worker

if TYPE_CHECKING:
    from types import TracebackType

    from shardmill.documents.chunks import Chunk
    from shardmill.run.worker import Milling

_TICK = 0.5  # seconds
# Seconds that the end of a run waits for its threads, and those for one who has pressed Ctrl-C. Work on a chunk takes a
# second at the most, but a read from a pipe or a broken disk may take for ever.
_PATIENCE, _PATIENCE_INTERRUPTED = 10.0, 0.5
_TOGETHER = 2048  # small chunks in one task, at the most


Singles = Callable[[Bunch], Iterable[Entry]]


@dataclass
class _Task:
    entries: list[Entry]
    lease: int
    bunch: Bunch | None = None
    future: Future[Milled | None] | None = None
    """None: a long stretch, which the consumer's own thread works on when its turn comes."""


class Pipeline:
    """Use it as a context: leaving it ends all threads, whatever happened, but for one that waits for the system."""

    def __init__(self, milling: Milling) -> None:
        self._milling, self._budget = milling, milling.budget
        self._tasks: queue.Queue[_Task | BaseException | None] = queue.Queue(4 * self._budget.workers + 8)
        self._stopped = threading.Event()
        self._local = threading.local()
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(self._budget.workers, "shardmill-worker")
        self._feeder: threading.Thread | None = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._budget.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + (_PATIENCE_INTERRUPTED if kind is Interrupted else _PATIENCE)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def run(self, entries: Iterable[Entry | Bunch], own: Worker, singles: Singles) -> Iterator[Milled]:
        """The results for `entries`, in their order; `own` does what only this thread may do.

        `singles` gives the ordinary entries of a bunch, for one that cannot be read as such.
        """
        self._feeder = threading.Thread(target=self._feed, args=(entries,), name="shardmill-feeder", daemon=True)
        self._threads.append(self._feeder)
        self._feeder.start()
        while (task := self._next()) is not None:
            milled = self._result(task.future) if task.future is not None else None
            if milled is not None:
                yield milled
            elif task.bunch is not None:
                yield from self._one_by_one(task, own, singles)
            else:
                yield from own.mill_long(task.entries[0])
            self._budget.release(task.lease)

    def _one_by_one(self, task: _Task, own: Worker, singles: Singles) -> Iterator[Milled]:
        """The sources of a bunch by the ordinary way, in this thread: a file may hold far more text than its lease."""
        assert task.bunch is not None
        for part in self._grouped(singles(task.bunch)):
            # Waiting for a larger lease could be for ever, since those who hold the rest wait for this one.
            self._budget.release(min(0, task.lease - part.lease))
            task.lease = max(task.lease, part.lease)
            if _long(part.entries):
                yield from own.mill_long(part.entries[0])
            else:
                yield own.mill(part.entries)

    def _next(self) -> _Task | None:
        while True:
            try:
                task = self._tasks.get(timeout=_TICK)
            except queue.Empty:
                if self._feeder is not None and not self._feeder.is_alive() and self._tasks.empty():
                    raise RuntimeError("the feeder has ended without a word") from None
                continue
            if isinstance(task, BaseException):
                raise task
            return task

    def _result(self, future: Future[Milled | None]) -> Milled | None:
        # Not `future.result(timeout)`: that time is up and that the work itself has raised a TimeoutError look alike.
        while not wait_for([future], timeout=_TICK).done:
            pass
        return future.result()

    def _feed(self, entries: Iterable[Entry | Bunch]) -> None:
        try:
            for task in self._grouped(entries):
                if not self._budget.lease(task.lease):
                    return
                if task.future is None and not _long(task.entries):
                    task.future = self._pool.submit(self._work, task)
                if not self._put(task):
                    return
            self._put(None)
        except BaseException as why:  # noqa: BLE001 - handed to the consumer, who raises it
            self._put(why)

    def _put(self, task: _Task | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._tasks.put(task, timeout=_TICK)
            except queue.Full:
                continue
            return True
        return False

    def _grouped(self, entries: Iterable[Entry | Bunch]) -> Iterator[_Task]:
        """Small chunks together, so that a thousand files of a kilobyte are one task."""
        group: list[Entry] = []
        cost = 0
        for entry in entries:
            if self._stopped.is_set():
                return
            if isinstance(entry, Bunch):
                if group:
                    yield _Task(group, self._budget.lease_for(cost))
                    group, cost = [], 0
                # Not for its text alone: should it have to be read one by one, that takes chunks of any size.
                yield _Task([], self._budget.lease_for(self._budget.chunk_bytes), entry)
                continue
            chunk = entry.chunk
            alone = chunk is not None and (chunk.long or not (chunk.begins and chunk.ends))
            if group and (
                alone or cost + (chunk.cost if chunk else 0) > self._budget.chunk_bytes or len(group) >= _TOGETHER
            ):
                yield _Task(group, self._budget.lease_for(cost))
                group, cost = [], 0
            group.append(entry)
            cost += 0 if chunk is None else self._budget.chunk_bytes if chunk.long else chunk.cost
            if alone:
                yield _Task(group, self._budget.lease_for(cost))
                group, cost = [], 0
        if group:
            yield _Task(group, self._budget.lease_for(cost))

    def _work(self, task: _Task) -> Milled | None:
        worker = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = Worker(self._milling)
            self._threads.append(threading.current_thread())
        milled: Milled | None = worker.mill_bunch(task.bunch) if task.bunch else worker.mill(task.entries)
        if milled is not None and not self._milling.limited:
            milled.entries = task.entries = [_without_payload(entry) for entry in task.entries]
            # A result with many rejects may be larger than its lease: the feeder then waits the longer.
            needed = milled.size
            self._budget.release(task.lease - needed)
            task.lease = needed
        return milled


def _long(entries: list[Entry]) -> bool:
    return bool(entries) and entries[0].chunk is not None and entries[0].chunk.long


def _without_payload(entry: Entry) -> Entry:
    chunk: Chunk | None = entry.chunk
    if chunk is None or chunk.payload is None:
        return entry
    return Entry(entry.reader, entry.source, chunk._replace(payload=None))
