"""Bytes anywhere: local files, compression, the web and object stores; read by ranges, written whole."""

from shardmill.storage.files import PARTIAL, PartialFile, Written, sync_folder, take_back, write_whole, writing_to
from shardmill.storage.object_store import LARGEST, ROOM, ObjectStore, Version, check_size, is_url
from shardmill.storage.source import Source

__all__ = [
    "LARGEST",
    "PARTIAL",
    "ROOM",
    "ObjectStore",
    "PartialFile",
    "Source",
    "Version",
    "Written",
    "check_size",
    "is_url",
    "sync_folder",
    "take_back",
    "write_whole",
    "writing_to",
]
