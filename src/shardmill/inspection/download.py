"""How fast bytes come from where remote sources are, and how many of them a run needs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import SourceError
from shardmill.inspection.at_once import at_once
from shardmill.storage import CONNECTIONS, Fetcher, Patience, RemoteFeed, shared_fetcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.inspection.sampling import Kind
    from shardmill.storage import Source

_WINDOW = 2 << 20  # bytes that looks may have on their way: what is read ahead of one is for nothing when it ends
_SMALLEST, _PIECE = 1 << 17, 1 << 20
_SECONDS = 1.0  # of downloading, to see how fast it is
_MOST = 32 << 20  # bytes, however fast it is
_FOOTERS, _FOOTERS_TIME = 4096, 2.0  # parquet files whose footers are read, and seconds for it
_FOOTERS_AFAR, _FOOTERS_AFAR_TIME = 64, 3.0
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
            shares = list(at_once(lambda source: _column_share(source, field, fetcher), some, several=True))
            share = sum(shares) / len(shares)
        needed += share * stored
    return round(needed)


def read_footers(
    kind: Kind, sources: Sequence[Source], field: str, fetcher: Fetcher | None
) -> tuple[int, NDArray[np.int64]] | None:
    """The rows of all parquet files of a kind, and the bytes of text in each, about, as their footers say.

    None: there are too many files, or one cannot be read; looking into it will tell why.
    """
    most, seconds = (_FOOTERS_AFAR, _FOOTERS_AFAR_TIME) if kind.remote else (_FOOTERS, _FOOTERS_TIME)
    if kind.format != "parquet" or len(kind.members) > most:
        return None
    until = time.monotonic() + seconds

    def look(member: int) -> tuple[int, int] | None:
        if time.monotonic() > until:
            return None
        if not sources[member].size:
            return 0, 0
        metadata = _footer(sources[member], fetcher)
        return metadata.num_rows, sum(column.total_uncompressed_size for column in _columns(metadata, field))

    try:
        found = list(at_once(look, kind.members, kind.remote))
    except SourceError:
        return None
    known = [one for one in found if one is not None]
    return (sum(rows for rows, _ in known), np.array([size for _, size in known])) if known == found else None


def _column_share(source: Source, field: str, fetcher: Fetcher) -> float:
    """The share of a parquet file's bytes that its text column takes: no more of it is fetched."""
    stored = sum(column.total_compressed_size for column in _columns(_footer(source, fetcher), field))
    return min(1.0, float(stored) / max(1, source.size or 0)) or 1.0


def _columns(metadata: Any, field: str) -> Iterator[Any]:
    """The text column in each row group."""
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if field in names:
        yield from (metadata.row_group(i).column(names.index(field)) for i in range(metadata.num_row_groups))


def _footer(source: Source, fetcher: Fetcher | None) -> Any:
    """The metadata of a parquet file; SourceError when it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not source.remote:
            return pq.read_metadata(source.path)
        with closing(RemoteFeed(fetcher or shared_fetcher(), source)) as feed:
            length = int.from_bytes(feed.read(max(0, feed.size - 8), feed.size)[:4], "little") + 8
            return pq.read_metadata(pa.BufferReader(feed.read(max(0, feed.size - length), feed.size)))
    except (pa.ArrowException, OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"the parquet file is damaged: {said}", place=source.name) from error
