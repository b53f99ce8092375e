"""A process that makes parts one after another, and reports its progress every second. Executors run these.

A process of its own has the memory limit to itself, can be killed by its id, and dies alone. It reads from standard
input which part to make. When the other end of that pipe closes, for whatever reason, the process ends as on a signal.
Starting one takes half a second, so it is kept for the next part.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO

from shardmill import interrupts
from shardmill.cluster.executors import PartReport, Task
from shardmill.errors import ShardmillError
from shardmill.run import Done, MemoryUse, Progress, most_resident, own_process, resident

_EVERY = 1.0  # seconds between two reports
_GRACE = 0.6  # seconds to record what is done; a command has two seconds to end
_TAIL = 2000  # bytes of the end of a process's stderr, which its error quotes


class PartProcess:
    """The handle of such a process."""

    def __init__(self, out: str, memory: int | None, workers: int | None, node: str, folder: str = ".") -> None:
        """`folder`: the working directory, unless this machine has no such folder."""
        self._node = node
        self._rest = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        command = [sys.executable, "-m", __name__, out, str(memory or 0), str(workers or 0), node]
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

    def make(self, task: Task) -> None:
        """Start to make a part; the process must be idle. If it has died, `read` reports that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{task}\n".encode())
            self._process.stdin.flush()

    def fileno(self) -> int:
        """Return the file descriptor for `select`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[PartReport]:
        """Return new reports, when `fileno` is ready."""
        data = os.read(self.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        reports = [PartReport.read(line) for line in lines]
        return reports if data else [*reports, self._died()]

    def _died(self) -> PartReport:
        """Return the report of a process that ended without one."""
        code = self._process.wait()
        if code < 0:
            return PartReport("lost", self._node, why=f"its process was ended by {signal.Signals(-code).name}")
        if code == interrupts.CODE:
            return PartReport("lost", self._node, why="its process was interrupted")
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _TAIL))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        error = ShardmillError(lines[-1] if lines else f"its process ended with exit code {code}")
        return PartReport("failed", self._node, error=error)

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
    """Inside the process: reports progress every second, even if nothing is new."""

    def __init__(self, node: str, limit: int, stream: IO[bytes]) -> None:
        self._node, self._limit, self._stream = node, limit, stream
        self._done = Done()
        self._busy = False
        self._sending = threading.Lock()
        threading.Thread(target=self._send_often, name="shardmill-reports", daemon=True).start()

    def begin(self, total: int | None, done: Done, budget: MemoryUse) -> None:
        self._limit, self._done = budget.memory, done

    def update(self, done: Done) -> None:
        self._done = done

    def send(self, kind: str, error: ShardmillError | None = None, *, still: bool = False) -> None:
        """Send a report. `still`: only while something is being made."""
        memory = resident() if kind == "running" else most_resident()
        with self._sending:
            if still and not self._busy:
                return
            report = PartReport(kind, self._node, self._done, memory, self._limit, error)
            self._busy, self._done = not report.last, Done() if report.last else self._done
            self._stream.write(report.line().encode() + b"\n")
            self._stream.flush()

    def _send_often(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY):
            if self._busy:
                self.send("running", still=True)


def _listen(tasks: queue.SimpleQueue[Task]) -> None:
    """Read orders from standard input; when it closes, end as on a signal."""
    for line in sys.stdin:
        kind, number = line.split()
        tasks.put(Task(kind, int(number)))
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Make the parts that standard input names."""
    out, memory, workers, node = sys.argv[1:]
    # Standard output is for reports only, whatever a library prints.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    interrupts.listen()
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), name="shardmill-starter", daemon=True).start()
    reports = _Reports(node, int(memory), stream)
    own_process()
    gc.disable()  # imports make many objects and no garbage
    from shardmill.cluster.part import LoadedTokenizer, make_part

    gc.freeze()
    gc.enable()
    interrupts.end_orderly("interrupted")
    loaded = LoadedTokenizer()
    try:
        while True:
            _, number = tasks.get()
            reports.send("running")
            limits = {"memory": int(memory) or None, "workers": int(workers) or None}
            make_part(out, number, progress=reports, loaded=loaded, **limits)  # type: ignore[arg-type]
            reports.send("done")
    except ShardmillError as error:
        reports.send("failed", error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = interrupts.CODE
    os._exit(code)  # threads of libraries may outlive the interpreter


if __name__ == "__main__":
    main()
