"""Bytes → documents: the formats of text, and the readers that cut them into chunks."""

from shardmill.documents.chunks import (
    DONE,
    WHOLE,
    Bounds,
    Chunk,
    Documents,
    Part,
    Position,
    Reject,
    Section,
    TooLarge,
    join,
)
from shardmill.documents.content import content_version
from shardmill.documents.formats import SourceReader, check_tails, chunks_of, format_reader, load_libraries
from shardmill.documents.opening import footer_bytes, open_source
from shardmill.documents.reading import SPAN, STREAM_BYTES, FormatReader, FreeRoom, Reader, Reading, Room, UndividedRoom

__all__ = [
    "DONE", "SPAN", "STREAM_BYTES", "WHOLE", "Bounds", "Chunk", "Documents", "FormatReader", "FreeRoom", "Part",
    "Position", "Reader", "Reading", "Reject", "Room", "Section", "SourceReader", "TooLarge", "UndividedRoom",
    "check_tails", "chunks_of", "content_version", "footer_bytes", "format_reader", "join", "load_libraries",
    "open_source",
]  # fmt: skip
