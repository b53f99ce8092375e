"""Bytes → documents: the formats of text, and the readers that cut them into chunks."""

from shardmill.documents.chunks import Chunk, Documents, Position, Reject
from shardmill.documents.formats import FORMATS, Reader, chunks_of, load_libraries, reader_for
from shardmill.documents.reading import SPAN, Reading

__all__ = [
    "FORMATS",
    "SPAN",
    "Chunk",
    "Documents",
    "Position",
    "Reader",
    "Reading",
    "Reject",
    "chunks_of",
    "load_libraries",
    "reader_for",
]
