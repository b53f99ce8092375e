"""Room 3: tokens → files."""

from __future__ import annotations

from shardmill.writing.files import PARTIAL, PartialFile, Written, sync_folder, take_back, write_whole, writing_to
from shardmill.writing.formats import open_output
from shardmill.writing.object_store import LARGEST, ROOM, ObjectStore, Unanswered, Version, check_size, is_url
from shardmill.writing.output import SPLITS, Output

__all__ = [
    "LARGEST",
    "PARTIAL",
    "ROOM",
    "SPLITS",
    "ObjectStore",
    "Output",
    "PartialFile",
    "Unanswered",
    "Version",
    "Written",
    "check_size",
    "is_url",
    "open_output",
    "sync_folder",
    "take_back",
    "write_whole",
    "writing_to",
]
