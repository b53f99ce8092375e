"""Parts that take their time, found while they are made, so that they can be killed, frozen and woken."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

# Loaded by every Python that finds it first on its path; a part's process then writes a little every tenth of a second.
_SLOW = """
import os, sys
if "--plan" in sys.orig_argv:
    import time
    from shardmill.run import budget
    from shardmill.write import checkpoints
    from shardmill.write.writer import Writer
    budget.LARGEST = budget.SMALLEST = 1 << 16
    checkpoints._EVERY = 0.0
    write = Writer.write
    def slow(self, batch):
        time.sleep(float(os.environ["SECONDS_A_CHUNK"]))
        write(self, batch)
    Writer.write = slow
"""


def slow_parts(folder: Path, seconds: float) -> dict[str, str]:
    """An environment in which each chunk of a part takes so long."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SLOW)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "SECONDS_A_CHUNK": str(seconds)}


def below(pid: int, word: str) -> list[psutil.Process]:
    """The processes below one in whose command line a word stands, without those that have ended."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def part_processes(pid: int) -> dict[int, psutil.Process]:
    """The processes below one that make parts, by their ids."""
    return {process.pid: process for process in below(pid, "--part -")}


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
