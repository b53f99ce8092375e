"""The chunks of all sources in order, and the reader of a single source, which detects its format."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from shardmill.detection import format_of
from shardmill.documents.chunks import WHOLE, Bounds, Chunk, Documents, Oversize, Position, Section
from shardmill.documents.opening import Opened, open_source
from shardmill.documents.reading import FormatReader, Memory, Reader, Reading, Room, no_tail
from shardmill.documents.tiny_files import TinyFiles
from shardmill.errors import UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.source_list import Sources
from shardmill.storage import Fetcher, FileFeed, RandomAccess, Source, check_unchanged, compression_of

if TYPE_CHECKING:
    from shardmill.documents.from_python import PythonReader


def chunks_of(
    sources: Sources, first: int, start: Position, reading: Reading, room: Room, size: int,
    fetcher: Fetcher, bounds: Bounds | None = None,
) -> Iterator[tuple[Reader, int, Chunk | None]]:  # fmt: skip
    """All chunks of about `size` from a position in source `first` on, each with its reader and its source.

    None in place of a chunk: the source ends here; this is left out after a chunk of whole sources. With `bounds` only
    documents that begin within these.
    """
    bounds = bounds or Bounds(0, 0, len(sources), 0)
    tiny = TinyFiles(sources, reading, size, fetcher.stopped)
    while first < bounds.stop:
        section = bounds.section(first)
        chunk = tiny.chunk_at(first, bounds.last) if start.offset == 0 and section == WHOLE else None
        if chunk is not None:
            yield tiny, first, chunk
            first += chunk.whole
            continue
        source = sources[first]
        reader: SourceReader | PythonReader
        if given := sources.from_python.get(source.path):
            from shardmill.documents.from_python import PythonReader

            reader = PythonReader(first, source, reading.text_field, room, given)
        else:
            reader = SourceReader(first, source, reading, room, fetcher)
        for part in reader.chunks(start, size, section):
            yield reader, first, part
        if section.end is None:
            yield reader, first, None
        first, start = first + 1, Position()


def check_tails(sources: Sources) -> None:
    """UsageError where the end of a source cannot be told, judging by its name, before hours are spent on others."""
    for source in sources:
        format = (format_of(source.path) or "text") if source.input_format == "auto" else source.input_format
        if source.path in sources.from_python or format != "text":
            raise no_tail("text from Python" if source.path in sources.from_python else format, source.name)
        if source.size is None or compression_of(source.path):
            raise no_tail("a stream" if source.size is None else "what is compressed", source.name)


def load_libraries(sources: Sources) -> None:
    """Import the libraries that these sources need, so that the budget counts their memory."""
    if not sources.arrow_free:
        for module in ("parquet", "arrow_ipc"):
            import_module(f"shardmill.documents.{module}")


def format_reader(
    index: int, source: Source, reading: Reading, room: Room, fetcher: Fetcher | None, opened: Opened,
    *, stream: bool,
) -> FormatReader:  # fmt: skip
    """The reader for the format of a source that was opened; `stream`: if it is plain text, it is a stream of text."""
    about = INPUT_FORMATS[opened.format]
    made = getattr(import_module(f"shardmill.documents.{about.module}"), about.reader)
    reader: FormatReader = made(index, source, reading, room, fetcher, opened.head, stream=stream)
    reader.unit = about.unit
    return reader


class SourceReader(Reader):
    """The reader of one source, whose format is known when it has been opened."""

    def __init__(
        self, index: int, source: Source, reading: Reading, room: Room, fetcher: Fetcher | None = None
    ) -> None:
        """A remote source needs a fetcher."""
        if source.input_format not in ("auto", *INPUT_FORMATS):
            known = ", ".join(f"`{name}`" for name in ("auto", *INPUT_FORMATS))
            raise UsageError(f"there is no input format `{source.input_format}`", hint=f"choose one of {known}")
        self._index, self._source, self._reading, self._room = index, source, reading, room
        self._fetcher, self._stream = fetcher, reading.is_stream(source)
        self._reader: FormatReader | None = None
        self._whole = False
        self.unit = INPUT_FORMATS[self._promised].unit

    @property
    def _promised(self) -> str:
        """The format that the user gave, or that the name suggests."""
        chosen = self._source.input_format
        return (format_of(self._source.path) or "text") if chosen == "auto" else chosen

    def chunks(self, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        """The chunks from a position on, in order, for one thread. SourceError for a damaged source."""
        fetcher = self._fetcher
        if self._source.remote and fetcher is not None and fetcher.cache is not None:
            self._source = fetcher.cache.local(self._source, self._index, fetcher)
        window = 0
        with closing(Memory(self._room, self._source.name)) as memory, ExitStack() as stack:

            def reserve(amount: int) -> None:
                nonlocal window
                window = max(window, amount)
                # A long stretch of text is read a second time while the feeder continues.
                memory.need("the compressed stream", (2 if self._promised == "text" else 1) * window)

            opened = open_source(self._source, fetcher, reserve, self._index)
            stack.callback(opened.feed.close)
            self._whole = isinstance(opened.feed, FileFeed) and opened.feed.whole
            if self._reading.tail is not None and opened.format != "text":
                raise no_tail(opened.format, self._source.name)
            self._reader = format_reader(
                self._index, self._source, self._reading, self._room, fetcher, opened, stream=self._stream
            )
            self.unit = self._reader.unit
            # A document's split is known at its beginning, so one part reads all of it.
            undivided = opened.format == "text" and self._reading.separator is None and not self._stream
            if undivided or not (INPUT_FORMATS[opened.format].sectioned and isinstance(opened.feed, RandomAccess)):
                if section.begin:
                    return
                section = WHOLE
            for chunk in self._reader.chunks(opened.feed, start, size, section):
                if isinstance(chunk.work, Oversize) and window:
                    chunk = chunk._replace(work=replace(chunk.work, beside=chunk.work.beside + window))
                yield chunk

    def read(self, chunk: Chunk) -> Documents:
        assert self._reader is not None, "no chunk of this source was asked for yet"
        return self._reader.read(chunk)

    def pieces(self, chunk: Chunk, size: int) -> Generator[bytes, None, int]:
        assert self._reader is not None, "no chunk of this source was asked for yet"
        return self._reader.pieces(chunk, size)

    def check(self) -> None:
        if not self._whole:
            check_unchanged(self._source)
