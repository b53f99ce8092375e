"""Tokens ↔ files: one file for each format, which writes, reads, recognises, indexes and sizes it."""

from shardmill.output_formats import FORMATS, SPLITS
from shardmill.shards.format import (
    Format,
    check_together,
    early_warnings,
    format_named,
    open_output,
    unlisted_files,
)
from shardmill.shards.output import Output, names_in_folder
from shardmill.shards.recognising import Foreign, find_foreign
from shardmill.shards.token_files import DocumentIndex, EotIndex, TokenFile, TokenFiles
