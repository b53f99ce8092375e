"""What can be done with a finished dataset: open, batches, verify, convert, show."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.dataset.conversion import convert as convert
    from shardmill.dataset.dataset import Dataset as Dataset
    from shardmill.dataset.dataset import Split as Split
    from shardmill.dataset.dataset import open_dataset as open_dataset
    from shardmill.dataset.showing import show as show
    from shardmill.dataset.showing import show_text as show_text
    from shardmill.dataset.showing import visible as visible
    from shardmill.dataset.verification import Report as Report
    from shardmill.dataset.verification import verify as verify

# Whoever opens a dataset does not wait for what makes one.
__all__, __getattr__ = lazily(
    "shardmill.dataset",
    {
        "conversion": "convert",
        "dataset": "Dataset Split open_dataset",
        "showing": "show show_text visible",
        "verification": "Report verify",
    },
)
