"""Before a run: a sample of the sources, what it says of the whole, and what would go wrong."""

from shardmill.inspection.estimate import Amount, Expected, expected, output_sizes, table_size, working_seconds
from shardmill.inspection.places import Looking
from shardmill.inspection.report import Inspection, make_report
from shardmill.inspection.sample import Kind, looking_fetcher, take_sample

__all__ = [
    "Amount", "Expected", "Inspection", "Kind", "Looking", "expected", "looking_fetcher",
    "make_report", "output_sizes", "table_size", "take_sample", "working_seconds",
]  # fmt: skip
