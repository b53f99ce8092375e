"""What was found at a place of a source, and parts of it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardmill.documents import Documents

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUCKETS = 24
"""Of document sizes: bucket i holds those of up to 4 ** i bytes, and more than fit in the one before."""
NO_TEXT = 0.01
"""Of control characters, from which on it is no text: real text has less than a thousandth."""
# Bytes that no text has: control characters but tab, line feed, form feed, carriage return, escape and separators.
_CONTROLS = bytes([*range(9), 11, *range(14, 27), 127])


@dataclass
class Found:
    """Some documents, and what they are of their source."""

    place: int
    """Those of one place belong together."""
    name: str
    documents: Documents
    begun: int
    """Documents that begin here, rejected ones included."""
    sizes: NDArray[np.int64]
    """Bytes of these."""
    size: int
    """Bytes of text."""
    stored: float = 0.0
    """Bytes that this stands for, as the source is measured, and that its records take."""
    covered: float = 0.0
    hits: int = 1
    """How often its place was drawn."""
    part: float = 1.0
    """The share of the text that counts."""
    raw: bytes = b""
    """The text as it stands in the source, where that is plain text."""
    fed: int = 0
    """Bytes of text that took the feeder these seconds: to decompress, or to find where documents end."""
    feeding: float = 0.0
    reading: float = 0.0


def share_of_controls(text: bytes) -> float:
    """The share of bytes that no text has."""
    return 1 - len(text.translate(None, _CONTROLS)) / len(text) if text else 0.0


def parted(found: Found, begins: bool) -> tuple[Found, Found]:
    """The first record, good or bad, and the others. `begins`: the first is not the rest of one that began before."""
    documents, offsets = found.documents, found.documents.offsets
    bad = int(bool(documents.rejects) and (not len(documents) or documents.rejects[0].record < documents.record(0)))
    good = min(len(documents), 1 - bad)
    end = offsets[good]
    begun = (good if begins else 0) + bad
    size = int(end - offsets[0])
    share = (size + 1) / (found.size + max(1, len(documents) + len(documents.rejects)))
    first = replace(
        found, documents=Documents(documents.data[:end], offsets[: good + 1], rejects=documents.rejects[:bad]),
        begun=begun, sizes=found.sizes[: begun - bad], size=size, covered=found.covered * share, fed=0, feeding=0.0,
        reading=0.0,
    )  # fmt: skip
    repairs = None if documents.repairs is None else documents.repairs[good:]
    rest = Documents(documents.data[end:], offsets[good:] - end, rejects=documents.rejects[bad:], repairs=repairs)
    others = replace(
        found, documents=rest, begun=found.begun - begun, sizes=found.sizes[begun - bad :], size=found.size - size,
        covered=found.covered * (1 - share),
    )  # fmt: skip
    return first, others


def first_rows(documents: Documents, rows: int) -> Documents:
    """The first rows of a chunk, with the rejects among them."""
    kept = rows if documents.records is None else int(np.searchsorted(documents.records, rows))
    kept = min(kept, len(documents))
    return replace(
        documents,
        data=documents.data[: int(documents.offsets[kept])],
        offsets=documents.offsets[: kept + 1],
        records=None if documents.records is None else documents.records[:kept],
        rejects=[reject for reject in documents.rejects if reject.record < rows],
        lines=rows,
    )


def some_bytes(documents: Documents, most: int, draw: random.Random) -> Documents:
    """About so many bytes of the documents, from a random place on and around their end.

    A document counts by the bytes of it that fall into them: to take whole ones would favour the short or the long.
    """
    size = len(documents.data)
    if size <= most:
        return documents
    begin = draw.randrange(size)
    data = np.concatenate([documents.data[begin : begin + most], documents.data[: max(0, begin + most - size)]])
    offsets = np.concatenate([documents.offsets, documents.offsets[1:] + size]) - begin
    offsets = np.concatenate([[0], offsets[(offsets > 0) & (offsets < most)], [most]])
    # Where it begins, goes on from the start and ends, characters may be cut: then their first bytes stand alone.
    text = data.tobytes().decode("utf-8", "ignore").encode()
    if len(text) == most:
        return Documents(data, offsets)
    parts = [data[a:b].tobytes().decode("utf-8", "ignore").encode() for a, b in pairwise(offsets.tolist())]
    return Documents(np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)]))


def bucketed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sizes fall into each bucket."""
    bounds = 4 ** np.arange(BUCKETS - 1, dtype=np.int64)
    return np.bincount(np.searchsorted(bounds, sizes), minlength=BUCKETS).astype(np.int64)


def plain_reason(reason: str) -> str:
    """A reason without what is different in every record."""
    return re.sub(r" \(column \d+\)|\d[\d,]* bytes", lambda m: "" if m[0][0] == " " else "so many bytes", reason)
