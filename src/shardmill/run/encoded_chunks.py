"""The result of a worker: the rows and tokens of some chunks, and what was found in each.

A worker sees only its own chunks. `run/text_batches.py` makes batches of its results, in plan order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardmill.documents import Chunk, Reader, Reject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shardmill.write import Stream

_REJECT = 256  # bytes that a reject takes, with its excerpt


@dataclass(frozen=True, slots=True)
class BadPart(Reject):
    """A part of a long document that the tokenizer refuses. It ends the run: other parts may be written already, and as
    a reject it would make the dataset depend on `--memory`."""


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


@dataclass
class EncodedChunks:
    """Some chunks, or a piece of a long one."""

    entries: list[Entry]
    counted: list[Counted]
    """One for each entry that has a chunk; of a long chunk, only its last piece has one."""
    streams: dict[str, Stream]
    """By EOT policy."""
    fallbacks: int = 0
    begins: bool = True
    """False: its first row continues the document of an earlier chunk or piece."""
    ends: bool = True
    """False: its last document continues in the next."""
    final: bool = True
    """False: more pieces of the same chunk follow."""

    @property
    def stream(self) -> bool:
        """Whether it is a stretch of a stream of text, whose rows have splits of their own."""
        return any(entry.chunk is not None and entry.chunk.stream for entry in self.entries)

    @property
    def piece(self) -> bool:
        """Whether it is a part of one document that has one split."""
        return not (self.begins and self.ends) and not self.stream

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        total = _REJECT * sum(len(counted.rejects) for counted in self.counted)
        for stream in self.streams.values():
            arrays = (*vars(stream.rows).values(), *stream.tokens.values())
            total += sum(int(array.nbytes) for array in arrays)
        return total
