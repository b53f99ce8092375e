"""The main job: plan → chunks → documents → tokens → shards → manifest."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily
from shardmill.run.manifest import NAME as MANIFEST
from shardmill.run.manifest import (
    SourceLines,
    dataset_files,
    dataset_folder,
    json_line,
    manifest_json,
    parse_manifest,
    read_manifest,
)

if TYPE_CHECKING:
    from shardmill.run.budget import Budget as Budget
    from shardmill.run.budget import default_memory as default_memory
    from shardmill.run.checked_blocks import CheckedReader as CheckedReader
    from shardmill.run.destination import Destination as Destination
    from shardmill.run.destination import open_destination as open_destination
    from shardmill.run.encoded_text import EncodedText as EncodedText
    from shardmill.run.loop import Producer as Producer
    from shardmill.run.loop import Result as Result
    from shardmill.run.loop import Run as Run
    from shardmill.run.machine import most_resident as most_resident
    from shardmill.run.machine import resident as resident
    from shardmill.run.machine import settle_allocator as settle_allocator
    from shardmill.run.machine import usable_cpus as usable_cpus
    from shardmill.run.machine import usable_memory as usable_memory
    from shardmill.run.main import open_outputs as open_outputs
    from shardmill.run.main import output_orders as output_orders
    from shardmill.run.main import prepare as prepare
    from shardmill.run.plan import Facts as Facts
    from shardmill.run.plan import Plan as Plan
    from shardmill.run.plan import fingerprint as fingerprint
    from shardmill.run.process_limit import own_process as own_process
    from shardmill.run.progress import Done as Done
    from shardmill.run.progress import MemoryUse as MemoryUse
    from shardmill.run.progress import Progress as Progress
    from shardmill.run.progress import choose_progress as choose_progress
    from shardmill.run.progress import default_progress as default_progress
    from shardmill.run.reading import read as read
    from shardmill.run.record import read_record as read_record
    from shardmill.run.rows import Counted as Counted
    from shardmill.run.rows import Rows as Rows
    from shardmill.run.rows import Stream as Stream
    from shardmill.run.rows import eot_places as eot_places
    from shardmill.run.rows import with_eot as with_eot
    from shardmill.run.rows_output import ROW as ROW
    from shardmill.run.rows_output import ROWS as ROWS
    from shardmill.run.rows_output import TOKENS as TOKENS
    from shardmill.run.rows_output import RowsOutput as RowsOutput
    from shardmill.run.rows_output import unpacked as unpacked
    from shardmill.run.splits import Limit as Limit
    from shardmill.run.store_destination import SHARDS_HERE as SHARDS_HERE
    from shardmill.run.store_destination import staging_folder as staging_folder
    from shardmill.run.summary import as_data as as_data
    from shardmill.run.summary import as_text as as_text
    from shardmill.run.summary import splits_html as splits_html
    from shardmill.run.worker import Amounts as Amounts
    from shardmill.run.worker import Batch as Batch
    from shardmill.run.worker import Entry as Entry
    from shardmill.run.worker import Worker as Worker
    from shardmill.run.writer import REJECTS as REJECTS
    from shardmill.run.writer import Writer as Writer

# Whoever opens a dataset reads a manifest, and does not wait for what makes one.
__all__, __getattr__ = lazily(
    "shardmill.run",
    {
        "budget": "Budget default_memory",
        "checked_blocks": "CheckedReader",
        "destination": "Destination open_destination",
        "encoded_text": "EncodedText",
        "loop": "Producer Result Run",
        "machine": "most_resident resident settle_allocator usable_cpus usable_memory",
        "main": "open_outputs output_orders prepare",
        "plan": "Facts Plan fingerprint",
        "process_limit": "own_process",
        "progress": "Done MemoryUse Progress choose_progress default_progress",
        "reading": "read",
        "record": "read_record",
        "rows": "Counted Rows Stream eot_places with_eot",
        "rows_output": "ROW ROWS RowsOutput TOKENS unpacked",
        "splits": "Limit",
        "store_destination": "SHARDS_HERE staging_folder",
        "summary": "as_data as_text splits_html",
        "worker": "Amounts Batch Entry Worker",
        "writer": "REJECTS Writer",
    },
)
__all__ += ["MANIFEST", "SourceLines", "dataset_files", "dataset_folder"]
__all__ += ["json_line", "manifest_json", "parse_manifest", "read_manifest"]
