"""What a run reads, and what it comes to, watched from outside."""

from __future__ import annotations

import time


def watch_reads(monkeypatch):
    """Where the chunks begin that are read from now on, as they come."""
    from shardmill.reading import formats

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
