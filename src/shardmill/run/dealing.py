"""What happens to a chunk's tokens: where documents begin and end, EOT, splits, and counts. All of it by the array."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.documents.chunks import Chunk, Documents, Reject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Encoded


_RUNS = 64  # of rows of the same split, up to which copying run by run is faster than a mask over all tokens


class Stream(NamedTuple):
    """The tokens of one split, in order."""

    tokens: NDArray[Any]
    closes: NDArray[np.int64]
    """Where documents end, counted from the start of `tokens`."""
    ends: NDArray[np.int64]
    """Where documents end as far as this split is concerned: a document dealt in spans may have its end elsewhere."""
    row_ends: NDArray[np.int64]
    """Where rows (documents, spans, or the one piece) end, likewise."""
    row_bytes: NDArray[np.int64]
    """The bytes of text of each row."""


class Counted(NamedTuple):
    """What was found in one chunk."""

    documents: int
    empty: int
    lines: int
    replaced: int
    rejects: list[Reject]
    filled: NDArray[np.bool_] | None = None
    """Of a chunk of whole sources: which of them are a document."""


class Most(NamedTuple):
    """How much is still wanted under `--limit`."""

    documents: int | None
    tokens: int | None

    @property
    def nothing(self) -> bool:
        return (self.documents is not None and self.documents <= 0) or (self.tokens is not None and self.tokens <= 0)

    def reached_by(self, documents: int, tokens: int) -> bool:
        """Whether so much is all of it, or more."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )


class Rows:
    """The rows of some chunks, encoded: which begin a document, which end one, and where they go."""

    def __init__(self, chunks: list[Chunk], found: list[Documents], joined: Documents, encoded: Encoded) -> None:
        self._chunks, self._found, self._rows, self._encoded = chunks, found, joined, encoded
        self.kept = len(joined)
        """Rows that count; fewer than there are only under a limit."""
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
        some = encoded.lengths > 0  # a row without tokens is no document
        self._opens, self._closes = opens & some, closes & some

    def keep(self, most: Most) -> int:
        """Forget what comes after the row that reaches `most`; gives the number of chunks that are left."""
        ended = np.cumsum(self._closes)
        enough = np.zeros(len(ended), dtype=np.bool_)
        if most.documents is not None:
            enough |= ended >= most.documents
        if most.tokens is not None:
            reached = np.cumsum(self._encoded.lengths) + ended >= most.tokens
            # A span may be the last, so that a limit in tokens also works for text that is one document.
            enough |= reached if self._rows.spans else reached & self._closes
        if enough.any():
            self.kept = int(np.argmax(enough)) + 1
            self._closes[self.kept - 1] = True
        ends = np.cumsum([len(documents) for documents in self._found])
        return int(np.searchsorted(ends, self.kept, side="left")) + 1

    def count(self) -> list[Counted]:
        """What each chunk held, as far as its rows are kept."""
        failed = dict(self._encoded.failed)
        ends = np.cumsum([len(documents) for documents in self._found], dtype=np.int64)
        closed, bare = _between(self._closes, ends, self.kept), _between(self._encoded.lengths == 0, ends, self.kept)
        counted, row = [], 0
        for i, documents in enumerate(self._found):
            end = row + len(documents)
            last = min(end, self.kept)
            if last <= row < end:
                break
            rejects = documents.rejects
            if last < end:
                rejects = [reject for reject in rejects if reject.record < documents.record(last - row - 1)]
            refused = [bad for bad in failed if row <= bad < last]
            if refused:
                rejects = rejects + [_refused(documents, bad - row, failed[bad]) for bad in refused]
                rejects.sort(key=lambda reject: (reject.record, reject.byte))
            dealt = documents.spans and len(documents) > 1
            empty = 0 if dealt else bare[i] - len(refused)
            filled = self._encoded.lengths[row:last] > 0 if self._chunks[i].whole else None
            counted.append(Counted(closed[i], empty, documents.lines, documents.replaced, rejects, filled))
            row = end
        return counted

    def deal(self, val: NDArray[np.bool_], eot: str, mark: int) -> dict[str, Stream]:
        """The rows' tokens by split, with `mark` after or before each document or not at all."""
        opens, closes, val = self._opens[: self.kept], self._closes[: self.kept], val[: self.kept]
        offsets = self._encoded.offsets[: self.kept + 1]
        tokens, places = self._encoded.tokens[: offsets[-1]], offsets[1:] - 1
        marked = {"after": closes, "before": opens, "none": np.zeros(self.kept, np.bool_)}[eot]
        tokens[places] = mark
        if eot == "before" and len(tokens):
            tokens, places = np.concatenate([tokens[-1:], tokens[:-1]]), offsets[:-1]
        tokens = _without(tokens, places[~marked])
        lengths = np.diff(offsets) - 1 + marked
        sizes = self._rows.lengths[: self.kept]
        dealt = {}
        for split, mine in (("train", ~val), ("val", val)):
            if not mine.any():
                continue
            part = tokens if mine.all() else _taken(tokens, lengths, mine)
            row_ends = np.cumsum(lengths[mine])
            ends = closing = row_ends[closes[mine]]
            if self._rows.spans:
                some = np.flatnonzero(mine & (lengths > 0))  # an empty file ends nothing
                document = np.cumsum(opens)[some]
                closed = closes[np.flatnonzero(lengths)[-1:]]
                last = np.append(document[1:] != document[:-1], closed)[: len(some)]
                ends = np.cumsum(lengths * mine)[some[last]]
            dealt[split] = Stream(part, closing, ends, row_ends, sizes[mine])
        return dealt


def _between(flags: NDArray[np.bool_], ends: NDArray[np.int64], kept: int) -> list[int]:
    """How many flags are set in each stretch up to these ends, the rows that are not kept left out."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])[np.minimum(ends, kept)]
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


def join(found: list[Documents]) -> Documents:
    """The rows of several chunks as one."""
    if len(found) == 1:
        return found[0]
    if not found:
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64))
    if any(d.gap for d in found):
        found = [_packed(d) for d in found]
    data = np.concatenate([d.data[d.offsets[0] : d.offsets[-1]] for d in found])
    if len(data) and max(map(len, found)) == 1 == min(map(len, found)):  # tiny files
        sizes = np.array([d.offsets[1] - d.offsets[0] for d in found], np.int64)
    else:
        sizes = np.concatenate([np.diff(d.offsets) for d in found])
    tail = None if found[0].tail is None else np.concatenate([d.tail for d in found if d.tail is not None])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Documents(data, offsets, spans=any(d.spans for d in found), tail=tail)


def _packed(documents: Documents) -> Documents:
    """The same without what stands between the rows."""
    if not documents.gap:
        return documents
    ends = documents.offsets[1:] - len(documents.gap)
    between = (ends[:-1, None] + np.arange(len(documents.gap))).ravel()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.lengths)])
    return replace(documents, data=np.delete(documents.data, between), offsets=offsets, gap=b"")


def _refused(documents: Documents, row: int, reason: str) -> Reject:
    start = int(documents.offsets[row])
    end = start + int(documents.lengths[row])
    excerpt = bytes(documents.data[start : min(end, start + 320)]).decode("utf-8", "ignore")[:80]
    return Reject(documents.record(row), -1, reason, excerpt)
