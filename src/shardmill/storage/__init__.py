"""Bytes anywhere: local files, compression, the web and object stores; read by ranges, written whole."""

from shardmill.storage.cache import Cache
from shardmill.storage.compressed import decompressor
from shardmill.storage.feeds import (
    CONTEXT,
    FLAGS,
    STREAM_BLOCK,
    Feed,
    FileFeed,
    RandomAccess,
    StreamFeed,
    check_unchanged,
    is_as_found,
    read_range,
)
from shardmill.storage.fetching import CONNECTIONS, Bytes, Fetcher
from shardmill.storage.files import (
    PARTIAL,
    PartialFile,
    StoredBytes,
    UnwrittenFile,
    Written,
    as_file,
    sync_folder,
    waiting_words,
    write_whole,
    writing_temporary_files,
    writing_to,
)
from shardmill.storage.given import NamedSource, given_sources, is_arrow, refuse_second_reading
from shardmill.storage.names import (
    BUCKETS,
    COMPRESSION_ENDINGS,
    FORMAT_ENDINGS,
    WEB,
    HubAddress,
    compression_of,
    endings,
    format_of,
    host_of,
    path_in,
    scheme_of,
    shown,
)
from shardmill.storage.object_store import LARGEST_OBJECT, ROOM, ObjectStore, Version, check_size, is_url
from shardmill.storage.objects import ListedObject, check_address, path_in_bucket
from shardmill.storage.opening import Opened, may_be_other_than_text, open_source
from shardmill.storage.retrying import Patience, Retries, Unreachable
from shardmill.storage.source import PACKED, SMALL, STDIN, InBlocks, Source, Sources, in_order
from shardmill.storage.unicode import BOM, REPLACEMENT, is_valid, replaced

__all__ = [
    "BOM", "BUCKETS", "COMPRESSION_ENDINGS", "CONNECTIONS", "CONTEXT", "FLAGS", "FORMAT_ENDINGS",
    "LARGEST_OBJECT", "PACKED", "PARTIAL", "REPLACEMENT", "ROOM", "SMALL", "STDIN",
    "STREAM_BLOCK", "WEB", "Bytes", "Cache", "Feed", "Fetcher", "FileFeed",
    "HubAddress", "InBlocks", "ListedObject", "NamedSource", "ObjectStore", "Opened", "PartialFile", "Patience",
    "RandomAccess", "Retries", "Source", "Sources", "StoredBytes", "StreamFeed", "Unreachable", "UnwrittenFile",
    "Version", "Written", "as_file", "check_address", "check_size", "check_unchanged", "compression_of",
    "decompressor", "endings", "format_of", "given_sources", "host_of", "in_order", "is_arrow", "is_as_found",
    "is_url", "is_valid", "may_be_other_than_text", "open_source", "path_in", "path_in_bucket", "read_range",
    "refuse_second_reading", "replaced", "scheme_of", "shown", "sync_folder", "waiting_words", "write_whole",
    "writing_temporary_files", "writing_to",
]  # fmt: skip
