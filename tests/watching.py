"""What a run reads, and what it comes to, watched from outside; and a run that is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.write.writer import Writer


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where the chunks begin that are read from now on, as they come."""
    from shardmill.documents import formats

    read, starts = formats.SourceReader.read, []

    def watched(self: Any, chunk: Any) -> Any:
        starts.append(chunk.start)
        return read(self, chunk)

    monkeypatch.setattr(formats.SourceReader, "read", watched)
    return starts


_PAUSED = """
import os, time
from shardmill import interrupts
from shardmill.write.writer import Writer
write, mark = Writer.write, os.environ["PAUSED"]
def paused(self, batch):
    if self.ledger.counts.totals["documents"]:
        Writer.write = write
        open(mark, "w").close()
        for _ in range(20_000):
            if not os.path.exists(mark):
                break
            time.sleep(0.05)
    write(self, batch)
Writer.write = paused
interrupts.GRACE_SECONDS = 100.0
from shardmill.__main__ import main
main()
"""


@contextmanager
def paused_run(mark: Path, *arguments: object, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """The command in a process that has written some results, and writes no more until `mark` is removed.

    Whatever comes finds it at work, and an interrupt has all the time it needs, however busy the machine is.
    """
    mark.unlink(missing_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", _PAUSED, *map(str, arguments)], stderr=subprocess.PIPE, text=True,
        env={**(env or os.environ), "PAUSED": str(mark)}, preexec_fn=interruptible,
    ) as run:  # fmt: skip
        try:
            wait_until(lambda: mark.exists() or run.poll() is not None)
            assert run.poll() is None, run.communicate()[1]
            yield run
        finally:
            if run.poll() is None:
                run.kill()


def interruptible() -> None:
    """Who starts the tests in the background ignores SIGINT, by `nohup` SIGHUP too; processes below inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_until(true: Callable[[], object], seconds: float = 150.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def interrupt_after(chunks: int, source: Any, out: Any, **options: Any) -> None:
    """A run that ends after so many results, as Ctrl-C ends it."""
    write, taken = Writer.write, list[int]()

    def counted(self: Writer, batch: Any) -> None:
        if len(taken) >= chunks:
            raise KeyboardInterrupt
        taken.append(1)
        write(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write", counted)
        with pytest.raises(KeyboardInterrupt):
            shardmill.prepare(source, out, **options)
    ours = ("shardmill-feeder", "shardmill-worker", "shardmill-checkpoints")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]
    assert not (Path(out) / "manifest.json").exists()
