"""Progress of a run: a view on a terminal or in a notebook, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol, TextIO

from shardmill import arguments
from shardmill.units import plural, show_bytes, show_count, show_seconds

_EVERY = 5.0  # seconds between plain lines
_WINDOW = 20.0  # seconds over which speed is measured
_SILENT = 10.0  # seconds without a result after which the view says so


@dataclass(frozen=True)
class Done:
    """How far a run has come."""

    bytes: int = 0
    """Of the sources, as they are stored."""
    documents: int = 0
    tokens: int = 0
    rejected: int = 0
    source: str = ""
    """The source that is being read."""
    retries: int = 0
    """Requests that were retried."""
    parts: str = ""
    """Of a run that is made in parts: text that says how many are done, and how many are being made."""


class MemoryUse(Protocol):
    """What is held of the memory that there is: a run's budget, or the fullest node of a cluster."""

    @property
    def memory(self) -> int: ...
    def sample(self) -> int: ...


class Progress:
    """Base class; prints nothing."""

    status: Callable[[], str] = staticmethod(lambda: "")
    """Returns a message about what is being retried or waited for now; empty when there is nothing."""

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        """`total`: bytes of all sources; None when that is unknown."""

    def update(self, done: Done) -> None:
        """The newest state; called after every result."""

    def end(self) -> None:
        """The run is over."""


class Meter(Progress):
    """Keeps the latest state and describes it as text; the subclasses show it."""

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        self.total, self.done, self._budget = total, done, budget
        self._updated = time.monotonic()
        self._history = [(self._updated, done)]

    def update(self, done: Done) -> None:
        now = self._updated = time.monotonic()
        if now - self._history[-1][0] >= 0.5:
            self._history.append((now, done))
            while self._history[0][0] < now - _WINDOW:
                del self._history[0]
        self.done = done

    @property
    def share(self) -> float:
        return min(1.0, self.done.bytes / self.total) if self.total else 0.0

    @property
    def time_left(self) -> str:
        """How long it will still take, as text; empty when that is unknown."""
        speed, _ = self._speeds()
        if self.total is None or speed <= 0:
            return ""
        return f"{show_seconds(max(0, self.total - self.done.bytes) / speed)} left"

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes in use, and the limit."""
        return self._budget.sample(), self._budget.memory

    def amounts(self) -> list[str]:
        """How much is done, and how fast."""
        speed, tokens = self._speeds()
        return [
            show_bytes(self.done.bytes) + (f" of {show_bytes(self.total)}" if self.total is not None else ""),
            plural(self.done.documents, "document"),
            f"{show_count(self.done.tokens)} tokens",
            f"{show_bytes(speed)}/s",
            f"{show_count(tokens)} tokens/s",
        ]

    def events(self) -> list[str]:
        """Counts of what went wrong so far."""
        done = self.done
        parts = [f"{done.rejected:,} rejected"] if done.rejected else []
        parts += [f"{done.retries:,} retries" if done.retries > 1 else "1 retry"] if done.retries else []
        return parts

    def waiting(self) -> str:
        """What the run waits for now; empty when there is nothing."""
        silent = time.monotonic() - self._updated
        return self.status() or (f"nothing new for {show_seconds(silent)}" if silent > _SILENT else "")

    def line(self) -> str:
        """All of it in a line."""
        held, most = self.memory
        parts = [self.done.parts, *self.amounts(), f"memory {show_bytes(held)} of {show_bytes(most)}", *self.events()]
        return " · ".join(part for part in (*parts, self.time_left, self.waiting()) if part)

    def _speeds(self) -> tuple[float, float]:
        """Bytes and tokens a second, over the last seconds."""
        then, before = self._history[0]
        seconds = max(time.monotonic() - then, 1e-3)
        return (self.done.bytes - before.bytes) / seconds, (self.done.tokens - before.tokens) / seconds


class Lines(Meter):
    """A plain line every few seconds, also when nothing is new."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        super().begin(total, done, budget)
        self._stopped.clear()  # a run in parts begins twice: with its parts, and with merging them
        thread = threading.Thread(target=self._print_lines, name="shardmill-progress", daemon=True)
        thread.start()
        self._thread = thread  # not before: a signal may come while it is being started

    def end(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(1.0)  # not for ever: it may be waiting for whoever reads what it prints

    def _print_lines(self) -> None:
        while not self._stopped.wait(_EVERY):
            share = f"{self.share:4.0%}  " if self.total else ""
            try:
                print(f"{share}{self.line()}", file=self._stream, flush=True)
            except OSError:  # the reader has closed the pipe
                return


class Bar(Meter):
    """A view of a few lines, on a terminal."""

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        from rich.console import Console
        from rich.live import Live

        super().begin(total, done, budget)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._show, refresh_per_second=4, transient=True)
        self._live.start()

    def end(self) -> None:
        if hasattr(self, "_live"):
            self._live.stop()

    def _show(self) -> Any:
        return view(self, self._console.width)


