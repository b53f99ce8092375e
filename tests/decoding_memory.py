"""Compares the memory that a reader asks for with what decoding takes. Each file is read in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute  # noqa: F401 - counted before anything is read

from shardmill.documents import Position, Reading, SourceReader, load_libraries
from shardmill.sources import find_sources
from shardmill.storage import Source


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


class _Asked:
    now = most = 0
    largest_row = 1 << 40

    def __init__(self, largest: int) -> None:
        self.largest = largest

    @contextmanager
    def hold(self, amount: int, what: str, place: str) -> Iterator[None]:
        self.now += amount
        self.most = max(self.most, self.now)
        yield
        self.now -= amount


def measure(source: Source, size: int) -> tuple[int, int, int]:
    """The bytes asked for, the growth of this process, and the bytes of text, when all of a source is read."""
    asked, before, text = _Asked(size), _status("VmRSS"), 0
    reader = SourceReader(0, source, Reading(), asked)
    for chunk in reader.chunks(Position(), size):  # each is held while the next is made, as in a run
        text += sum(map(len, reader.pieces(chunk, 1 << 16))) if chunk.long else reader.read(chunk).offsets[-1]
    return asked.most, _status("VmHWM") - before, int(text)


def measured(paths: list[Path], size: int) -> list[tuple[int, int, int]]:
    """The same for each of these files, in processes of their own."""
    command = [sys.executable, "-m", "tests.decoding_memory", str(size), *map(str, paths)]
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # as in a run
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    load_libraries(find_sources(sys.argv[2:], "auto"))
    for path in sys.argv[2:]:
        [source] = find_sources([path], "auto")
        if (child := os.fork()) == 0:
            sys.stdout.write(json.dumps(measure(source, int(sys.argv[1]))) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
