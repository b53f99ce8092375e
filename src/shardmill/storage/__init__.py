"""Bytes anywhere: local files, compression, the web and object stores; read by ranges, written whole."""

from shardmill.storage.cache import Cache
from shardmill.storage.compressed import decompressor
from shardmill.storage.feeds import (
    CONTEXT,
    FLAGS,
    STREAM_BLOCK,
    Beginning,
    Feed,
    FileFeed,
    RandomAccess,
    Scanner,
    StreamFeed,
    check_unchanged,
    is_unchanged,
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
    create_whole,
    disk_wait_message,
    sync_folder,
    write_whole,
    writing_temporary_files,
    writing_to,
)
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
    public_url,
    scheme_of,
)
from shardmill.storage.object_store import LARGEST_OBJECT, ROOM, ObjectStore, Version, check_size, is_url
from shardmill.storage.objects import ListedObject, check_address, path_in_bucket
from shardmill.storage.opening import Opened, is_binary, may_be_other_than_text, open_source
from shardmill.storage.python_sources import (
    NamedSource,
    as_sources,
    is_arrow,
    refuse_second_reading,
    refuse_unversioned,
)
from shardmill.storage.retrying import Retries, RetryPolicy, Transient, Unreachable
from shardmill.storage.skipped import Skipped
from shardmill.storage.source import BLOCK_ROWS, SMALL, STDIN, BlockSequence, PackedRows, Source, Sources, sorted_rows
from shardmill.storage.unicode import BOM, REPLACEMENT, is_valid, replace_invalid
