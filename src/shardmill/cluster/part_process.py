"""The command `shardmill prepare --plan OUT --part -`: makes the parts whose numbers it reads from standard input.

It reports on each as a line of JSON on standard output. When its input ends, for whatever reason, it ends as on a
signal. Executors run this command: a process of its own has the memory limit to itself, can be killed by its id, and
dies alone. Starting one takes half a second, so it is used for the next part too.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from shardmill import interrupts
from shardmill.cluster.executors import PartReport
from shardmill.errors import ShardmillError
from shardmill.run import most_resident, resident
from shardmill.write import Done, MemoryUse, Progress

_EVERY = 1.0  # seconds between two reports of a part, at least
_IDLE = 30.0  # seconds without a number after which a process ends
_GRACE = 0.6  # seconds to record what is done; a command has two seconds to end
_TAIL = 2000  # bytes of the end of a process's stderr, which its error quotes


class PartProcess:
    """The handle of such a process."""

    def __init__(self, out: str, memory: int | None, workers: int | None, folder: str = ".") -> None:
        """`folder`: the working directory, unless this machine has no such folder."""
        self._rest = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        command = [sys.executable, "-m", "shardmill", "prepare", "--plan", out, "--part", "-"]
        command += ["--memory", str(memory)] if memory else []
        command += ["--workers", str(workers)] if workers else []
        # A session of its own: Ctrl-C at the terminal must reach the driver only, which ends all in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=folder if os.path.isdir(folder) else None,
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # its threads would only wait, and keep a core busy
            start_new_session=True,
        )

    def make(self, number: int) -> None:
        """Start to make a part; the process must be idle. If it has died, `read` reports that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"%d\n" % number)
            self._process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        """Return the file descriptor for `select`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self, node: str) -> list[PartReport]:
        """Return new reports, when `fileno` is ready. `node`: its name in them."""
        data = os.read(self.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        reports = [replace(PartReport.read(line), node=node) for line in lines]
        return reports if data else [*reports, replace(self._died(), node=node)]

    def _died(self) -> PartReport:
        """Return the report of a process that ended without one."""
        code = self._process.wait()
        if code < 0:
            return PartReport("lost", why=f"its process was ended by {signal.Signals(-code).name}")
        if code == interrupts.CODE:
            return PartReport("lost", why="its process was interrupted")
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _TAIL))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        error = ShardmillError(lines[-1] if lines else f"its process ended with exit code {code}")
        return PartReport("failed", error=error)

    def request_end(self) -> None:
        """Ask it to end; it records what is done."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """End it and wait until it is gone, which takes a moment even if it is frozen."""
        self.request_end()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stderr.close()


class _Reports(Progress):
    """Inside the process: reports how far a part is, when it has come further and not more than once a second."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._limit, self._told = stream, 0, 0.0
        self._done = Done()
        self._sent = 0

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        self._limit = budget.memory
        self.update(done)

    def update(self, done: Done) -> None:
        self._done = done
        self._tell()

    def sent(self, size: int) -> None:
        """So many more bytes of the finished part were uploaded."""
        self._sent += size
        self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told >= _EVERY:
            self.send("running")

    def send(self, kind: str, error: ShardmillError | None = None) -> None:
        """Send a report."""
        memory = most_resident() if kind == "done" else resident()
        report = PartReport(kind, "", self._done, self._sent, memory, self._limit, error)
        self._stream.write(report.line().encode() + b"\n")
        self._stream.flush()
        self._told = time.monotonic()
        if report.last:
            self._done, self._sent = Done(), 0


def _listen(numbers: queue.SimpleQueue[int]) -> None:
    """Read the numbers of parts from standard input; when it closes, end as on a signal."""
    for line in sys.stdin:
        numbers.put(int(line))
    os.kill(os.getpid(), signal.SIGTERM)


def make_parts_of_input(planned: str, settings: Mapping[str, Any]) -> None:
    """Make the parts that standard input names, one after another. An error ends it, after its report."""
    from shardmill.cluster.part import LoadedTokenizer, make_part

    # Standard output is for reports only, whatever a library prints.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(numbers,), name="shardmill-numbers", daemon=True).start()
    reports, loaded = _Reports(stream), LoadedTokenizer()
    while True:
        try:
            number = numbers.get(timeout=_IDLE)
        except queue.Empty:
            return
        try:
            make_part(planned, number, progress=reports, sent=reports.sent, loaded=loaded, **settings)
        except ShardmillError as error:
            reports.send("failed", error)
            raise
        reports.send("done")
