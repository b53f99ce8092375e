"""Before a run: what there is, what it will take, and what would go wrong."""

from shardmill.inspecting.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
