"""How fast bytes come from where remote sources are, and how many of them a run needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardmill.errors import SourceError
from shardmill.inspection.at_once import at_once
from shardmill.inspection.row_windows import column_share, footer
from shardmill.storage.fetching import CONNECTIONS, Fetcher
from shardmill.storage.retrying import Patience

if TYPE_CHECKING:
    from shardmill.inspection.sampling import Kind
    from shardmill.storage import Source

_WINDOW = 2 << 20  # bytes that looks may have on their way: what is read ahead of one is for nothing when it ends
_SMALLEST, _PIECE = 1 << 17, 1 << 20
_SECONDS = 1.0  # of downloading, to see how fast it is
_MOST = 32 << 20  # bytes, however fast it is
_SHARES = 4  # parquet files of which the share of the text is asked


def looking_fetcher() -> Fetcher:
    """A fetcher for a look: one that gives up within seconds, not minutes."""
    given = Patience.from_environment()
    return Fetcher((), _WINDOW, Patience(min(3, given.tries), 20.0, given.pause, 5.0, min(10.0, given.timeout)))


def download_speed(sources: Sequence[Source], fetcher: Fetcher) -> float:
    """Bytes a second over as many connections as a run has; 0 where nothing is large enough to tell."""
    largest = max((source for source in sources if source.remote), key=lambda source: source.size or 0)
    size = min(_MOST, largest.size or 0)
    piece = min(_PIECE, size // CONNECTIONS)
    if piece < _SMALLEST:
        return 0.0
    began = time.monotonic()
    until = began + _SECONDS
    asked = (range(at, min(at + piece, size)) for at in range(0, size, piece))
    got = 0
    ended = began

    def fetch(span: range) -> int:
        return len(fetcher.read(largest, span.start, span.stop)) if time.monotonic() < until else 0

    for one in at_once(fetch, asked, several=True):
        if not one:
            break
        got, ended = got + one, time.monotonic()
    return got / max(1e-6, ended - began)


def bytes_to_fetch(kinds: list[Kind], sources: Sequence[Source], field: str, fetcher: Fetcher) -> int:
    """What a run will download: of parquet the text column alone."""
    needed = 0.0
    for kind in kinds:
        afar = [sources[member] for member in kind.members if sources[member].remote]
        stored = sum(source.size or 0 for source in afar)
        share = 1.0
        if afar and kind.format == "parquet" and not kind.errors:
            some = afar[:: max(1, len(afar) // _SHARES)][:_SHARES]
            shares = list(at_once(lambda source: column_share(source, field, fetcher), some, several=True))
            share = sum(shares) / len(shares)
        needed += share * stored
    return round(needed)


def count_rows(kind: Kind, sources: Sequence[Source], fetcher: Fetcher, most: int, seconds: float) -> int | None:
    """The rows of parquet files, from their footers; None: there are too many, or one cannot be read."""
    if kind.format != "parquet" or len(kind.members) > most or kind.errors:
        return None
    until = time.monotonic() + seconds

    def rows(member: int) -> int | None:
        if time.monotonic() > until:
            return None
        return int(footer(sources[member], fetcher).num_rows)

    total = 0
    try:
        for found in at_once(rows, kind.members, kind.remote):
            if found is None:
                return None
            total += found
    except SourceError as error:
        kind.errors.append(error)
        return None
    return total
