"""The table of rows: for each row of a batch its tokens, bytes and split, and whether a document begins or ends there.

A row is a document, a span of one, or a piece of one that is cut across chunks. All of this is done by the array.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.documents import Chunk, Documents, Reject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Encoded


_RUNS = 64  # of rows of the same split, up to which copying run by run is faster than a mask over all tokens


@dataclass(frozen=True)
class Rows:
    """Columns of equal length. A row without tokens that closes ends the document that was open before."""

    length: NDArray[np.int64]
    """Tokens of the row, with its end-of-text token."""
    bytes: NDArray[np.int64]
    """Of its text."""
    val: NDArray[np.bool_]
    """Its split: val or train."""
    opens: NDArray[np.bool_]
    """A document begins with it."""
    closes: NDArray[np.bool_]
    """A document ends with it."""

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, wanted: slice | NDArray[np.bool_]) -> Rows:
        return Rows(self.length[wanted], self.bytes[wanted], self.val[wanted], self.opens[wanted], self.closes[wanted])

    @property
    def nbytes(self) -> int:
        return 2 * self.length.nbytes + 3 * self.val.nbytes


class Stream(NamedTuple):
    """The rows of a batch, and their tokens by split."""

    rows: Rows
    tokens: dict[str, NDArray[Any]]

    @property
    def ends_before(self) -> bool:
        """The document that was open before this batch has no more tokens in it."""
        return bool(len(self.rows) and self.rows.closes[0] and not self.rows.length[0])

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + sum(tokens.nbytes for tokens in self.tokens.values())


class Counted(NamedTuple):
    """What was found in one chunk."""

    documents: int
    empty: int
    lines: int
    replaced: int
    rejects: list[Reject]
    tokens: int = 0
    """Without end-of-text tokens."""
    lengths: NDArray[np.int64] | None = None
    """Of a chunk of whole sources: the tokens of each; one without any is no document."""


def make_rows(
    chunks: list[Chunk], found: list[Documents], joined: Documents, encoded: Encoded, val: NDArray[np.bool_]
) -> Rows:
    """The table of some chunks; its lengths are without end-of-text tokens."""
    opens = np.ones(len(joined), dtype=np.bool_)
    closes = opens.copy()
    row = 0
    for chunk, documents in zip(chunks, found, strict=True):
        end = row + len(documents)
        plain = chunk.begins and chunk.ends and (not documents.spans or end - row == 1)
        if not plain and end > row:
            opens[row:end] = closes[row:end] = False
            opens[row], closes[end - 1] = chunk.begins, chunk.ends
        row = end
    filled = encoded.lengths > 0
    # A row without tokens is no document: it may have been refused. Its bytes count only where it is a part of one.
    counts = filled | ~(opens & closes)
    return Rows(encoded.lengths, joined.lengths * counts, val, opens & filled, closes & filled)


def eot_places(rows: Rows, eot: str) -> NDArray[np.bool_]:
    """Which rows get an end-of-text token."""
    return {"after": rows.closes, "before": rows.opens, "none": np.zeros(len(rows), np.bool_)}[eot]


def with_eot(rows: Rows, encoded: Encoded, eot: str, mark: int) -> Stream:
    """The rows and their tokens, with `mark` after or before each document or not at all."""
    offsets = encoded.offsets[: len(rows) + 1]
    tokens, places = encoded.tokens[: offsets[-1]], offsets[1:] - 1
    marked = eot_places(rows, eot)
    tokens[places] = mark
    if eot == "before" and len(tokens):
        tokens, places = np.concatenate([tokens[-1:], tokens[:-1]]), offsets[:-1]
    tokens = _without(tokens, places[~marked])
    rows = replace(rows, length=rows.length + marked)
    split = {}
    for name, mine in (("train", ~rows.val), ("val", rows.val)):
        if mine.any():
            split[name] = tokens if mine.all() else _taken(tokens, rows.length, mine)
    return Stream(rows, split)


def count(chunks: list[Chunk], found: list[Documents], rows: Rows, encoded: Encoded) -> list[Counted]:
    """What each chunk held; `rows` may end before the chunks do."""
    failed = dict(encoded.failed)
    ends = np.cumsum([len(documents) for documents in found], dtype=np.int64)
    closed, bare, tokens = (_between(one, ends) for one in (rows.closes, rows.length == 0, rows.length))
    counted, row = [], 0
    for i, documents in enumerate(found):
        end = row + len(documents)
        last = min(end, len(rows))
        if last <= row < end:
            break
        rejects = documents.rejects
        if last < end:
            rejects = [reject for reject in rejects if reject.record < documents.record(last - row - 1)]
        refused = [bad for bad in failed if row <= bad < last]
        if refused:
            rejects = rejects + [_refused(documents, bad - row, failed[bad]) for bad in refused]
            rejects.sort(key=lambda reject: (reject.record, reject.byte))
        cut = documents.spans and len(documents) > 1
        empty = 0 if cut else bare[i] - len(refused)
        lengths = rows.length[row:last] if chunks[i].whole else None
        replaced = documents.replaced(last - row)
        counted.append(Counted(closed[i], empty, documents.lines, replaced, rejects, tokens[i], lengths))
        row = end
    return counted


def _between(values: NDArray[Any], ends: NDArray[np.int64]) -> list[int]:
    """The sum of the values in each stretch up to these ends."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])[np.minimum(ends, len(values))]
    counts: list[int] = np.diff(before, prepend=0).tolist()
    return counts


def _without(tokens: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """The tokens but for those at these places."""
    if not len(places):
        return tokens
    if len(places) > _RUNS:
        kept = np.ones(len(tokens), dtype=np.bool_)
        kept[places] = False
        return tokens[kept]
    begins = [0, *(places + 1).tolist()]
    return np.concatenate([tokens[begin:end] for begin, end in zip(begins, [*places.tolist(), None], strict=True)])


def _taken(tokens: NDArray[Any], lengths: NDArray[np.int64], mine: NDArray[np.bool_]) -> NDArray[Any]:
    """The tokens of some rows."""
    borders = np.flatnonzero(np.diff(mine)) + 1
    if len(borders) > _RUNS:
        return tokens[np.repeat(mine, lengths)]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    runs = itertools.pairwise([0, *borders.tolist(), len(mine)])
    return np.concatenate([tokens[ends[first] : ends[last]] for first, last in runs if mine[first]])


def _refused(documents: Documents, row: int, reason: str) -> Reject:
    start = int(documents.offsets[row])
    end = start + int(documents.lengths[row])
    excerpt = bytes(documents.data[start : min(end, start + 320)]).decode("utf-8", "ignore")[:80]
    return Reject(documents.record(row), -1, reason, excerpt)
