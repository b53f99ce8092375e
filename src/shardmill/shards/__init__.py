"""Tokens ↔ files: one file for each format, which writes, reads, recognises, indexes and sizes it."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily
from shardmill.shards.formats import FORMATS, check_together, foreseen, format_named, open_output

if TYPE_CHECKING:
    from shardmill.shards.format import Format as Format
    from shardmill.shards.output import Output as Output
    from shardmill.shards.recognising import Foreign as Foreign
    from shardmill.shards.recognising import find_foreign as find_foreign
    from shardmill.shards.token_files import DocumentIndex as DocumentIndex
    from shardmill.shards.token_files import EndOfText as EndOfText
    from shardmill.shards.token_files import TokenFile as TokenFile
    from shardmill.shards.token_files import TokenFiles as TokenFiles

SPLITS = ("train", "val")

# Options want the names of the formats, and `--help` must not load numpy for them.
__all__, __getattr__ = lazily(
    "shardmill.shards",
    {
        "format": "Format",
        "output": "Output",
        "recognising": "Foreign find_foreign",
        "token_files": "DocumentIndex EndOfText TokenFile TokenFiles",
    },
)
__all__ += ["FORMATS", "SPLITS", "check_together", "foreseen", "format_named", "open_output"]
