"""What reading needs to know of the options, and what a reader does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from shardmill.documents.chunks import WHOLE, Chunk, Documents, Part, Position, Section
from shardmill.errors import UsageError
from shardmill.storage import BOM, Feed, Fetcher, Source

SPAN = 65536


def _unlimited(
    amount: int, what: str, place: str, longest: Callable[[], int | None] = lambda: 0
) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Reading:
    """What reading needs; of this, `gaps`, `largest`, `hold` and `fetcher` must not change a dataset's bytes."""

    text_field: str = "text"
    separator: bytes | None = None
    cut: Callable[[bytes, int], int] | None = None
    """cut(window, at): the first token-safe place at or after `at` inside the window, or -1.
    None: this tokenizer has no known safe cuts."""
    spans: bool = False
    """Text without a separator is to be dealt in spans."""
    gaps: bool = False
    """Documents may be handed on as they stand, with the separators between them."""
    tail: float | None = None
    """Rows that begin in this last share of a plain text file are flagged."""
    limited: bool = False
    """Not all of a chunk may be wanted, so none holds several sources."""
    largest: int = 64 << 20
    """The largest record, in bytes, that may be held in memory at once."""
    hold: Callable[..., AbstractContextManager[None]] = _unlimited
    """hold(bytes, what, place, longest=…): memory for a step of the feeder that no lease covers, such as a large page
    that has to be decompressed whole; to be asked for before it is allocated. BudgetError where there is never so much;
    it names what suffices, also for the longest record that will come out of it. That is asked for only then."""
    fetcher: Fetcher | None = None
    """What fetches the bytes of remote sources in a run; None: one that is shared and holds little."""


class Memory:
    """What the feeder holds of a source's data, asked for as one amount whenever a part of it changes."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading, self._name = reading, name
        self._parts: dict[str, int] = {}
        self._held = ExitStack()

    def need(self, what: str, amount: int) -> None:
        """So many bytes are needed for this now, and no others."""
        if amount == self._parts.get(what, 0):
            return
        self._parts[what] = amount
        self._held.close()
        self._held.enter_context(self._reading.hold(sum(self._parts.values()), what, self._name))

    def close(self) -> None:
        self._held.close()


def no_tail(kind: str, name: str) -> UsageError:
    """The error of a source whose end cannot be set aside."""
    what = f"the end of a source can be set aside only for plain text, not for {kind}"
    return UsageError(what, place=name, hint="give `--val` a fraction or `first:N`")


class Reader:
    """Chunks as documents."""

    unit = "byte"
    """Or `line`, `row`, `document`: what a place counts."""

    def read(self, chunk: Chunk) -> Documents:
        """The documents of a chunk; any thread may call it."""
        raise NotImplementedError

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        """The text of a long chunk, which only text has, in pieces of whole characters and of about `size` bytes.

        Returns how many invalid sequences became U+FFFD.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Raise SourceError when the source changed since it was found."""

    def place(self, record: int, byte: int) -> str:
        """A place in the source, for people."""
        return f"{self.unit} {byte if self.unit == 'byte' else record + 1:,}"


class FormatReader(Reader):
    """A source of one format as chunks, and these as documents."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        """`reopen` opens the bytes anew, from their start; `head` is the beginning of the text."""
        self._index, self._source, self._reading = index, source, reading
        self._reopen, self._head = reopen, head
        self._field = reading.text_field
        self._text_start = len(BOM) if head.startswith(BOM) else 0

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on, in order; those of a section, only where the format is `sectioned`."""
        raise NotImplementedError

    def parts(self, feed: Feed) -> Sequence[Part]:
        """The parts that can be entered, for samples, where that is told by rows; mostly there are none."""
        return ()

    def parts_within(self, part: int) -> Sequence[Part]:
        """The parts of one of these, where it has any that can be entered."""
        return ()
