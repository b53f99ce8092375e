"""Threads that make requests, so that nobody waits longer for one than it may take.

Libraries may wait for ever: for the head of an answer that comes byte by byte, or for a list of which every page
promises another one. So such calls are made by a few daemon threads, and whoever waits for a result checks the time,
and whether the run has ended. No other code limits the time of a call that is under way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from shardmill.storage.retrying import STOP_CHECK, Unreachable, check_running

T = TypeVar("T")

_IDLE_SECONDS = 30.0  # after which a thread ends


class Fetch(Future[T]):
    """The result of a call that one of the threads makes."""

    def __init__(self, place: str, seconds: float) -> None:
        """`place`: what is fetched. `seconds`: how long the call may take."""
        super().__init__()
        self.place, self.seconds = place, seconds
        self.begun = 0.0
        """When a thread began with it."""


class RequestPool:
    """A few threads, started as they are needed. After `stop` all waits end."""

    def __init__(self, threads: int, at_end: Callable[[], object] = lambda: None) -> None:
        """`at_end`: called when it was stopped and the last thread is done."""
        self.stopped = threading.Event()
        self._most, self._at_end = threads, at_end
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
            if not self._threads:
                self._at_end()

    def submit(self, call: Callable[[], T], place: str, seconds: float, urgent: bool = False) -> Fetch[T]:
        """Let a thread make a call, which may take so long. `urgent`: before calls that wait."""
        fetch: Fetch[T] = Fetch(place, seconds)
        with self._changed:
            self._waiting.insert(0 if urgent else len(self._waiting), (fetch, call))
            if self._idle < len(self._waiting) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="shardmill-fetcher", daemon=True).start()
            self._changed.notify()
        return fetch

    def wait(self, fetch: Fetch[T]) -> T:
        """Return the result of a fetch or raise its error; raise Unreachable when it takes too long."""
        asked = time.monotonic()
        while not wait_for([fetch], STOP_CHECK).done:
            check_running(self.stopped)
            # If all threads hang, it never begins.
            if time.monotonic() > max(asked, fetch.begun) + fetch.seconds:
                message = f"cannot read the source: no complete answer for {fetch.seconds:,.0f} s"
                raise Unreachable(message, place=fetch.place, hint="run the same command again when the server is well")
        return fetch.result()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            fetch, call = taken
            if fetch.set_running_or_notify_cancel():
                fetch.begun = time.monotonic()
                try:
                    fetch.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    fetch.set_exception(error)
            del taken, fetch, call  # or this thread would keep its bytes in memory

    def _next(self) -> tuple[Fetch[Any], Callable[[], Any]] | None:
        """The next call; None: the thread shall end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self.stopped.is_set(), _IDLE_SECONDS)
            self._idle -= 1
            if self._waiting and not self.stopped.is_set():
                return self._waiting.popleft()
            self._threads -= 1
            if self.stopped.is_set() and not self._threads:
                self._at_end()
            return None
