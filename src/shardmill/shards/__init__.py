"""Tokens ↔ files: one file for each format, which writes, reads, recognises, indexes and weighs it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardmill.shards.formats import FORMATS, check_together, foreseen, format_named, open_output

if TYPE_CHECKING:
    from shardmill.shards.document_index import DocumentIndex as DocumentIndex
    from shardmill.shards.document_index import EndOfText as EndOfText
    from shardmill.shards.format import Format as Format
    from shardmill.shards.output import Output as Output
    from shardmill.shards.recognising import Foreign as Foreign
    from shardmill.shards.recognising import find_foreign as find_foreign
    from shardmill.shards.token_files import TokenFile as TokenFile
    from shardmill.shards.token_files import TokenFiles as TokenFiles

SPLITS = ("train", "val")

__all__ = [
    "FORMATS",
    "SPLITS",
    "DocumentIndex",
    "EndOfText",
    "Foreign",
    "Format",
    "Output",
    "TokenFile",
    "TokenFiles",
    "check_together",
    "find_foreign",
    "foreseen",
    "format_named",
    "open_output",
]

_LAZY = {
    "DocumentIndex": "document_index",
    "EndOfText": "document_index",
    "Foreign": "recognising",
    "Format": "format",
    "Output": "output",
    "TokenFile": "token_files",
    "TokenFiles": "token_files",
    "find_foreign": "recognising",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: options want the names of the formats, and `--help` must not load numpy for them.
    if name in _LAZY:
        return getattr(import_module(f"shardmill.shards.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'shardmill.shards' has no attribute {name!r}")
