"""What readers produce: chunks, which are still to be read, and the documents that were in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.storage import is_valid

# Bytes of memory that a row takes while its chunk is processed, besides its text: offsets, lengths, masks, where its
# tokens end, for each EOT policy. Measured: 76-112 with one policy, up to 136 with three, before
# there were source and record, which take 12.
ROW_MEMORY = 160
# What a reject takes in addition until its line is written. Measured: 330 for a null, and the line.
REJECT_MEMORY = 512


def overhead(rows: int, rejects: int = 0) -> int:
    """Bytes of memory that so many rows, some of them rejects, take besides their text."""
    return ROW_MEMORY * rows + REJECT_MEMORY * rejects


class Position(NamedTuple):
    """How far a source has been read, and where a later run may continue."""

    offset: int = 0
    """Bytes of (decompressed) text, or rows, before it."""
    records: int = 0
    """Lines or rows before it, for the places in rejects."""
    inside: bool = False
    """A document begins before this position and continues after it."""
    state: str = ""
    """The `state_dict` of text from Python at this position; empty: it is read again from its start."""


class Section(NamedTuple):
    """A part of a source: the records that begin between two of its stored bytes.

    A source that can be read only from its start belongs to the section that holds its first byte.
    """

    begin: int = 0
    end: int | None = None
    """None: to the end of the source."""

    def holds(self, byte: int) -> bool:
        return self.begin <= byte and (self.end is None or byte < self.end)


WHOLE = Section()


class Part(NamedTuple):
    """Consecutive rows of a source that can be read by themselves."""

    rows: int
    size: int
    """Bytes of their text, about."""
    stored: int
    """Bytes that have to be read for them."""


class Bounds(NamedTuple):
    """Some consecutive sources of a plan: from a byte of the first to a byte of the last."""

    first: int
    byte: int
    last: int
    end: int
    """In the last source, which is left out where this is 0."""

    @property
    def stop(self) -> int:
        """The index after the last source that is not left out."""
        return self.last + (self.end > 0)

    def section(self, source: int) -> Section:
        return Section(self.byte if source == self.first else 0, self.end if source == self.last else None)


class Lease(NamedTuple):
    """What the memory for a chunk is calculated from."""

    text: int = 0
    """Upper bound of the bytes of text."""
    overhead: int = 0
    """Bytes of memory that are needed besides: see `overhead()`."""


class Work:
    """What is left to do for a chunk. Each reader has kinds of its own."""

    tail: bool | None = None
    """Whether a long text begins in the last share of its source; None: that does not matter."""


DONE = Work()
"""Nothing: the chunk has been read."""


@dataclass(frozen=True)
class Stored(Work):
    """The worker reads the bytes of the chunk from the source."""


@dataclass(frozen=True)
class Fetched(Work):
    """The feeder has read them."""

    data: bytes


class Chunk(NamedTuple):
    """A description of a few megabytes of one source, or of some tiny ones, to be read by a worker."""

    source: int
    """Index in the plan."""
    start: int
    """First byte of (decompressed) text, or first row."""
    after: Position
    """Where the next chunk begins; without the number of records, which the worker counts."""
    lease: Lease = Lease()
    work: Work = DONE
    begins: bool = True
    """False: the first document began in an earlier chunk."""
    stream: bool = False
    """It is a stretch of a stream of text: its rows are spans, and neighbours in one split are a document there."""
    through: int = -1
    """Stored bytes of the source up to the end of this chunk, for progress; -1: as `end`."""
    whole: int = 0
    """How many whole sources it holds, from `source` on, each of them a row; 0: it is a part of one source."""
    long: bool = False
    """It is one record, or a stretch, that is too large for a worker: the writer's thread encodes it in pieces."""

    @property
    def end(self) -> int:
        """The byte or row after its last."""
        return self.after.offset

    @property
    def ends(self) -> bool:
        """Whether its last document ends with it."""
        return not self.after.inside


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is not a document, and why."""

    record: int
    """Line or row, counted from 0 within the chunk; -1 where there are none."""
    byte: int
    """Where it begins, counted from the start of the chunk; -1 where that is unknown."""
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class TooLarge(Reject):
    """A record that is too large for the memory. It ends the run: as a reject it would make the dataset depend on
    `--memory`. It is listed among the rejects because only the writer, which counts records, knows its number.
    """

    size: int
    """Its bytes."""
    hint: str = ""
    """What to do where more memory does not help."""
    row: bool = False
    """It is a line or a row, which may be encoded in pieces."""
    beside: int = 0
    """Bytes of memory that reading it takes in addition to what any record of its size takes."""


@dataclass
class Documents:
    """The good documents of a chunk in Arrow layout, and what else was found there."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Row i is data[offsets[i] : offsets[i+1] - len(gap)]; valid UTF-8; rows may be empty."""
    records: NDArray[np.int64] | None = None
    """Line or row of each document, counted from 0 within the chunk; None: row i is record i."""
    starts: NDArray[np.int64] | None = None
    """Of plain text: the byte at which each row begins, counted from the start of the chunk."""
    lines: int = 0
    """Lines or rows that the chunk spans, blank ones included."""
    rejects: list[Reject] = field(default_factory=list)
    repairs: NDArray[np.int64] | None = None
    """Invalid UTF-8 sequences that became U+FFFD, in each row; None: there were none."""
    tail: NDArray[np.bool_] | None = None
    """Rows that begin in the last share of their source, when that was asked for."""
    gap: bytes = b""
    """The separator that follows each row in the data, except perhaps the last one."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each row."""
        return self.offsets[1:] - self.offsets[:-1] - len(self.gap)

    def replaced(self, rows: int) -> int:
        """Invalid UTF-8 sequences that became U+FFFD in the first so many rows."""
        return 0 if self.repairs is None else int(self.repairs[:rows].sum())

    def record(self, row: int) -> int:
        """The line or row of the source that a document came from, counted from 0 within the chunk."""
        return row if self.records is None else int(self.records[row])

    def packed(self) -> Documents:
        """The same documents with nothing between the rows."""
        if not self.gap:
            return self
        ends = self.offsets[1:] - len(self.gap)
        between = (ends[:-1, None] + np.arange(len(self.gap))).ravel()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        return replace(self, data=np.delete(self.data, between), offsets=offsets, gap=b"")


