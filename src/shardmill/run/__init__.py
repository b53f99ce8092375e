"""The main job: plan → chunks → documents → tokens → shards → manifest."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.run.batch import (
        Batch,
        BatchTokens,
        FinishedFiles,
        FoundInSource,
        FoundPart,
        Rows,
        SplitCount,
        Stream,
        eot_places,
    )
    from shardmill.run.before import inspect, inspect_plan
    from shardmill.run.budget import Budget, default_memory
    from shardmill.run.destination import Destination, open_destination
    from shardmill.run.encoded_chunks import EncodedChunks
    from shardmill.run.encoded_text import EncodedText, surely_fits
    from shardmill.run.journal import Journal
    from shardmill.run.ledger import Ledger
    from shardmill.run.loop import Producer, Run
    from shardmill.run.machine import most_resident, resident, settle_allocator, usable_cpus, usable_memory
    from shardmill.run.main import open_outputs, output_orders, prepare
    from shardmill.run.manifest import NAME as MANIFEST
    from shardmill.run.manifest import (
        REJECTS,
        TABLE,
        SourceLines,
        dataset_files,
        dataset_folder,
        each_output,
        json_line,
        manifest_json,
        parse_manifest,
        read_manifest,
        tables_in,
    )
    from shardmill.run.plan import Facts, Plan, as_recorded, fingerprint
    from shardmill.run.process_limit import own_process
    from shardmill.run.progress import Done, MemoryUse, Progress, choose_progress, default_progress
    from shardmill.run.reading import read
    from shardmill.run.seams import Limit, ending
    from shardmill.run.store_destination import staging_folder
    from shardmill.run.summary import Result, as_data, as_text, splits_html
    from shardmill.run.text_batches import TextBatches, TextPosition

# Imported on first use: a program that only opens a dataset does not load the code that makes one.
__all__, __getattr__ = lazily(
    "shardmill.run",
    {
        "batch": "Batch FinishedFiles FoundInSource FoundPart Rows SplitCount Stream BatchTokens eot_places",
        "before": "inspect inspect_plan",
        "budget": "Budget default_memory",
        "destination": "Destination open_destination",
        "encoded_chunks": "EncodedChunks",
        "encoded_text": "EncodedText surely_fits",
        "journal": "Journal",
        "ledger": "Ledger",
        "loop": "Producer Run",
        "machine": "most_resident resident settle_allocator usable_cpus usable_memory",
        "main": "open_outputs output_orders prepare",
        "manifest": "NAME:MANIFEST REJECTS TABLE SourceLines dataset_files dataset_folder each_output json_line "
        "manifest_json parse_manifest read_manifest tables_in",
        "plan": "Facts Plan as_recorded fingerprint",
        "process_limit": "own_process",
        "progress": "Done MemoryUse Progress choose_progress default_progress",
        "reading": "read",
        "seams": "Limit ending",
        "store_destination": "staging_folder",
        "summary": "Result as_data as_text splits_html",
        "text_batches": "TextBatches TextPosition",
    },
)
