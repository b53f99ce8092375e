"""Opens a source for reading: decompressed, as UTF-8, with its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardmill.detection import check_content, format_of, guess_format
from shardmill.errors import SourceError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import (
    SMALL,
    Feed,
    Fetcher,
    Scanner,
    Source,
    StreamFeed,
    compression_from,
    compression_of,
    decompressed,
    open_feed,
    transcoded,
    wide_encoding,
)


@dataclass(frozen=True)
class Opened:
    """The feed of a source, and what was detected."""

    feed: Feed
    format: str
    head: bytes
    compression: str
    """Empty: none."""


def open_source(
    source: Source,
    fetcher: Fetcher | None = None,
    reserve: Callable[[int], object] = lambda amount: None,
    index: int | None = None,
) -> Opened:
    """Open a source; a remote one needs a fetcher. Raise SourceError when it is not what its name or the user says.

    `reserve`: called with the memory that each member of a compressed stream will take, before it takes it.
    `index`: its place among the fetcher's sources; those after it are opened ahead.
    """
    feed = open_feed(source, fetcher, index)
    try:
        head = feed.read(0, SMALL)
        expected = compression_of(source.path)
        compression = compression_from(head, expected)
        if expected and not compression and (head or source.size == 0):
            raise SourceError(
                f"the name says {expected}, but the content is something else" if head else "the file is empty",
                place=source.name,
                hint="is the download complete? Without the ending it would be read as it is" if head else None,
            )
        if compression:
            raw = Scanner(feed)
            feed = StreamFeed(source.name, decompressed(raw, compression, source.name, reserve), raw)
            head = feed.read(0, SMALL)
        format = source.input_format
        if format == "auto":
            format = format_of(source.path) or guess_format(head)
            check_content(source, format, head, compression)
        if INPUT_FORMATS[format].text and (encoding := wide_encoding(head)):
            raw = Scanner(feed)
            feed = StreamFeed(source.name, transcoded(raw, encoding), raw)
            head = feed.read(0, SMALL)
        return Opened(feed, format, head, compression)
    except BaseException:
        feed.close()
        raise


def footer_bytes(source: Source) -> int:
    """Return how many bytes at the end of a source its reader wants first, judging by its name."""
    format = INPUT_FORMATS.get(format_of(source.path) or source.input_format)
    return format.footer if format else 0
