"""Generators that are not read to their end: by a limit, or because somebody has pressed Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardmill
from tests.watching import interruptible


@pytest.mark.parametrize("called", [True, False], ids=["generator", "callable"])
def test_a_generator_that_is_not_read_to_its_end_is_closed_in_its_own_thread(tmp_path: Path, called: bool) -> None:
    threads = []

    def given() -> Iterator[str]:
        threads.append(threading.get_ident())
        try:
            for i in range(1_000_000):
                yield f"document {i}"
        finally:
            threads.append(threading.get_ident())

    shardmill.prepare(given() if called else given, tmp_path / "out", limit=50, val=0)
    assert len(threads) == 2 and len(set(threads)) == 1 and threading.get_ident() not in threads


_BLOCKED = """
import os, signal, sys, threading, shardmill
from shardmill.run import pipeline
pipeline._JOIN = 1000  # seconds, for a thread that may still end by itself

def given():
    yield from (f"document {i} " * 50 for i in range(20_000))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Event().wait()

try:
    shardmill.prepare(given, sys.argv[1], val=0)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_does_not_wait_for_a_generator_that_never_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED, str(tmp_path / "out")],
        capture_output=True, text=True, timeout=100, preexec_fn=interruptible,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"
    made = shardmill.prepare(lambda: (f"document {i} " * 50 for i in range(20_000)), tmp_path / "out", val=0)
    assert made.manifest["documents"] == 20_000
