"""Bytes → documents: the formats of text, and the readers that cut them into chunks."""

from shardmill.documents.chunks import WHOLE, Bounds, Chunk, Documents, Part, Position, Reject, Section, TooLarge
from shardmill.documents.formats import check_tails, chunks_of, format_reader, load_libraries, reader_for
from shardmill.documents.reading import SPAN, FormatReader, Reader, Reading
from shardmill.documents.splitting import join

__all__ = [
    "SPAN",
    "WHOLE",
    "Bounds",
    "Chunk",
    "Documents",
    "FormatReader",
    "Part",
    "Position",
    "Reader",
    "Reading",
    "Reject",
    "Section",
    "TooLarge",
    "check_tails",
    "chunks_of",
    "format_reader",
    "join",
    "load_libraries",
    "reader_for",
]
