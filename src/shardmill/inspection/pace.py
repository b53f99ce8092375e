"""How long a run will take, from the CPU time of each step in the sample."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from shardmill.sampling import Expected, Kind

_BUSY = 0.85  # share of the CPUs' time that a run uses: it waits for the ends of chunks and for the GIL
_DEALING = 2e-9  # seconds of a worker for each token: place EOT, choose splits, check ids, pass it on
_STARTING = 0.5  # seconds from the command to the first chunk, and from the last chunk to the manifest
_LOADING = 2  # places during which libraries are loaded: their time says nothing about the speed of a run


@dataclass(frozen=True)
class Pace:
    """What a run takes: seconds of one CPU, and for the download seconds on the clock."""

    feeding: float = 0.0
    """Of the one thread that finds chunks."""
    working: float = 0.0
    """Of all workers together."""
    keeping: float = 0.0
    """Of the one thread that hashes what was written."""
    download: float = 0.0

    def seconds(self, workers: int, cpus: int) -> tuple[float, str]:
        """Return the time on the clock and what bounds it: `workers`, `feeder`, `cpus` or `download`."""
        ways = {
            "download": self.download,
            "feeder": self.feeding,
            "workers": self.working / workers,
            "cpus": (self.feeding + self.working + self.keeping) / (cpus * _BUSY if cpus > 1 else 1.0),
        }
        bound = max(ways, key=ways.__getitem__)
        return _STARTING + ways[bound], bound


def pace(kinds: list[Kind], expects: list[Expected], width: int, workers: int, download: float) -> Pace:
    """Return what a run takes at the speed of the sample; `expects`: what each kind holds."""
    feeding = reading = 0.0
    for kind, holds in zip(kinds, expects, strict=True):
        places = kind.places[_LOADING:] or kind.places
        share = holds.text.value / max(1, sum(place.text for place in places))
        feeding += kind.opening + share * sum(place.feeding for place in places)
        reading += share * sum(place.reading for place in places)
    # An engine is slow while its caches are empty, and every worker needs an engine. So the extra time of the first
    # half of the sample is paid once for each worker.
    places = [place for kind in kinds for place in kind.places]
    late = places[len(places) // 2 :]
    warm = sum(place.encoding for place in late) / max(1, sum(place.encoded for place in late))
    sampled = sum(place.encoded for place in places)
    cold = max(0.0, sum(place.encoding for place in places) - warm * sampled)
    text, tokens = sum(holds.text.value for holds in expects), sum(holds.tokens.value for holds in expects)
    encoding = warm * text + cold * workers * min(1.0, text / workers / max(1, sampled))
    return Pace(feeding, reading + encoding + _DEALING * tokens, tokens * width / _hash_speed(), download)


def _hash_speed() -> float:
    block = bytes(4 << 20)
    started = time.thread_time()
    hashlib.sha256(block).digest()
    return len(block) / max(1e-9, time.thread_time() - started)
