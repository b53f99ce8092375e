"""Room 1: bytes somewhere become documents."""

from shardmill.reading.documents import Chunk, Documents, Position, Reject
from shardmill.reading.formats import FORMATS, Reader, reader_for
from shardmill.reading.options import SPAN, Reading
from shardmill.reading.sources import Source, find_sources

__all__ = [
    "FORMATS",
    "SPAN",
    "Chunk",
    "Documents",
    "Position",
    "Reader",
    "Reading",
    "Reject",
    "Source",
    "find_sources",
    "reader_for",
]
