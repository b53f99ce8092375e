"""What a run reads, and what it comes to, watched from outside; and a run that is interrupted."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import shardmill


def watch_reads(monkeypatch):
    """Where the chunks begin that are read from now on, as they come."""
    from shardmill.documents import formats

    read, starts = formats._SourceReader.read, []

    def watched(self, chunk):
        starts.append(chunk.start)
        return read(self, chunk)

    monkeypatch.setattr(formats._SourceReader, "read", watched)
    return starts


def wait_until(true, seconds=40.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def interrupt_after(chunks, source, out, **options):
    """A run that ends after so many results, as Ctrl-C ends it."""
    from shardmill.run.writer import Writer

    take, taken = Writer.take, []

    def counted(self, milled):
        if len(taken) >= chunks:
            raise KeyboardInterrupt
        taken.append(1)
        take(self, milled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "take", counted)
        with pytest.raises(KeyboardInterrupt):
            shardmill.prepare(source, out, **options)
    ours = ("shardmill-feeder", "shardmill-worker", "shardmill-keeper")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]
    assert not (Path(out) / "manifest.json").exists()
