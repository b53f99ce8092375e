"""What the scripts here share: their arguments, and the line that they end with.

Each is called with INPUT OUT WORKERS, writes its tokens into the folder OUT, and says how long that took. The clock
starts when libraries are imported and the vocabulary is loaded, and stops when the last byte is written.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

SOURCE, OUT, WORKERS = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
VOCABULARY = Path(os.environ.get("BENCHMARK_VOCABULARY", "."))
"""Holds gpt2.tiktoken and tokenizer.json."""


class Clock:
    def __init__(self) -> None:
        self.cpu, self.start = _cpu(), time.perf_counter()

    def stop(self, **said: int) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self.start, "cpu": _cpu() - self.cpu, **said}))


def _cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)
