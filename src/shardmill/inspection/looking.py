"""One source, looked into: what it is, and excerpts of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from shardmill.documents import FORMATS, Position, Reading
from shardmill.errors import SourceError
from shardmill.inspection.csv_windows import CsvVisit, Held
from shardmill.inspection.excerpts import Look
from shardmill.inspection.row_windows import RowVisit
from shardmill.inspection.text_windows import TextVisit
from shardmill.storage import Source
from shardmill.storage.compressed import compression_from
from shardmill.storage.feeds import Feed, FileFeed, StreamFeed, read_range
from shardmill.storage.opening import open_source
from shardmill.storage.ranges import RemoteFeed

if TYPE_CHECKING:
    from shardmill.documents.formats import FormatReader


def look_into(
    index: int, source: Source, reading: Reading, shares: list[float] | None, ended: Callable[[], bool], most: int
) -> Look:
    """Excerpts from the given shares (0 to 1) of a source; None: all of it.

    Stops when `ended` says so, or when `most` bytes of text are held.
    """
    look = Look(most)
    try:
        opened = open_source(source, reading.fetcher)
        with closing(opened.feed):
            look.format = opened.format
            if not isinstance(opened.feed, (FileFeed, RemoteFeed)):
                look.compression = compression_from(_first_bytes(source, reading), "zstd")
            module, name, _ = FORMATS[opened.format]
            made = getattr(import_module(f"shardmill.documents.{module}"), name)
            reader: FormatReader = made(index, source, reading, partial(_reopened, source, reading), opened.head)
            if opened.format == "jsonl" and b"\n" in opened.head:
                # Asked for one byte, the reader finds the first line, and says if no record there has the field.
                with closing(_reopened(source, reading)) as feed:
                    next(iter(reader.chunks(feed, Position(), 1)), None)
            if opened.format in ("text", "jsonl"):
                TextVisit(index, source, reading, reader, opened, look, ended).go(shares)
            elif opened.format in ("csv", "tsv") and shares is not None:

                def read_with(raw: bytes) -> tuple[FormatReader, Feed]:
                    def feed() -> Feed:
                        return StreamFeed(Held(raw), source.name)

                    return made(index, source, reading, feed, opened.head), feed()

                CsvVisit(index, source, reading, read_with, opened, look, ended).go(shares)
                if not look.excerpts:
                    # Rows that end with a carriage return alone, or that nothing tells apart but the start of the file.
                    with closing(_reopened(source, reading)) as feed:
                        RowVisit(source, reading, reader, feed, look, ended).go(None)
            else:
                RowVisit(source, reading, reader, opened.feed, look, ended).go(shares)
    except SourceError as error:
        look.error = error
        look.excerpts = [excerpt for excerpt in look.excerpts if excerpt.stored]
    return look


def _reopened(source: Source, reading: Reading) -> Feed:
    return open_source(source, reading.fetcher).feed


def _first_bytes(source: Source, reading: Reading) -> bytes:
    end = min(source.size or 0, 16)
    if source.remote and reading.fetcher is not None:
        return bytes(reading.fetcher.read(source, 0, end))
    return read_range(source, 0, end)
