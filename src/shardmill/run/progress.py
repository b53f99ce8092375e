"""Signs of life while a run goes on: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from shardmill.units import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from shardmill.run.budget import Budget

_EVERY = 5.0  # seconds between plain lines
_WINDOW = 20.0  # seconds over which speed is measured
_SILENT = 10.0  # seconds without a result after which that is worth a word


@dataclass(frozen=True)
class Done:
    """How far a run has come."""

    bytes: int = 0
    """Of the sources, as they are stored."""
    documents: int = 0
    tokens: int = 0
    rejected: int = 0


class Progress:
    """Base class; prints nothing."""

    trouble: Callable[[], str] = staticmethod(lambda: "")
    """Words about what is being retried or waited for just now; empty when all is well."""

    def begin(self, total: int | None, done: Done, budget: Budget) -> None:
        """`total`: bytes of all sources; None when that is unknown."""

    def update(self, done: Done) -> None:
        """The newest state; called after every result."""

    def end(self) -> None:
        """Nothing more comes."""


class _Meter:
    """Turns states into words."""

    def __init__(self, total: int | None, done: Done, budget: Budget, trouble: Callable[[], str]) -> None:
        self._trouble = trouble
        self.total, self.done, self._budget = total, done, budget
        self._past = [(time.monotonic(), done)]
        self._updated = time.monotonic()

    def update(self, done: Done) -> None:
        now = self._updated = time.monotonic()
        if now - self._past[-1][0] >= 0.5:
            self._past.append((now, done))
            while self._past[0][0] < now - _WINDOW:
                del self._past[0]
        self.done = done

    @property
    def share(self) -> float:
        return min(1.0, self.done.bytes / self.total) if self.total else 0.0

    def words(self) -> str:
        then, before = self._past[0]
        seconds = max(time.monotonic() - then, 1e-3)
        speed = (self.done.bytes - before.bytes) / seconds
        parts = [
            show_bytes(self.done.bytes) + (f" of {show_bytes(self.total)}" if self.total is not None else ""),
            f"{self.done.documents:,} documents",
            f"{show_count(self.done.tokens)} tokens",
            f"{show_bytes(speed)}/s",
            f"{show_count((self.done.tokens - before.tokens) / seconds)} tokens/s",
            f"memory {show_bytes(self._budget.sample())} of {show_bytes(self._budget.memory)}",
        ]
        if self.done.rejected:
            parts.append(f"{self.done.rejected:,} rejected")
        if self.total is not None and speed > 0:
            parts.append(f"{show_seconds((self.total - self.done.bytes) / speed)} left")
        silent = time.monotonic() - self._updated
        if trouble := self._trouble() or (f"nothing new for {show_seconds(silent)}" if silent > _SILENT else ""):
            parts.append(trouble)
        return " · ".join(parts)


class Lines(Progress):
    """A plain line every few seconds, also when nothing comes in: a sign of life."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, total: int | None, done: Done, budget: Budget) -> None:
        self._meter = _Meter(total, done, budget, self.trouble)
        self._thread = threading.Thread(target=self._tell, name="shardmill-progress", daemon=True)
        self._thread.start()

    def update(self, done: Done) -> None:
        self._meter.update(done)

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(1.0)  # not for ever: it may be waiting for whoever reads what it prints

    def _tell(self) -> None:
        while not self._over.wait(_EVERY):
            share = f"{self._meter.share:4.0%}  " if self._meter.total else ""
            try:
                print(f"{share}{self._meter.words()}", file=self._stream, flush=True)
            except OSError:  # nobody reads it any more
                return


class Bar(Progress):
    """A bar and the figures below it, on a terminal."""

    def begin(self, total: int | None, done: Done, budget: Budget) -> None:
        from rich.console import Console
        from rich.live import Live

        self._meter = _Meter(total, done, budget, self.trouble)
        self._live = Live(console=Console(stderr=True), get_renderable=self._show, refresh_per_second=4, transient=True)
        self._live.start()

    def update(self, done: Done) -> None:
        self._meter.update(done)

    def end(self) -> None:
        if hasattr(self, "_live"):
            self._live.stop()

    def _show(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # A table, because a bar alone does not end its line.
        lines = Table.grid()
        if self._meter.total:
            lines.add_row(ProgressBar(total=1.0, completed=self._meter.share, width=60))
        lines.add_row(Text(self._meter.words()))
        return lines


def choose_progress(quiet: bool) -> Progress:
    """A bar where somebody looks, lines where nobody does, nothing when that is wanted."""
    if quiet or sys.stderr is None:  # None: it was closed before this process began
        return Progress()
    return Bar() if sys.stderr.isatty() else Lines()
