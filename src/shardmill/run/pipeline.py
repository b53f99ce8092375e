"""The threads of a run: a feeder, the workers, and a consumer that gets their results in the order of the plan.

The feeder takes a lease for every task before it is worked on, in plan order: the consumer waits for the oldest task,
and if a younger one held the last bytes, it would wait for ever. A lease shrinks to the size of the result, and
ends when the result has been consumed, so a slow disk slows down the feeder and no queue grows. Every wait has a
timeout, after which it checks whether the run has been stopped.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardmill.documents import DONE
from shardmill.errors import Interrupted
from shardmill.run.budget import set_thread_budget
from shardmill.run.encoded_chunks import EncodedChunks, Entry
from shardmill.run.worker import encode, encode_long

if TYPE_CHECKING:
    from types import TracebackType

    from shardmill.run.encoded_text import EncodedText

_TICK = 0.5  # seconds
# Seconds that the end of a run, or of an interrupted run, waits for its threads. Work on a chunk takes at most a
# second, but a read from a pipe or a broken disk may block for ever.
_JOIN, _JOIN_INTERRUPTED = 10.0, 0.5
_TOGETHER = 2048  # the most small chunks in one task, or whole sources in them


@dataclass
class _Task:
    lease: int
    entries: list[Entry] = field(default_factory=list)
    sources: int = 0
    future: Future[EncodedChunks] | None = None
    """None: a long stretch, which the consumer's own thread encodes when its turn comes."""


class Pipeline:
    """Use it as a context: leaving it ends all threads, whatever happened, except one that a system call blocks."""

    def __init__(self, text: EncodedText) -> None:
        self._text, self._budget = text, text.budget
        self._tasks: queue.Queue[_Task | BaseException | None] = queue.Queue(4 * self._budget.workers + 8)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(
            self._budget.workers, "shardmill-worker", lambda: self._threads.append(threading.current_thread())
        )
        self._feeder: threading.Thread | None = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._budget.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + (_JOIN_INTERRUPTED if kind in (Interrupted, KeyboardInterrupt) else _JOIN)
        for thread in self._threads:
            # A signal may come while the feeder is being started; then there is nothing to join.
            with contextlib.suppress(RuntimeError):
                thread.join(max(0.0, until - time.monotonic()))
        # The engines have filled caches, which the next run of this process may use.
        if kind is not None:
            self._text.engines.clear()

    def run(self, entries: Iterable[Entry]) -> Iterator[EncodedChunks]:
        """The results for `entries`, in their order. Long stretches are encoded in this thread."""
        self._feeder = threading.Thread(target=self._feed, args=(entries,), name="shardmill-feeder", daemon=True)
        self._threads.append(self._feeder)
        self._feeder.start()
        while (task := self._next()) is not None:
            if task.future is not None:
                yield self._result(task.future)
            else:
                yield from encode_long(self._text, task.entries[0])
            self._budget.release(task.lease)

    def _next(self) -> _Task | None:
        while True:
            try:
                task = self._tasks.get(timeout=_TICK)
            except queue.Empty:
                if self._feeder is not None and not self._feeder.is_alive() and self._tasks.empty():
                    raise RuntimeError("the feeder has ended without a result") from None
                continue
            if isinstance(task, BaseException):
                raise task
            return task

    @staticmethod
    def _result(future: Future[EncodedChunks]) -> EncodedChunks:
        # Not `future.result(timeout)`: its TimeoutError could also come from the work itself.
        while not wait_for([future], timeout=_TICK).done:
            pass
        return future.result()

    def _feed(self, entries: Iterable[Entry]) -> None:
        errors: list[BaseException] = []
        set_thread_budget(self._budget)
        try:
            # Closed by this thread: an iterable of the caller is closed in the thread that iterated it.
            with contextlib.closing(_until_error(errors, entries)) as readable:
                for task in self._grouped(readable):
                    if not self._budget.lease(task.lease):
                        return
                    first = task.entries[0].chunk
                    if first is None or not first.long:
                        task.future = self._pool.submit(self._work, task)
                    if not self._put(task):
                        return
            self._put(errors[0] if errors else None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._put(error)

    def _put(self, task: _Task | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._tasks.put(task, timeout=_TICK)
            except queue.Full:
                continue
            return True
        return False

    def _grouped(self, entries: Iterable[Entry]) -> Iterator[_Task]:
        """Small chunks together, so that a thousand files of a kilobyte are one task."""
        budget = self._budget
        full, empty = budget.lease_for(budget.chunk_bytes), budget.lease_for(0)
        task = _Task(empty)
        for entry in entries:
            if self._stopped.is_set():
                return
            chunk = entry.chunk
            text, overhead = (0, 0) if chunk is None else chunk.lease
            if chunk is not None and chunk.long:
                # It is encoded with an additional engine.
                text, overhead = budget.chunk_bytes, budget.engine_bytes + chunk.lease.overhead
            alone = chunk is not None and (chunk.long or not (chunk.begins and chunk.ends))
            more = budget.lease_for(text, overhead) - empty
            if task.entries and (alone or task.lease + more > full or task.sources >= _TOGETHER):
                yield task
                task = _Task(empty)
            task.entries.append(entry)
            task.lease += more
            task.sources += 1 if chunk is None else max(1, chunk.whole)
            if alone:
                yield task
                task = _Task(empty)
        if task.entries:
            yield task

    def _work(self, task: _Task) -> EncodedChunks:
        encoded = encode(self._text, task.entries)
        if self._text.plan.options.limit is None:  # else it may have to be made again from the same entries
            encoded.entries = task.entries = [_without_work(entry) for entry in task.entries]
            # A result with many rejects may be larger than its lease: then the feeder waits longer.
            needed = encoded.size
            self._budget.release(task.lease - needed)
            task.lease = needed
        return encoded


def _until_error(errors: list[BaseException], entries: Iterable[Entry]) -> Generator[Entry]:
    """The entries before an error, which is put into the list: what comes before it is still encoded and recorded."""
    try:
        yield from entries
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
        errors.append(error)


def _without_work(entry: Entry) -> Entry:
    """The entry of a chunk that was read: its text is not held any longer."""
    return entry if entry.chunk is None else entry._replace(chunk=entry.chunk._replace(work=DONE))
