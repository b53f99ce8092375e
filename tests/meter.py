"""The memory of a whole process tree, measured from outside."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, Any

import psutil

SHARDMILL = [sys.executable, "-m", "shardmill"]


@dataclass
class Metered:
    """What a command did, and the most that it and its children held in memory at once."""

    code: int
    peak: int
    seconds: float
    out: str
    err: str


def metered(*arguments: object, stdin: int | IO[Any] | None = None) -> Metered:
    """Run `shardmill` with these arguments in a process of its own, and watch its memory."""
    return metered_command([*SHARDMILL, *map(str, arguments)], stdin)


def metered_command(command: list[str], stdin: int | IO[Any] | None = None) -> Metered:
    """The same with any command."""
    started = time.monotonic()
    # Into files: a pipe that nobody reads while memory is watched would fill up, and stop the process.
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, text=True) as process,
    ):
        tree, peak = psutil.Process(process.pid), 0
        for turn in itertools.count():
            if process.poll() is not None:
                break
            # To look for children means to look at every process of the machine.
            peak = max(peak, _high_water(tree.pid) if turn % 5 else resident(tree))
            time.sleep(0.01)
        said = [file.read() for file in (out, err) if file.seek(0) == 0]
    return Metered(process.returncode, peak, time.monotonic() - started, *said)


def resident(tree: psutil.Process) -> int:
    total = 0
    try:
        for process in (tree, *tree.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:  # it has just ended
        pass
    return max(total, _high_water(tree.pid))


def _high_water(pid: int) -> int:
    """The most that one process ever held, by the kernel's own record: no peak is too short for it. 0: not Linux."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            lines = dict(line.split(":", 1) for line in status)
    except OSError:
        return 0
    return int(lines.get("VmHWM", "0 kB").split()[0]) * 1024
