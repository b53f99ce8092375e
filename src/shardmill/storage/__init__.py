"""Bytes anywhere: local files, compression, the web and object stores; read by ranges, written whole."""

from shardmill.storage.block_cache import CACHE_BLOCK
from shardmill.storage.cache import Cache
from shardmill.storage.compressed import COMPRESSION_MARKS, compression_from, decompressed
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
from shardmill.storage.fetching import CONNECTIONS, Fetcher, open_feed
from shardmill.storage.files import (
    PARTIAL,
    PartialFile,
    Written,
    file_blocks,
    sync_folder,
    write_whole,
    writing_temporary_files,
    writing_to,
)
from shardmill.storage.local_file import OpenFile
from shardmill.storage.names import (
    BUCKETS,
    COMPRESSION_ENDINGS,
    WEB,
    HubAddress,
    compression_of,
    endings,
    host_of,
    path_in,
    public_url,
    scheme_of,
)
from shardmill.storage.object_store import LARGEST_OBJECT, ROOM, ObjectStore, Version, check_size, is_url, open_store
from shardmill.storage.objects import ListedObject, check_address, path_in_bucket
from shardmill.storage.remote_file import Bytes
from shardmill.storage.remote_folder import AnyPath, RemoteFolder, RemotePath, RemoteRanges, open_array, open_file
from shardmill.storage.retrying import Retries, RetryPolicy, Transient
from shardmill.storage.source import BLOCK_ROWS, SMALL, STDIN, BlockSequence, PackedRows, Source, sorted_rows
from shardmill.storage.stores import FolderStore, Store
from shardmill.storage.unicode import (
    BOM,
    REPLACEMENT,
    is_valid,
    replace_invalid,
    transcoded,
    utf16_without_mark,
    wide_encoding,
)