def join(found: list[Documents]) -> Documents:
    """The rows of several chunks as one."""
    if len(found) == 1:
        return found[0]
    if not found:
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64))
    found = [documents.packed() for documents in found]
    data = np.concatenate([d.data[d.offsets[0] : d.offsets[-1]] for d in found])
    sizes = np.concatenate([np.diff(d.offsets) for d in found])
    tail = None if found[0].tail is None else np.concatenate([d.tail for d in found if d.tail is not None])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Documents(data, offsets, tail=tail)


def rows_are_utf8(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Whether each row is UTF-8: all of them together are, and none begins inside a character."""
    begins = offsets[:-1][np.diff(offsets) > 0]
    return not (data[begins] & 0xC0 == 0x80).any() and is_valid(data[offsets[0] : offsets[-1]])


def excerpt(raw: bytes) -> str:
    """The beginning of a record, as valid text of at most 80 characters."""
    return raw[:320].decode("utf-8", "replace")[:80]


def text_pieces(text: NDArray[np.uint8], size: int) -> Iterator[bytes]:
    """A text of UTF-8 in pieces of whole characters and at most `size` bytes."""
    begin, end = 0, len(text)
    while begin < end:
        stop = min(begin + size, end)
        while stop < end and text[stop] & 0xC0 == 0x80:
            stop -= 1
        yield text[begin:stop].tobytes()
        begin = stop


@dataclass(frozen=True)
class Oversize(Work):
    """One record which is too large.

    The lease of such a chunk is that of a full one, so that it is not grouped with others, which are written before the
    run ends.
    """

    what: str
    size: int
    hint: str = ""
    """Set where its end was not looked for: it is larger than `size`, and more memory does not help."""
    beside: int = 0
    """Bytes of memory that reading it takes in addition to what any record of its size takes."""

    def documents(self, record: int = 0, lines: int = 1) -> Documents:
        """No document, and the record that ends the run."""
        more = "more than " if self.hint else ""
        reason = f"a {self.what} of {more}{self.size:,} bytes is larger than the memory allows"
        found = TooLarge(record, 0, reason, "", self.size, self.hint, self.what in ("line", "row"), self.beside)
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64), lines=lines, rejects=[found])
