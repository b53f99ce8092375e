"""What a sample says of the whole: documents, text and tokens with their margins, the size of each output, the time."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardmill.inspection.sampling import BUCKETS, Kind, bucketed
from shardmill.run.preflight import SHARDS_HERE
from shardmill.shards import FORMATS, format_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Student's t for 95 %, by degrees of freedom; beyond the table 1.96 + 2.4 / n is within 1 %.
_T = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_DOUBT_FREEDOM = 7  # degrees of freedom of a rate's error, which comes from eight groups
_LEAST = 0.001  # of a number is the least margin: where windows begin and end costs as much
_BUSY = 0.85  # of the CPUs' time is used by a run: the ends of chunks are waited for, and Python's lock
_LOADING = 2  # units
_DEALING = 2e-9  # seconds of a worker for a token: to place EOT, deal splits, check ids and hand it on
_STARTING = 0.8  # seconds from the command to the first chunk, and from the last to the manifest


@dataclass(frozen=True)
class Amount:
    """A number; `margin` to either side covers the truth in 95 of 100 cases. No margin: it is exact."""

    value: int
    margin: int = 0

    @property
    def exact(self) -> bool:
        return self.margin == 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + other.value, round(math.hypot(self.margin, other.margin)))


NOTHING = Amount(0)


@dataclass(frozen=True)
class Expected:
    """What one kind of sources, or all of them, hold."""

    text: Amount = NOTHING
    documents: Amount = NOTHING
    """Empty and rejected ones included."""
    written: int = 0
    """Documents that will be written: each has an end-of-text token."""
    tokens: Amount = NOTHING
    """With the end-of-text tokens."""

    def __add__(self, other: Expected) -> Expected:
        return Expected(
            self.text + other.text,
            self.documents + other.documents,
            self.written + other.written,
            self.tokens + other.tokens,
        )


def expected(kind: Kind, *, separated: bool, eot: bool, rows: int | None = None) -> Expected:
    """What a kind holds. `separated`: text has a separator; `rows`: the number of documents, where it is known."""
    text = _total(kind, [unit.text for unit in kind.units])
    if kind.format == "text" and not separated:
        if not kind.whole and not kind.compression and not any(unit.replaced for unit in kind.units):
            text = Amount(kind.stored)
        documents = Amount(len(kind.members))
        full = int(np.count_nonzero(kind.sizes))
        marks = [unit.stored * full / max(1, kind.stored) for unit in kind.units]
    else:
        documents = _total(kind, [unit.documents for unit in kind.units])
        if documents.value < np.count_nonzero(kind.sizes):
            documents = Amount(int(np.count_nonzero(kind.sizes)), documents.margin)
        if rows is not None:
            documents = Amount(rows)
        good = [float(unit.documents - unit.empty - unit.rejected) for unit in kind.units]
        seen = sum(unit.documents for unit in kind.units)
        full = round(documents.value * sum(good) / seen) if seen else documents.value
        marks = good
    tokens = _total(kind, [unit.tokens + mark * eot for unit, mark in zip(kind.units, marks, strict=True)])
    return Expected(text, documents, full, tokens)


def _total(kind: Kind, values: Sequence[float]) -> Amount:
    """From the ratio of values to stored bytes in the sample to the sum over all of the kind."""
    found = sum(values)
    stored = np.array([unit.stored for unit in kind.units])
    covered = float(stored.sum())
    if kind.whole or not covered:
        return Amount(round(found))
    ratio = found / covered
    if len(kind.units) == 1:
        return Amount(round(ratio * kind.stored), round(0.1 * ratio * kind.stored))
    rest = np.array(values) - ratio * stored
    n = len(kind.units)
    error = math.sqrt(float(rest @ rest) * n / (n - 1)) / covered * math.sqrt(max(0.0, 1 - covered / kind.stored))
    # What the excerpts stand for is itself an estimate where a stream is compressed.
    doubt = math.sqrt(sum(off * off for _, off in kind.doubts)) / max(1.0, sum(stored for stored, _ in kind.doubts))
    margin = math.hypot(student(n - 1) * error * kind.stored, student(_DOUBT_FREEDOM) * doubt * ratio * kind.stored)
    margin = max(margin, _LEAST * ratio * kind.stored)
    # An estimate that happens to have no variance is still an estimate.
    return Amount(round(ratio * kind.stored), max(1, round(margin)) if found else 0)


def student(freedom: int) -> float:
    return _T[freedom] if freedom < len(_T) else 1.96 + 2.4 / freedom


def histogram(kind: Kind, expects: Expected, *, separated: bool) -> NDArray[np.int64]:
    """The documents of a kind that have text, by size, in whole numbers that add up to those written."""
    if kind.format == "text" and not separated:
        wide = expects.text.value / max(1, kind.stored)
        seen = bucketed(np.rint(kind.sizes[kind.sizes > 0] * wide).astype(np.int64))
    else:
        seen = kind.sizes_seen
    total = int(seen.sum())
    if not total:
        return np.zeros(BUCKETS, np.int64)
    shares = seen * (expects.written / total)
    whole: NDArray[np.int64] = np.floor(shares).astype(np.int64)
    # What rounding down has lost goes to the largest remainders.
    lost = expects.written - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:lost]] += 1
    return whole


def output_sizes(tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> dict[str, int]:
    """Bytes that each output format takes for so many tokens of so many documents; `width` is that of a token."""
    return {name: format_named(name).size(tokens, documents, width, vocab_size, shard_tokens) for name in FORMATS}


def staged_sizes(sizes: dict[str, int], width: int, shard_tokens: int) -> dict[str, int]:
    """What lies on this machine at once of the formats' bytes while a run brings them to an object store."""
    most = SHARDS_HERE * shard_tokens * width
    return {name: min(size, most) if format_named(name).sharded else size for name, size in sizes.items()}


