"""Bytes → documents: the formats of text, and the readers that cut them into chunks."""

from shardmill.documents.chunks import Bounds, Chunk, Documents, Position, Reject
from shardmill.documents.formats import (
    FormatReader,
    Reader,
    chunks_of,
    format_reader,
    load_libraries,
    reader_for,
)
from shardmill.documents.oversize import TooLarge
from shardmill.documents.reading import SPAN, Reading
from shardmill.documents.stretches import Stretch

__all__ = [
    "SPAN",
    "Bounds",
    "Chunk",
    "Documents",
    "FormatReader",
    "Position",
    "Reader",
    "Reading",
    "Reject",
    "Stretch",
    "TooLarge",
    "chunks_of",
    "format_reader",
    "load_libraries",
    "reader_for",
]
