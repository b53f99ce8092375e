"""Bytes anywhere: local files, compression, the web and object stores; read by ranges, written whole."""

from shardmill.storage.files import (
    PARTIAL,
    PartialFile,
    Written,
    as_file,
    sync_folder,
    take_back,
    waiting_words,
    write_whole,
    writing_temporary_files,
    writing_to,
)
from shardmill.storage.object_store import LARGEST, ROOM, ObjectStore, Version, check_size, is_url
from shardmill.storage.source import Source, Sources

__all__ = [
    "LARGEST",
    "PARTIAL",
    "ROOM",
    "ObjectStore",
    "PartialFile",
    "Source",
    "Sources",
    "Version",
    "Written",
    "as_file",
    "check_size",
    "is_url",
    "sync_folder",
    "take_back",
    "waiting_words",
    "write_whole",
    "writing_temporary_files",
    "writing_to",
]
