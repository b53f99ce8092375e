"""Room 3: tokens → files."""

from __future__ import annotations

from shardmill.writing.files import PARTIAL, PartialFile, Written, sync_folder, take_back, write_whole, writing_to
from shardmill.writing.formats import open_output
from shardmill.writing.output import SPLITS, Output

__all__ = [
    "PARTIAL",
    "SPLITS",
    "Output",
    "PartialFile",
    "Written",
    "open_output",
    "sync_folder",
    "take_back",
    "write_whole",
    "writing_to",
]
