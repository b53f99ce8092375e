"""What a producer passes to the writer: tokens, what was read, and a position.

The writer appends the tokens, the ledger counts what was read, and the journal records the position, which only the
producer understands: a later run hands it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.core import ODD_KINDS
from shardmill.output_formats import SPLITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Reject
    from shardmill.storage import Written
    from shardmill.write.manifest import SourceEntry

ODD = ("invalid", *ODD_KINDS)
"""What is counted in the text of each source: invalid UTF-8, control characters, and special tokens as text."""


@dataclass(frozen=True)
class Rows:
    """Columns of equal length. A row is a document, a span of a stream of text, or a piece of a document that is cut
    across chunks. It may have no text: then it ends the document before it, or begins the one after it."""

    length: NDArray[np.int64]
    """Tokens of the row, with its end-of-text token."""
    bytes: NDArray[np.int64]
    """Bytes of its text."""
    val: NDArray[np.bool_]
    """Its split: val or train."""
    opens: NDArray[np.bool_]
    """A document begins with it."""
    closes: NDArray[np.bool_]
    """A document ends with it."""
    source: NDArray[np.int32]
    """The source of its text, as an index into the plan."""
    record: NDArray[np.int64]
    """Where its text begins in that source: a line, row or document, or a byte of plain text, counted from 0."""

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, wanted: slice | NDArray[np.bool_]) -> Rows:
        return Rows(*(column[wanted] for column in vars(self).values()))


def eot_places(rows: Rows, eot: str) -> NDArray[np.bool_]:
    """Which rows get an end-of-text token."""
    return {"after": rows.closes, "before": rows.opens, "none": np.zeros(len(rows), np.bool_)}[eot]


class Stream(NamedTuple):
    """Rows, and their tokens by split."""

    rows: Rows
    tokens: dict[str, NDArray[Any]]

    @property
    def ends_before(self) -> bool:
        """The document of an earlier batch ends here, and has no more tokens in this one."""
        return bool(len(self.rows) and self.rows.closes[0] and not self.rows.length[0])


class SplitCount(NamedTuple):
    """Documents and bytes of text that count for a split."""

    split: str
    documents: int
    bytes: int


@dataclass
class BatchTokens:
    """The same rows for each EOT policy of the outputs. They can be written without the batches around them."""

    streams: dict[str, Stream]
    count: SplitCount | None = None
    """What to count instead of the documents and bytes of the rows; None: count those."""


class FinishedFiles(NamedTuple):
    """Complete files that another process has written, in place of tokens."""

    files: list[tuple[int, str, Written]]
    """The number of the output, the split, and what the manifest says."""
    counts: list[dict[str, dict[str, int]]]
    """Of each output: tokens, documents and bytes of text in each split."""
    documents: Iterable[tuple[str, Rows]] = ()
    """For the documents table: (split, some of its documents)."""


@dataclass(frozen=True)
class FoundInSource:
    """What was read of one source."""

    source: int
    """Its index in the plan."""
    unit: str = "byte"
    """What a place in it counts."""
    documents: int = 0
    empty: int = 0
    tokens: int = 0
    """Without end-of-text tokens."""
    replaced: int = 0
    """Bytes of invalid UTF-8."""
    fallbacks: int = 0
    odd: dict[str, int] = field(default_factory=dict)
    """How often each of `ODD` was found; those that were."""
    rejects: Sequence[Reject] = ()
    first_record: int = 0
    first_byte: int = 0
    """Where the records and bytes of the rejects are counted from."""
    through: int = -1
    """Stored bytes of the source that have been read, for progress; -1: as before."""
    carried: int = 0
    """Bytes of text that were read and are not counted for a split yet: their document has not ended."""
    place: str = ""
    """The last reject, or where the invalid UTF-8 is, for people."""
    ended: bool = False
    """The source was read to its end."""


class FoundSources(NamedTuple):
    """What was read of many small sources, each of which is a document or empty."""

    first: int
    lengths: NDArray[np.int64]
    """The tokens of each, without end-of-text tokens."""
    fallbacks: int = 0


class FoundPart(NamedTuple):
    """What another process has counted and listed."""

    totals: dict[str, int]
    first: SourceEntry | None
    """The first source that it has read to the end; earlier parts may have read some of it."""
    sources: Iterable[bytes]
    """Lines of all such sources, many at a time."""
    here: dict[str, int]
    """Counts of the source that is open at its end."""
    odd: dict[str, int]
    rejects: Iterable[list[bytes]]
    """Lines of rejects, some at a time."""
    bytes: int
    """Stored bytes of the sources that it has read, for progress."""
    place: str


class Batch(NamedTuple):
    """The next tokens in order, and what was read for them."""

    tokens: BatchTokens | FinishedFiles | None
    found: Sequence[FoundInSource | FoundSources | FoundPart]
    position: dict[str, Any] | None
    """Where a later run continues, as JSON; None: it cannot continue after this batch."""


class Share(NamedTuple):
    """The part of a batch that goes to one split."""

    split: str
    tokens: NDArray[Any]
    rows: Rows
    """The rows of these tokens."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where documents end in this split, counted from the start of `tokens`, unless it is there."""
        ends = np.cumsum(self.rows.length)[self.rows.closes]
        return ends[ends > 0] if len(ends) and not ends[0] else ends

    @property
    def documents(self) -> int:
        """A document counts in the split where it ends."""
        return int(np.count_nonzero(self.rows.closes))

    @property
    def bytes(self) -> int:
        return int(self.rows.bytes.sum())


def shares(stream: Stream, *, first: int = 0) -> Iterator[Share]:
    """Divide a batch's tokens among the splits. Val takes the next `first` of them, whatever the rows say."""
    for name in SPLITS:
        mine = stream.rows.val if name == "val" else ~stream.rows.val
        rows = stream.rows if mine.all() else stream.rows[mine]
        tokens = stream.tokens.get(name)
        if tokens is None:  # a document may begin or end here all the same, if its end-of-text token is elsewhere
            if rows.closes.any() or rows.opens.any():
                yield Share(name, np.empty(0, np.int64), rows)
        elif not 0 < first < len(tokens):
            yield Share("val" if first else name, tokens, rows)
        else:
            before, after = _cut(rows, first)
            yield Share("val", tokens[:first], before)
            yield Share(name, tokens[first:], after)


def _cut(rows: Rows, border: int) -> tuple[Rows, Rows]:
    """The rows before and after a token. One that is cut there is in both, and counts in the second."""
    stops = np.cumsum(rows.length)
    whole = int(np.searchsorted(stops, border, side="right"))
    inside = border - int(stops[whole - 1]) if whole else border
    before, after = rows[: whole + (inside > 0)], rows[whole:]
    if inside:
        before = Rows(*(column.copy() for column in vars(before).values()))
        before.length[-1], before.bytes[-1], before.closes[-1] = inside, 0, False
        after = replace(after, length=after.length.copy())
        after.length[0] -= inside
    return before, after
