"""More than one process or machine: a plan is cut into parts that are made anywhere, and merged into one dataset."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.cluster.calls import make_called_part as make_called_part
    from shardmill.cluster.calls import part_words as part_words
    from shardmill.cluster.calls import plan_data as plan_data
    from shardmill.cluster.calls import plan_words as plan_words
    from shardmill.cluster.driver import prepare_in_parts as prepare_in_parts
    from shardmill.cluster.merging import merge as merge
    from shardmill.cluster.merging import remove_plan as remove_plan
    from shardmill.cluster.part import PartResult as PartResult
    from shardmill.cluster.part import make_part as make_part
    from shardmill.cluster.planning import PartBounds as PartBounds
    from shardmill.cluster.planning import PartPlan as PartPlan
    from shardmill.cluster.planning import find_part_plan as find_part_plan
    from shardmill.cluster.planning import missing_parts as missing_parts
    from shardmill.cluster.planning import plan_parts as plan_parts
    from shardmill.cluster.planning import read_part_plan as read_part_plan
    from shardmill.cluster.several import discard_plan as discard_plan
    from shardmill.cluster.several import divide as divide
    from shardmill.cluster.several import run_in_processes as run_in_processes

# A part's process has to say how it wants its memory before anything large is loaded.
__all__, __getattr__ = lazily(
    "shardmill.cluster",
    {
        "calls": "make_called_part part_words plan_data plan_words",
        "driver": "prepare_in_parts",
        "merging": "merge remove_plan",
        "part": "PartResult make_part",
        "planning": "PartBounds PartPlan find_part_plan missing_parts plan_parts read_part_plan",
        "several": "discard_plan divide run_in_processes",
    },
)
