"""What can be done with a finished dataset: open, batches, verify, show."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.dataset.dataset import Dataset, Split, document_index, open_dataset, row_size
    from shardmill.dataset.loader import Batches, make_batches
    from shardmill.dataset.packed_rows import INDEX, index_folder, read_index
    from shardmill.dataset.places import CACHE_SIZE, open_place
    from shardmill.dataset.showing import show, show_text, visible
    from shardmill.dataset.tracing import TracedDocument, TracedRow, first_record, rows_text, trace
    from shardmill.dataset.tracing import as_data as traced_data
    from shardmill.dataset.verification import Report, verify

# Imported on first use: a program that only opens a dataset does not load the code that makes one.
__all__, __getattr__ = lazily(
    "shardmill.dataset",
    {
        "dataset": "Dataset Split document_index open_dataset row_size",
        "loader": "Batches make_batches",
        "packed_rows": "INDEX index_folder read_index",
        "places": "CACHE_SIZE open_place",
        "showing": "show show_text visible",
        "tracing": "TracedDocument TracedRow as_data:traced_data first_record rows_text trace",
        "verification": "Report verify",
    },
)
