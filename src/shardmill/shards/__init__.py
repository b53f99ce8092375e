"""Tokens ↔ files: one file for each format, which writes, reads, recognises, indexes and sizes it."""

from shardmill.output_formats import FORMATS, SPLITS
from shardmill.shards.blends import TRAINERS, Blended, blend
from shardmill.shards.documents_table import (
    DOCUMENT,
    HEADER_BYTES,
    TABLE_NAMES,
    TableFormat,
    TableIndex,
    open_table,
    table_header,
    table_name,
)
from shardmill.shards.format import (
    Format,
    OutputSettings,
    check_together,
    early_warnings,
    format_named,
    libraries_of,
    unlisted_files,
)
from shardmill.shards.recognising import Foreign, find_foreign
from shardmill.shards.token_files import DocumentIndex, EotIndex, TokenFile, TokenFiles
from shardmill.shards.writer import DATASET_FOLDERS, ShardWriter, open_output
