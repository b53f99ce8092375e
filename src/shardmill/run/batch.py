"""What a producer passes to the writer: a batch of tokens by split, with a table of its rows.

A row is a document, a span of a stream of text, or a piece of a document that is cut across chunks. A producer passes
its batches through `settled`, after which each of them can be written without those around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.core import ODD_KINDS
from shardmill.documents import Chunk, Reader, Reject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run.writer import Writer

ODD = ("invalid", *ODD_KINDS)
"""What is counted in the text of each source: invalid UTF-8, control characters, and special tokens as text."""
_REJECT = 256  # bytes that a reject takes, with its excerpt


@dataclass(frozen=True, slots=True)
class BadPart(Reject):
    """A part of a long document that the tokenizer refuses. It ends the run: other parts may be written already, and as
    a reject it would make the dataset depend on `--memory`."""


@dataclass(frozen=True)
class Rows:
    """Columns of equal length. A row may have no text: it ends the document before it, or begins the one after it."""

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
    """The rows of a batch, and their tokens by split."""

    rows: Rows
    tokens: dict[str, NDArray[Any]]

    @property
    def ends_before(self) -> bool:
        """The document of an earlier batch ends here, and has no more tokens in this one."""
        return bool(len(self.rows) and self.rows.closes[0] and not self.rows.length[0])


class Entry(NamedTuple):
    """A chunk, its reader and its (first) source; no chunk: the source ends here."""

    reader: Reader
    source: int
    chunk: Chunk | None


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
    odd: NDArray[np.int64] | None = None
    """How often each of `ODD` was found: one row, or one for each source of a chunk of whole sources; None: nowhere."""


class OpenDocument(NamedTuple):
    """A document that is being written."""

    split: str = ""
    """Empty: there is none."""
    bytes: int = 0
    """Bytes of its text that are not counted for a split yet."""


class SplitCount(NamedTuple):
    """Documents and bytes of text that count for a split."""

    split: str
    documents: int
    bytes: int


@dataclass
class Batch:
    """Encoded chunks, as the writer needs them."""

    entries: list[Entry]
    counted: list[Counted]
    """One for each entry that has a chunk."""
    streams: dict[str, Stream]
    """By EOT policy."""
    fallbacks: int = 0
    stream: bool = False
    """It is a stretch of a stream of text, whose rows have splits of their own."""
    begins: bool = True
    """False: its first row continues the document of an earlier batch."""
    ends: bool = True
    """False: its last document continues in the next batch."""
    final: bool = True
    """False: more of the same chunk follows."""
    ended: int = 0
    """Documents that end in it and are not in `counted`."""
    open: OpenDocument | None = None
    """The document that continues in the next batch; set by `settled`."""
    split_count: SplitCount | None = None
    """What to count instead of the documents and bytes of the rows; None: count those."""
    after: Callable[[Writer], None] | None = None
    """Changes the writer's state after the batch was written, in the same step."""

    @property
    def empty(self) -> bool:
        """Whether it says only that its producer is alive, and waits for something."""
        return not (self.entries or self.streams or self.after)

    @property
    def piece(self) -> bool:
        """Whether it is a part of one document that has one split."""
        return not self.stream and not (self.begins and self.ends)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        total = _REJECT * sum(len(counted.rejects) for counted in self.counted)
        for stream in self.streams.values():
            arrays = (*vars(stream.rows).values(), *stream.tokens.values())
            total += sum(int(array.nbytes) for array in arrays)
        return total
