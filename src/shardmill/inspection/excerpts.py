"""Excerpts of a source: a few stretches of whole documents from all over it, or all of it, and what each stands for.

Nothing here reads further than it was told to: a terabyte without a line break costs a window.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardmill.documents import Chunk, Documents
from shardmill.errors import SourceError

if TYPE_CHECKING:
    from shardmill.documents.formats import FormatReader

UNIT = 512 * 1024
"""Bytes of an excerpt, about."""
clock = time.thread_time
"""Work is measured by the CPU time of the thread: other programs on the machine, or a slow server, do not count."""
SKIP = 8
"""Of a stream that only goes forward at most so many times what is looked at is passed over."""


@dataclass
class Excerpt:
    """Some documents, and how many bytes of the source, as it is stored, they stand for."""

    documents: Documents
    span: int
    """Bytes of (decompressed) text that it covers, or whatever else its source is measured by."""
    records: int
    """Documents, empty and rejected ones included; 0 where it is a piece of one."""
    raw: bytes = b""
    """The text as it stands in the source, where that is plain text."""
    stored: float = 0.0
    feeding: float = 0.0
    """Seconds that the feeder would need for it: to decompress, or to find where documents end."""
    reading: float = 0.0
    """Seconds that a worker would need to read it into documents."""


@dataclass
class Look:
    """What a source turned out to be, and what was read of it."""

    most: int
    format: str = ""
    compression: str = ""
    excerpts: list[Excerpt] = field(default_factory=list)
    error: SourceError | None = None
    """Why reading stopped; a run would stop there too."""
    whole: bool = False
    """Everything that the source holds is in the excerpts."""
    doubt: float = 0.0
    """The standard error, as a share, of the stored bytes that the excerpts are said to stand for."""

    @property
    def full(self) -> bool:
        """Whether as much text is held as may be."""
        return sum(len(excerpt.documents.data) for excerpt in self.excerpts) >= self.most

    def take(self, reader: FormatReader, chunk: Chunk, started: float) -> Excerpt:
        """Read a chunk; what this thread has worked since `started` was the feeder's work."""
        between = clock()
        documents = reader.read(chunk)
        read = clock() - between
        records = len(documents) + len(documents.rejects)
        excerpt = Excerpt(documents, chunk.end - chunk.start, records, feeding=between - started, reading=read)
        self.excerpts.append(excerpt)
        return excerpt

    def passed(self, started: float) -> None:
        """Passing over what is not looked at is the feeder's work as well."""
        if self.excerpts:
            self.excerpts[-1].feeding += clock() - started

    def shorten(self, excerpt: Excerpt, most: int) -> float:
        """Keep so many bytes of an excerpt's documents, about, from its first on; gives the share that was kept."""
        documents = excerpt.documents
        rows, size = len(documents), len(documents.data)
        # A share of the rows, whatever their size: up to a number of bytes, long ones would be left out more often.
        kept = max(1, math.ceil(rows * most / size)) if size > most else rows
        if kept >= rows:
            return 1.0
        end, last = int(documents.offsets[kept]), documents.record(kept)
        excerpt.documents = replace(
            documents,
            data=documents.data[:end],
            offsets=documents.offsets[: kept + 1],
            records=None if documents.records is None else documents.records[:kept],
            rejects=[reject for reject in documents.rejects if reject.record < last],
            lines=last,
        )
        share = end / size
        excerpt.records = kept + len(excerpt.documents.rejects)
        excerpt.feeding *= share
        excerpt.reading *= share
        return share

    def weigh(self, rate: float, passed: int, doubt: float = 0.0) -> None:
        """Say what each excerpt stands for: `rate` stored bytes for each of its span, after `passed` were passed."""
        self.doubt = doubt
        seen = sum(excerpt.span for excerpt in self.excerpts)
        for excerpt in self.excerpts:
            excerpt.stored = excerpt.span * rate
            excerpt.feeding *= min(1.0, seen / max(1, passed))
