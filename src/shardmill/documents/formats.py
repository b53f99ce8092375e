"""What a format's reader gives, and the reader of a source, which finds out the format that it has."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from shardmill import core
from shardmill.documents.chunks import WHOLE, Bounds, Chunk, Documents, Part, Position, Section
from shardmill.documents.reading import Reading
from shardmill.documents.tiny_files import TinyFiles
from shardmill.errors import SourceError, UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import (
    Feed,
    FileFeed,
    Opened,
    RandomAccess,
    Source,
    Sources,
    check_unchanged,
    format_of,
    open_source,
)

if TYPE_CHECKING:
    from shardmill.documents.text import TextReader


class FormatReader(Protocol):
    """What a format's class gives; made as Class(index, source, reading, reopen, head).

    `reopen` opens the bytes anew, from their start; `head` is the beginning of the text.
    """

    unit: str

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """Those of a section, only where the format is `sectioned`."""

    def read(self, chunk: Chunk) -> Documents: ...

    def place(self, record: int, byte: int) -> str: ...

    def parts(self, feed: Feed) -> Sequence[Part]:
        """The parts that can be entered, for samples, where that is told by rows; mostly there are none."""

    def parts_within(self, part: int) -> Sequence[Part]:
        """The parts of one of these, where it has any that can be entered."""


class Reader(Protocol):
    """Chunks as documents."""

    @property
    def unit(self) -> str:
        """`line`, `row` or `byte`: what a place counts."""

    def read(self, chunk: Chunk) -> Documents:
        """The documents of a chunk; any thread may call it."""

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        """The text of a long chunk, which only text has, in pieces of whole characters and of about `size` bytes.

        Returns how many invalid sequences became U+FFFD.
        """

    def check(self) -> None:
        """Raise SourceError when the source changed since it was found."""

    def place(self, record: int, byte: int) -> str:
        """A place in the source, for people."""


class SourceReader(Reader, Protocol):
    """One source as chunks, and these as documents."""

    def chunks(self, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on, lazily and in order, for one thread; SourceError for a damaged source."""


def reader_for(index: int, source: Source, reading: Reading) -> SourceReader:
    """The reader of a source, which is opened only when its chunks are asked for."""
    if source.input_format != "auto" and source.input_format not in INPUT_FORMATS:
        known = ", ".join(f"`{name}`" for name in ("auto", *INPUT_FORMATS))
        raise UsageError(f"there is no input format `{source.input_format}`", hint=f"choose one of {known}")
    return _SourceReader(index, source, reading)


def chunks_of(
    sources: Sources, first: int, start: Position, reading: Reading, size: int, bounds: Bounds | None = None
) -> Iterator[tuple[Reader, int, Chunk | None]]:
    """All chunks from a position in a source on, each with its reader and its source; no chunk: the source ends here.

    Of a chunk of whole sources that is not said again. With `bounds` only what begins within these.
    """
    bounds = bounds or Bounds(0, 0, len(sources), 0)
    tiny = TinyFiles(sources, reading, size)
    while first < bounds.stop:
        section = bounds.section(first)
        chunk = tiny.chunk_at(first, bounds.last) if start.offset == 0 and section == WHOLE else None
        if chunk is not None:
            yield tiny, first, chunk
            first += chunk.whole
            continue
        reader = _reader_in(sources, first, reading)
        for part in reader.chunks(start, size, section):
            yield reader, first, part
        if section.end is None:
            yield reader, first, None
        first, start = first + 1, Position()


def _reader_in(sources: Sources, index: int, reading: Reading) -> SourceReader:
    source = sources[index]
    if source.path not in sources.given:
        return reader_for(index, source, reading)
    from shardmill.documents.from_python import PythonReader

    return PythonReader(index, source, reading, sources.given[source.path])


def load_libraries(sources: Sources) -> None:
    """Import now what the readers of these sources will import, so that a budget sees what it takes."""
    if not sources.light:
        import_module("shardmill.documents.parquet")
    elif not core.available():
        import_module("pyarrow")


def format_reader(
    index: int, source: Source, reading: Reading, opened: Opened, reopen: Callable[[], Feed]
) -> FormatReader:
    """The reader of a source that was opened."""
    return _class_of(opened.format)(index, source, reading, reopen, opened.head)


@cache
def _class_of(format: str) -> Callable[..., FormatReader]:
    about = INPUT_FORMATS[format]
    made: Callable[..., FormatReader] = getattr(import_module(f"shardmill.documents.{about.module}"), about.reader)
    return made


class _SourceReader:
    __slots__ = ("_index", "_reader", "_reading", "_source", "_whole")

    def __init__(self, index: int, source: Source, reading: Reading) -> None:
        self._index = index
        self._source = source
        self._reading = reading
        self._reader: FormatReader | None = None
        self._whole = False

    @property
    def unit(self) -> str:
        if self._reader is not None:
            return self._reader.unit
        return INPUT_FORMATS[self._promised].unit

    @property
    def _promised(self) -> str:
        """The format by what the user or the name says."""
        told = self._source.input_format
        return (format_of(self._source.path) or "text") if told == "auto" else told

    def chunks(self, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        fetcher = self._reading.fetcher
        if self._source.remote and fetcher is not None and fetcher.cache is not None:
            self._source = fetcher.cache.local(self._source, fetcher)
        with ExitStack() as held:

            def need(window: int) -> None:
                # Of text a long stretch is read a second time, while the feeder goes on.
                amount = 2 * window if self._promised == "text" else window
                held.enter_context(self._reading.hold(amount, "the compressed stream", self._source.name))

            opened = open_source(self._source, fetcher, need)
            held.callback(opened.feed.close)
            self._whole = isinstance(opened.feed, FileFeed) and opened.feed.whole
            if self._reading.tail is not None and opened.format != "text":
                raise UsageError(
                    f"the end of a source can be set aside only for text, not for {opened.format}",
                    place=self._source.name,
                    hint="give `--val` a fraction or `first:N`",
                )
            self._reader = format_reader(self._index, self._source, self._reading, opened, self._reopen)
            if not (INPUT_FORMATS[opened.format].sectioned and isinstance(opened.feed, RandomAccess)):
                if section.begin:
                    return
                section = WHOLE
            yield from self._reader.chunks(opened.feed, start, size, section)

    def _reopen(self) -> Feed:
        return open_source(self._source, self._reading.fetcher).feed

    def _opened(self) -> FormatReader:
        if self._reader is None:
            raise SourceError("no chunk of this source was asked for yet", place=self._source.name)
        return self._reader

    def read(self, chunk: Chunk) -> Documents:
        return self._opened().read(chunk)

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        return cast("TextReader", self._opened()).pieces(chunk, size)

    def check(self) -> None:
        if not self._whole:
            check_unchanged(self._source)

    def place(self, record: int, byte: int) -> str:
        if self._reader is not None:
            return self._reader.place(record, byte)
        return f"{self.unit} {byte if self.unit == 'byte' else record + 1:,}"
