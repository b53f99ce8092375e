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
from shardmill.storage.source import Source, changed_error

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
    return Transient("another version of the source was sent", tries=3, error=changed_error(source))


class Unreachable(SourceError):
    """A server could not be reached, after all retries."""


def check_running(stopped: threading.Event | None) -> None:
    """Raise SourceError when the run has ended, because then nobody waits for the answer."""
    if stopped is not None and stopped.is_set():
        raise SourceError("the run has ended")


@dataclass(frozen=True)
class RetryPolicy:
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
    def from_environment(cls, **defaults: float) -> RetryPolicy:
        """`defaults`: instead of those above."""
        values: dict[str, float] = dict(defaults)
        for field in fields(cls):
            written = os.environ.get(f"SHARDMILL_{field.name.upper()}", "")
            if written.replace(".", "", 1).isdigit():
                values[field.name] = int(float(written)) if field.name == "tries" else float(written)
        return cls(**values)  # type: ignore[arg-type]


class Retries:
    """Counts the retries of a run, and knows what is being retried now."""

    def __init__(self) -> None:
        self.count = 0
        self._now: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, reason: str, delay: float) -> None:
        with self._lock:
            self.count += 1
            self._now[threading.get_ident()] = reason, time.monotonic() + delay

    def end(self) -> None:
        with self._lock:
            self._now.pop(threading.get_ident(), None)

    def status(self) -> str:
        """Return a message for the progress line; empty when nothing is being retried."""
        with self._lock:
            if not self._now:
                return ""
            reason, until = next(iter(self._now.values()))
        left = until - time.monotonic()
        return f"retrying in {left:.0f} s: {reason}" if left >= 1 else f"retrying: {reason}"


def _unreachable(error: Transient, tries: int, place: str) -> Exception:
    asked = f"; the server asks to wait {error.after:,.0f} s" if error.after else ""
    counted = f"{tries} attempt{'s' if tries != 1 else ''}{asked}"
    return Unreachable(
        f"cannot read the source: {error.reason} ({counted})",
        place=place,
        hint="run the same command again when the server is reachable; SHARDMILL_TRIES sets the number of attempts",
    )


def retry(
    call: Callable[[], T],
    place: str,
    policy: RetryPolicy,
    retries: Retries,
    stopped: threading.Event,
    failed: Callable[[Transient, int, str], Exception] = _unreachable,
) -> T:
    """Return what a call returns, retried while it raises Transient.

    After the last attempt, raise the exception that `failed` returns. Raise SourceError if the run has ended meanwhile.
    """
    deadline = time.monotonic() + policy.retry_seconds
    attempt = 1
    try:
        while True:
            check_running(stopped)
            try:
                return call()
            except Transient as error:
                # Up to half of it is random: a thousand clients that failed together must not return together.
                pause = min(policy.longest_pause, policy.pause * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
                wait = max(pause, error.after or 0.0)
                left = deadline - time.monotonic()
                tries = min(policy.tries, error.tries or policy.tries)
                if attempt >= tries or wait > left:
                    raise (error.error or failed(error, attempt, place)) from None
                attempt += 1
                retries.begin(f"{error.reason}, attempt {attempt} of {tries}", wait)
            stopped.wait(wait)
    finally:
        retries.end()
