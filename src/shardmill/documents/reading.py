"""The options of reading, the memory for it, and the base classes of all readers."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Protocol

from shardmill.documents.chunks import (
    WHOLE,
    Chunk,
    Documents,
    Fetched,
    Part,
    Position,
    Section,
    Stored,
    Work,
    text_pieces,
)
from shardmill.errors import BudgetError, UsageError
from shardmill.storage import BOM, Feed, Fetcher, Source, read_range

SPAN = 65536
"""Bytes of a stream of text that go to one split, about."""
STREAM_BYTES = 16 << 20
"""The size as listed from which on a text file without separators is a stream of text and not one document. It is the
same for everybody: memory, chunks and parts must not change what a document is."""


@dataclass(frozen=True)
class Reading:
    """The options that decide what the documents of the sources are."""

    text_field: str = "text"
    separator: bytes | None = None
    cut: Callable[[bytes, int], int] | None = None
    """cut(window, at): the first token-safe place at or after `at` inside the window, or -1.
    None: this tokenizer has no known safe cuts."""
    only_source: bool = False
    """The plan has one source."""
    stream_bytes: int = STREAM_BYTES
    spans: bool = False
    """A stream of text is divided into spans, because each may have a split of its own."""
    tail: float | None = None
    """Rows that begin in this last share of a plain text file are flagged."""
    limited: bool = False
    """The run may end inside a chunk, so no chunk holds several sources."""

    def is_stream(self, source: Source) -> bool:
        """Whether a text source, as it was listed, is a stream of text and not a document.

        It is if it has no separators and is all there is to read, or is large, or nobody knows how large it is.
        """
        large = source.size is None or source.size >= self.stream_bytes
        return self.separator is None and (self.only_source or large)


class Room(Protocol):
    """The memory that readers may use. It must not change any bytes."""

    @property
    def largest(self) -> int:
        """The largest record, in bytes, that may be read and encoded at once."""

    @property
    def largest_row(self) -> int:
        """The largest row that may be held in memory, to be encoded in pieces; 0: nothing is encoded in pieces."""

    def hold(self, amount: int, what: str, place: str) -> AbstractContextManager[None]:
        """Reserve memory for a step of the feeder that no lease covers, such as a page to be decompressed whole.

        BudgetError if there will never be enough; it names an amount that suffices.
        """


@dataclass(frozen=True)
class FreeRoom:
    """Room outside of a run: nothing is counted."""

    largest: int = 64 << 20
    largest_row: int = 0

    def hold(self, amount: int, what: str, place: str) -> AbstractContextManager[None]:
        return nullcontext()


class UndividedRoom:
    """The memory of another room, where no record is encoded in pieces, or is larger than `largest`."""

    largest_row = 0

    def __init__(self, room: Room, largest: int = sys.maxsize) -> None:
        self.largest, self.hold = min(room.largest, largest), room.hold


class Memory:
    """The memory that the feeder holds for a source: the sum of several amounts, reserved anew when one changes."""

    def __init__(self, room: Room, name: str) -> None:
        self._room, self._name = room, name
        self._parts: dict[str, int] = {}
        self._held = ExitStack()

    def need(self, what: str, amount: int, later: int = 0) -> None:
        """From now on so many bytes are needed for this.

        `later`: bytes that may be needed in addition. They are not held, but the amount that an error names has to
        suffice for them too.
        """
        if amount == self._parts.get(what, 0):
            return
        self._parts[what] = amount
        self._held.close()
        total = sum(self._parts.values())
        try:
            self._held.enter_context(self._room.hold(total, what, self._name))
        except BudgetError:
            del self._parts[what]
            self._held.enter_context(self._room.hold(total + later, what, self._name))

    def fits(self, what: str, amount: int) -> bool:
        """The same; False: there will never be so much."""
        try:
            self.need(what, amount)
        except BudgetError:
            return False
        return True

    def close(self) -> None:
        self._held.close()


STREAMS = "a stream, what is compressed, or UTF-16"
"""The kinds of text whose end is known only when it has come."""


def no_tail(kind: str, name: str) -> UsageError:
    """The error of a source whose end cannot be set aside."""
    what = f"the end of a source can be set aside only for plain text, not for {kind}"
    return UsageError(what, place=name, hint="give `--val` a fraction or `first:N`")


class Reader(ABC):
    """Turns chunks into documents."""

    unit = "byte"
    """What a place counts: `byte`, `line`, `row` or `document`."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Documents:
        """The documents of a chunk; any thread may call it."""

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        """The text of a long chunk in pieces of whole characters and about `size` bytes.

        Returns how many invalid sequences became U+FFFD.
        """
        documents = self.read(chunk)
        yield from text_pieces(documents.data[documents.offsets[0] : documents.offsets[-1]], size)
        return 0

    def check(self) -> None:  # noqa: B027 - the feeder reads tiny files and text from Python once
        """Raise SourceError when the source changed since it was found."""

    def place(self, record: int, byte: int) -> str:
        """A place in the source, for messages."""
        return f"{self.unit} {byte if self.unit == 'byte' else record + 1:,}"


class FormatReader(Reader):
    """Base class of formats: cuts a source into chunks, and turns these into documents."""

    def __init__(
        self, index: int, source: Source, reading: Reading, room: Room, fetcher: Fetcher | None, head: bytes,
        *, stream: bool = False,
    ) -> None:  # fmt: skip
        """`head`: the beginning of the text. `stream`: it is a stream of text, if it is plain text."""
        self._index, self._source, self._reading, self._room = index, source, reading, room
        self._fetcher, self._head, self._stream = fetcher, head, stream
        self._field = reading.text_field
        self._text_start = len(BOM) if head.startswith(BOM) else 0

    @abstractmethod
    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on, in order; with a section only where the format is `sectioned`."""

    def _work(self, feed: Feed, begin: int, end: int) -> Work:
        """The work of a chunk that needs these bytes, which a worker may be able to read itself."""
        return Stored() if feed.shared else Fetched(feed.read(begin, end))

    def _bytes(self, chunk: Chunk, begin: int) -> bytes:
        """The bytes that the work of a chunk needs, from `begin` on."""
        return chunk.work.data if isinstance(chunk.work, Fetched) else read_range(self._source, begin, chunk.end)

    def parts(self, feed: Feed) -> Sequence[Part]:
        """The groups of rows at which a sample may begin; none where the format has no such groups."""
        return ()
