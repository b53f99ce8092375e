"""Batches → a dataset: the main loop, the writer, checkpoints, the journal, the manifest."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.write.batch import (
        ODD,
        Batch,
        BatchTokens,
        FinishedFiles,
        FoundInSource,
        FoundPart,
        FoundSources,
        Rows,
        SplitCount,
        Stream,
        eot_places,
        shares,
    )
    from shardmill.write.destination import Destination, open_destination
    from shardmill.write.facts import (
        COMMITS,
        LIBRARIES,
        SKIPPED,
        Facts,
        SourceFacts,
        as_recorded,
        fingerprint,
        library_facts,
        shard_name,
    )
    from shardmill.write.journal import Journal, raise_mismatch
    from shardmill.write.ledger import Ledger
    from shardmill.write.loop import Producer, Run, finished_result
    from shardmill.write.manifest import NAME as MANIFEST
    from shardmill.write.manifest import (
        REJECTS,
        FileEntry,
        Manifest,
        OtherFile,
        OutputEntry,
        SourceEntry,
        SourceLines,
        SplitEntry,
        check_source,
        dataset_files,
        each_output,
        json_line,
        manifest_json,
        parse_manifest,
        read_manifest,
        tables_in,
    )
    from shardmill.write.progress import Done, MemoryUse, Progress, choose_progress, progress_of
    from shardmill.write.store_destination import SHARDS_HERE, staging_folder, user_cache
    from shardmill.write.summary import Result, as_data, as_text, splits_html
    from shardmill.write.warnings import val_warnings

# Imported on first use: a program that only opens a dataset does not load the code that makes one.
__all__, __getattr__ = lazily(
    "shardmill.write",
    {
        "batch": "ODD Batch BatchTokens FinishedFiles FoundInSource FoundPart FoundSources Rows SplitCount "
        "Stream eot_places shares",
        "destination": "Destination open_destination",
        "facts": "COMMITS LIBRARIES SKIPPED Facts SourceFacts as_recorded fingerprint library_facts shard_name",
        "journal": "Journal raise_mismatch",
        "ledger": "Ledger",
        "loop": "Producer Run finished_result",
        "manifest": "NAME:MANIFEST REJECTS FileEntry Manifest OtherFile OutputEntry SourceEntry SourceLines SplitEntry "
        "check_source dataset_files each_output json_line manifest_json parse_manifest read_manifest "
        "tables_in",
        "progress": "Done MemoryUse Progress choose_progress progress_of",
        "store_destination": "SHARDS_HERE staging_folder user_cache",
        "summary": "Result as_data as_text splits_html",
        "warnings": "val_warnings",
    },
)
