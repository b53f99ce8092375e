"""One measured run: a subprocess with a time-out, how long it took, and how much memory its process tree held."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

INTERVAL = 0.05
COMMAND = [sys.executable, "-c", "import sys; from shardmill.cli import main; sys.exit(main())"]
"""The command `shardmill`, of the environment that runs the benchmark."""


@dataclass
class Run:
    """What one run gave; `failure` is None, or why it does not count."""

    seconds: float
    """From the start of the process to its end, seen from outside."""
    peak: int
    """Resident bytes of the process and all that it started; pages shared between processes count in each."""
    others: float = 0.0
    """Cores that were busy with anything else meanwhile; a run beside others says little of speed."""
    failure: str | None = None
    said: dict[str, Any] = field(default_factory=dict)
    """The last line of its output, where that is a JSON object."""


def run(command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Run:
    """Run a command to its end or its time-out; never raises for what the command does."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start, busy, own = time.perf_counter(), _busy(), children()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True
        )
        peak, failure = 0, None
        try:
            while True:
                try:
                    process.wait(INTERVAL)
                    break
                except subprocess.TimeoutExpired:
                    peak = max(peak, resident(process.pid))
                if time.perf_counter() - start > timeout:
                    failure = f"not done after {timeout:.0f} s"
                    break
        finally:
            seconds = time.perf_counter() - start
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        others = max(0.0, (_busy() - busy) - (children() - own)) / seconds
        if failure is None and process.returncode:
            failure = f"exit {process.returncode}: {_tail(err)}"
        return Run(seconds, peak, others, failure, _said(out))


def _busy() -> float:
    """CPU-seconds that the machine has spent at work, those taken by other guests of the same host included."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def children() -> float:
    """CPU-seconds of all processes that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def resident(pid: int) -> int:
    """Resident bytes of a process and its descendants at this moment."""
    total = 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _tail(file: Any) -> str:
    file.seek(0)
    said = file.read().decode(errors="replace").replace(f"{Path(__file__).parent}{os.sep}", "")
    lines = said.strip().splitlines()
    return "; ".join(line.strip() for line in lines[-3:]).replace("|", "/")[-400:]


def _said(file: Any) -> dict[str, Any]:
    file.seek(0)
    text = file.read().decode(errors="replace").strip()
    for candidate in (text, text.splitlines()[-1] if text else ""):
        try:
            said = json.loads(candidate)
        except ValueError:
            continue
        return said if isinstance(said, dict) else {}
    return {}
