"""Transient errors are retried a bounded number of times, for a bounded time, with growing pauses."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

from shardmill.errors import SourceError
from shardmill.storage.source import Source, changed

T = TypeVar("T")

STOP_CHECK = 0.5
"""Seconds after which a waiting thread checks whether the run has ended."""


class Transient(Exception):
    """A request failed, and may succeed later: a time-out, too many requests, a connection that was cut."""

    def __init__(
        self, reason: str, after: float | None = None, tries: int | None = None, error: Exception | None = None
    ) -> None:
        """`after`: seconds that the server asks to wait. `tries`: maximum number of attempts, if more would not help.

        `error`: what to raise after the last attempt, instead of an error that counts the attempts.
        """
        super().__init__(reason)
        self.reason, self.after, self.tries, self.error = reason, after, tries, error


def seems_changed(source: Source) -> Transient:
    """For an answer about another version of a source: one of several servers may be behind, or a proxy mistaken."""
    return Transient("another version of the source was sent", tries=3, error=changed(source))


class Unreachable(SourceError):
    """A server could not be reached, after all retries."""


def check_running(stopped: threading.Event | None) -> None:
    """Raise SourceError when the run has ended, because then nobody waits for the answer."""
    if stopped is not None and stopped.is_set():
        raise SourceError("the run has ended")


@dataclass(frozen=True)
class Patience:
    """When to give up. Each can be set by an environment variable: SHARDMILL_TRIES, SHARDMILL_RETRY_SECONDS, …"""

    tries: int = 8
    retry_seconds: float = 300.0
    """For all attempts of one request, with the pauses between them."""
    pause: float = 0.5
    """Before the second attempt; doubled before each further one, up to `longest_pause`."""
    longest_pause: float = 30.0
    timeout: float = 20.0
    """Seconds without a byte."""

    @classmethod
    def from_environment(cls, **usual: float) -> Patience:
        """`usual`: replaces the defaults above."""
        given: dict[str, float] = dict(usual)
        for field in fields(cls):
            written = os.environ.get(f"SHARDMILL_{field.name.upper()}", "")
            if written.replace(".", "", 1).isdigit():
                given[field.name] = int(float(written)) if field.name == "tries" else float(written)
        return cls(**given)  # type: ignore[arg-type]


class Retries:
    """Counts the retries of a run, and knows what is being retried now."""

    def __init__(self) -> None:
        self.count = 0
        self._now: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, words: str, wait: float) -> None:
        with self._lock:
            self.count += 1
            self._now[threading.get_ident()] = words, time.monotonic() + wait

    def end(self) -> None:
        with self._lock:
            self._now.pop(threading.get_ident(), None)

    def words(self) -> str:
        """Return what the progress line says; empty when nothing is being retried."""
        with self._lock:
            if not self._now:
                return ""
            words, until = next(iter(self._now.values()))
        left = until - time.monotonic()
        return f"retrying in {left:.0f} s: {words}" if left >= 1 else f"retrying: {words}"


def _unreachable(trouble: Transient, tries: int, place: str) -> Exception:
    asked = f"; the server asks to wait {trouble.after:,.0f} s" if trouble.after else ""
    counted = f"{tries} attempt{'s' if tries != 1 else ''}{asked}"
    return Unreachable(
        f"cannot read the source: {trouble.reason} ({counted})",
        place=place,
        hint="run the same command again when the server is reachable; SHARDMILL_TRIES sets the number of attempts",
    )


def patiently(
    call: Callable[[float], T],
    place: str,
    patience: Patience,
    retries: Retries,
    stopped: threading.Event,
    failed: Callable[[Transient, int, str], Exception] = _unreachable,
) -> T:
    """Return what `call(deadline)` returns, retried while it raises Transient.

    After the last attempt, raise the exception that `failed` returns. Raise SourceError if the run has ended meanwhile.
    """
    deadline = time.monotonic() + patience.retry_seconds
    number = 1
    try:
        while True:
            check_running(stopped)
            try:
                return call(deadline)
            except Transient as trouble:
                # Up to half of it is random: a thousand clients that failed together must not return together.
                pause = min(patience.longest_pause, patience.pause * 2 ** (number - 1)) * random.uniform(0.5, 1.0)
                wait = max(pause, trouble.after or 0.0)
                left = deadline - time.monotonic()
                tries = min(patience.tries, trouble.tries or patience.tries)
                if number >= tries or wait > left:
                    raise (trouble.error or failed(trouble, number, place)) from None
                number += 1
                retries.begin(f"{trouble.reason}, attempt {number} of {tries}", wait)
            stopped.wait(wait)
    finally:
        retries.end()
