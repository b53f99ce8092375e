"""Before a run: what there is, what it will take, and what would go wrong."""

from shardmill.inspection.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