def view(meter: Meter, width: int) -> Any:
    """What a terminal of this width shows: always the same lines, so that they keep their places."""
    from rich.text import Text

    # Not the last columns: a terminal shows `^C` there, and one line more would leave the first one behind.
    width = max(20, min(width - 3, 100))
    lines = Text(no_wrap=True)

    def add(style: str, *parts: str) -> None:
        lines.append(shorten(" · ".join(parts), width) + "\n", style)

    def add_bar(style: str, before: str, share: float, after: str) -> None:
        room = width - len(before) - len(after) - 2
        add(style, f"{before} {('━' * round(min(1.0, share) * room)).ljust(room, '╌')} {after}")

    if meter.total:
        add_bar("cyan", f"{meter.share:4.0%}", meter.share, meter.time_left)
    add("dim", meter.done.parts or meter.done.source or "…")
    size, documents, tokens, speed, token_speed = meter.amounts()
    narrow = (size, speed), (documents,), (tokens, token_speed)
    for row in narrow if width < 64 else ((size, speed, token_speed), (documents, tokens)):
        add("", *row)
    held, most = meter.memory
    share = held / most if most else 0.0
    add_bar("green" if share < 0.9 else "yellow", "memory", share, f"{show_bytes(held)} of {show_bytes(most)}")
    for text in (" · ".join(meter.events()), meter.waiting()):
        if text:
            add("yellow", text)
    lines.rstrip()
    return lines


def shorten(text: str, width: int) -> str:
    """A text that fits, if need be without its beginning: the end of a path is more useful."""
    from rich.cells import cell_len

    text = "".join(c if c.isprintable() else "�" for c in text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[max(1, (len(text) - width) // 2) :]
    return f"…{text}"


class Notebook(Meter):
    """A bar and figures in a cell of a notebook, updated in place."""

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        super().begin(total, done, budget)
        self._shown = 0.0
        self._cell = sys.modules["IPython"].display.display(self, display_id=True)

    def update(self, done: Done) -> None:
        super().update(done)
        if time.monotonic() - self._shown > 0.5:
            self._shown = time.monotonic()
            self._cell.update(self)

    def end(self) -> None:
        if hasattr(self, "_cell"):
            self._cell.update(self)

    def __repr__(self) -> str:
        return self.line() if hasattr(self, "done") else "<shardmill progress>"

    def _repr_html_(self) -> str:
        held, most = self.memory
        bar = f"<progress max='1' value='{self.share:.4f}' style='width:24em'></progress> {self.share:.0%}"
        memory = (
            f"<meter max='{most}' value='{held}' style='width:12em'></meter> {show_bytes(held)} of {show_bytes(most)}"
        )
        lines = [
            *([f"{bar} {escape(self.time_left)}"] if self.total else []),
            escape(self.done.parts or self.done.source),
            escape(" · ".join([*self.amounts(), *self.events()])),
            f"memory {memory}",
            escape(self.waiting()),
        ]
        return "<br>".join(line for line in lines if line)


def progress_of(wanted: Progress | bool | None) -> Progress:
    """The progress of a call from Python: by default a view in a notebook, nothing elsewhere; True: as the command."""
    if isinstance(wanted, Progress):
        return wanted
    if wanted is not None:
        arguments.flag("progress", wanted)
    shell = sys.modules.get("IPython")
    kernel = getattr(shell.get_ipython(), "kernel", None) if shell is not None else None
    if kernel is not None and wanted is not False:
        return Notebook()
    return choose_progress(quiet=not wanted)


def choose_progress(quiet: bool) -> Progress:
    """The progress of a command: a view on a terminal, lines elsewhere, nothing when `quiet`."""
    if quiet or sys.stderr is None:  # None: it was closed before this process began
        return Progress()
    return Bar() if sys.stderr.isatty() else Lines()
