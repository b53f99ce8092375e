"""Before a run: what there is, what it will take, and what would go wrong."""

from shardmill.inspection.download import looking_fetcher
from shardmill.inspection.estimate import Expected, expected, output_sizes
from shardmill.inspection.inspection import Inspection, inspect
from shardmill.inspection.sampling import take_sample

__all__ = ["Expected", "Inspection", "expected", "inspect", "looking_fetcher", "output_sizes", "take_sample"]
