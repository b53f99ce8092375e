"""What can be done with a finished dataset: open, batches, verify, convert, show."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.dataset.conversion import convert
    from shardmill.dataset.dataset import Dataset, Split, open_dataset
    from shardmill.dataset.showing import show, show_text, visible
    from shardmill.dataset.verification import Report, verify

# Imported on first use: a program that only opens a dataset does not load the code that makes one.
__all__, __getattr__ = lazily(
    "shardmill.dataset",
    {
        "conversion": "convert",
        "dataset": "Dataset Split open_dataset",
        "showing": "show show_text visible",
        "verification": "Report verify",
    },
)
