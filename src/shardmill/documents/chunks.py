"""What reading hands on: chunks that are still to be read, and the documents that were in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Bytes of memory that a row takes while it is worked on, however short its text: offsets, lengths, masks, where its
# tokens end, for each EOT policy. Measured: 76-112 with one policy, up to 136 with three.
ROW_MEMORY = 144
# What a reject takes besides, until its line is written. Measured: 330 for a null, and the line.
REJECT_MEMORY = 512


def beside(rows: int, rejects: int = 0) -> int:
    """Bytes of memory that so many rows, of them so many rejects, take besides their text."""
    return ROW_MEMORY * rows + REJECT_MEMORY * rejects


class Position(NamedTuple):
    """How far a source has been read; where a later run may go on."""

    offset: int = 0
    """Bytes of (decompressed) text, or rows, that lie behind."""
    records: int = 0
    """Lines or rows that lie behind, for the places in rejects."""
    inside: bool = False
    """A document begins before this position and goes on after it."""
    state: str = ""
    """How text from Python is entered here, as its own `state_dict` says; empty: by reading it from its start."""


class Section(NamedTuple):
    """A part of a source: the records that begin between two of its bytes, counted as it is stored.

    A source that cannot be entered in its middle belongs to the section that holds its first byte.
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
    """Bytes that are about those of their text."""
    stored: int
    """Bytes that have to be read for them."""


class Bounds(NamedTuple):
    """Some consecutive sources of a plan: from a byte of the first to a byte of the last."""

    first: int
    byte: int
    last: int
    end: int
    """Of the last source, which is left out where this is 0."""

    @property
    def stop(self) -> int:
        """The index behind the last source of which anything is wanted."""
        return self.last + (self.end > 0)

    def section(self, source: int) -> Section:
        return Section(self.byte if source == self.first else 0, self.end if source == self.last else None)


class Chunk(NamedTuple):
    """A description of a few megabytes of one source, or of some small ones, to be read by a worker."""

    source: int
    """Index in the plan."""
    start: int
    """First byte of (decompressed) text, or first row."""
    end: int
    cost: int
    """Bytes of text at the most; with `beside` what a lease is computed from."""
    begins: bool = True
    """False: the first document began in an earlier chunk."""
    ends: bool = True
    """False: the last document goes on in the next chunk."""
    long: bool = False
    """A stretch without a place where it may be cut, larger than a chunk: read and encoded in pieces, in turn."""
    through: int = -1
    """Bytes of the source, as it is stored, that lie behind the end of this chunk; -1: as `end`. For progress."""
    beside: int = 0
    """Bytes of memory that are needed besides the text, as `beside()` says, and for what the payload drags along."""
    whole: int = 0
    """Sources that it holds all of, from `source` on, each of them a row; 0: it is a part of one."""
    payload: Any = None
    """What a stream that cannot be entered in the middle has read already."""
    tail: bool | None = None
    """Of a long one, whether it begins in the last share of its source; None: that does not matter."""
    state: str = ""
    """Of the position behind it."""


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
    """A record that may not be held in memory: it ends the run, since set aside, it would make the dataset depend on
    `--memory`. In the place of a reject, because only who counts records knows their numbers.
    """

    size: int
    """Bytes that would have to be held at once."""
    hint: str = ""
    """The way out, where more memory is none."""


@dataclass
class Documents:
    """The good documents of a chunk in Arrow layout, and what else was found there."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Row i is data[offsets[i] : offsets[i+1] - len(gap)]; valid UTF-8; rows may be empty."""
    records: NDArray[np.int64] | None = None
    """Line or row of each document, counted from 0 within the chunk; None: row i is record i."""
    spans: bool = False
    """The rows are spans of one document, not documents."""
    lines: int = 0
    """Lines or rows that the chunk spans, blank ones included."""
    rejects: list[Reject] = field(default_factory=list)
    repairs: NDArray[np.int64] | None = None
    """Invalid UTF-8 sequences that became U+FFFD, in each row; None: there were none."""
    tail: NDArray[np.bool_] | None = None
    """Rows that begin in the last share of their source, when that was asked for."""
    gap: bytes = b""
    """What stands in the data after each row, and after the last one perhaps: a separator. Mostly nothing."""

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


def excerpt(raw: bytes) -> str:
    """The beginning of a record, as valid text of at most 80 characters."""
    return raw[:320].decode("utf-8", "replace")[:80]


class Oversize(NamedTuple):
    """The payload of a chunk that is one record which is too large.

    Such a chunk costs as much as a full one: then it is not joined with others, which are written before the run ends.
    """

    what: str
    size: int
    hint: str = ""
    """Set where its end was not looked for: it is larger than `size`, and more memory is not the way out."""

    def documents(self, record: int, lines: int) -> Documents:
        """No document, and what ends the run."""
        more = "more than " if self.hint else ""
        reason = f"a {self.what} of {more}{self.size:,} bytes is larger than the memory allows"
        found = TooLarge(record, 0, reason, "", self.size, self.hint)
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64), lines=lines, rejects=[found])
