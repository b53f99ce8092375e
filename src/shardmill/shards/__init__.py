"""Tokens ↔ files: the output formats."""

from shardmill.shards.formats import open_output
from shardmill.shards.limits import foreseen
from shardmill.shards.output import SPLITS, Output

__all__ = ["SPLITS", "Output", "foreseen", "open_output"]
