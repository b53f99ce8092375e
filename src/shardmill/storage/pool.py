"""Threads that make requests, so that nobody waits longer for one than it may take.

Libraries may wait for ever: for the head of an answer that comes byte by byte, say. So every request is made by one of
a few daemon threads, and whoever waits for its result checks the time, and whether the run has ended.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from shardmill.storage.retrying import STOP_CHECK, Unreachable, check_running

T = TypeVar("T")


class Fetch(Future[T]):
    """The result of a call that one of the threads makes."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long the call may take."""
        super().__init__()
        self.seconds, self.until = seconds, math.inf
        """`until`: when it has to be done; known when a thread has begun with it."""


class RequestPool:
    """A few threads, started as they are needed. After `stop` all waits end."""

    def __init__(self, threads: int, seconds: float, at_end: Callable[[], object]) -> None:
        """`seconds`: for a single request. `at_end`: called when it was stopped and the last thread is done."""
        self.stopped = threading.Event()
        self._most, self._seconds, self._at_end = threads, seconds, at_end
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Fetch[Any], Callable[[], Any]]] = deque()
        self._threads = self._idle = 0

    def stop(self) -> None:
        with self._changed:
            if self.stopped.is_set():
                return
            self.stopped.set()
            self._waiting.clear()
            self._changed.notify_all()
            unused = not self._threads
        if unused:
            self._at_end()

    def submit(self, call: Callable[[], T], urgent: bool = False, requests: float = math.inf) -> Fetch[T]:
        """Let a thread make a call. `urgent`: before waiting calls. `requests`: the number it makes in sequence."""
        fetch: Fetch[T] = Fetch(requests * self._seconds)
        with self._changed:
            self._waiting.insert(0 if urgent else len(self._waiting), (fetch, call))
            if not self._idle and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="shardmill-fetcher", daemon=True).start()
            self._changed.notify_all()
        return fetch

    def wait(self, fetch: Fetch[T], place: str) -> T:
        """Return the result of a fetch or raise its error; raise Unreachable when it takes too long."""
        until = time.monotonic() + fetch.seconds  # if all threads are busy for so long
        while not wait_for([fetch], STOP_CHECK).done:
            check_running(self.stopped)
            if time.monotonic() > (fetch.until if fetch.until < math.inf else until):
                message = f"cannot read the source: no complete answer for {fetch.seconds:,.0f} s"
                raise Unreachable(message, place=place, hint="run the same command again when the server is well")
        return fetch.result()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            fetch, call = taken
            if fetch.set_running_or_notify_cancel():
                try:
                    fetch.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    fetch.set_exception(error)
            del taken, fetch, call  # or this thread would keep its bytes in memory
        with self._changed:
            self._threads -= 1
            last = not self._threads
        if last:
            self._at_end()

    def _next(self) -> tuple[Fetch[Any], Callable[[], Any]] | None:
        """The next call; None: the pool was stopped."""
        with self._changed:
            self._idle += 1
            while not self._waiting and not self.stopped.is_set():
                self._changed.wait(STOP_CHECK)
            self._idle -= 1
            if self.stopped.is_set():
                return None
            fetch, call = self._waiting.popleft()
            fetch.until = time.monotonic() + fetch.seconds
            return fetch, call