@dataclass(frozen=True)
class Pace:
    """What a run takes, in seconds of one CPU but for the download."""

    starting: float = 0.0
    feeding: float = 0.0
    """One thread's work."""
    working: float = 0.0
    """Of all workers together."""
    keeping: float = 0.0
    """One thread's: hashing what was written."""
    download: float = 0.0
    """On the clock."""

    def seconds(self, workers: int, cpus: int) -> tuple[float, str]:
        """The time on the clock, and what it is bound by: `workers`, `feeder`, `cpus` or `download`."""
        ways = {
            "download": self.download,
            "feeder": self.feeding,
            "workers": self.working / workers,
            "cpus": (self.feeding + self.working + self.keeping) / (cpus * _BUSY if cpus > 1 else 1.0),
        }
        bound = max(ways, key=ways.__getitem__)
        return self.starting + ways[bound], bound


def pace(kinds: list[Kind], expects: Expected, width: int, workers: int, download: float) -> Pace:
    """What a run takes at the speed of the sample."""
    feeding = reading = encoding = 0.0
    # An engine is slow while its caches are empty, and every worker has one of its own: what the first half of the
    # sample took more than the second is paid once for each.
    units = [unit for kind in kinds for unit in kind.units]
    late = units[len(units) // 2 :]
    warm = sum(unit.encoding for unit in late) / max(1, sum(unit.text for unit in late))
    sampled = sum(unit.text for unit in units)
    cold = max(0.0, sum(unit.encoding for unit in units) - warm * sampled)
    for kind in kinds:
        # What comes first loads libraries.
        steady = kind.units[_LOADING:] if len(kind.units) > 2 * _LOADING else kind.units
        covered = sum(unit.stored for unit in steady)
        if covered:
            feeding += sum(unit.feeding for unit in steady) * kind.stored / covered
            reading += sum(unit.reading for unit in steady) * kind.stored / covered
    text = expects.text.value
    encoding = warm * text + cold * workers * min(1.0, text / workers / max(1, sampled))
    dealing = _DEALING * expects.tokens.value
    hashing = expects.tokens.value * width / _hash_speed()
    return Pace(_STARTING, feeding, reading + encoding + dealing, hashing, download)


def _hash_speed() -> float:
    block = bytes(4 << 20)
    started = time.thread_time()
    hashlib.sha256(block).digest()
    return len(block) / max(1e-9, time.thread_time() - started)
