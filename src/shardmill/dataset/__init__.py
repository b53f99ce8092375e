"""What can be done with a finished dataset: open, batches, verify, convert, show."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.dataset.conversion import convert as convert
    from shardmill.dataset.dataset import Dataset as Dataset
    from shardmill.dataset.dataset import open_dataset as open_dataset
    from shardmill.dataset.showing import show as show
    from shardmill.dataset.verification import Report as Report
    from shardmill.dataset.verification import verify as verify

_LAZY = {
    "Dataset": "dataset",
    "Report": "verification",
    "convert": "conversion",
    "open_dataset": "dataset",
    "show": "showing",
    "verify": "verification",
}
__all__ = ["Dataset", "Report", "convert", "open_dataset", "show", "verify"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: whoever opens a dataset does not wait for what makes one.
    if name in _LAZY:
        return getattr(import_module(f"shardmill.dataset.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'shardmill.dataset' has no attribute {name!r}")
