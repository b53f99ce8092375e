"""Text → batches of tokens: the plan, the budget, the pipeline and its workers; what a run needs beforehand."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.run.before import inspect, inspect_plan
    from shardmill.run.budget import Budget, check_memory, default_memory
    from shardmill.run.encoded_chunks import EncodedChunks
    from shardmill.run.encoded_text import EncodedText, surely_fits
    from shardmill.run.machine import (
        most_resident,
        resident,
        settle_allocator,
        trim_memory,
        usable_cpus,
        usable_memory,
    )
    from shardmill.run.main import make_plan, open_outputs, output_orders
    from shardmill.run.plan import Plan
    from shardmill.run.process_limit import own_process
    from shardmill.run.reading import read
    from shardmill.run.seams import Limit, ending
    from shardmill.run.text_batches import TextBatches, TextPosition

# Imported on first use: a program that only opens a dataset does not load the code that makes one.
__all__, __getattr__ = lazily(
    "shardmill.run",
    {
        "before": "inspect inspect_plan",
        "budget": "Budget check_memory default_memory",
        "encoded_chunks": "EncodedChunks",
        "encoded_text": "EncodedText surely_fits",
        "machine": "most_resident resident settle_allocator trim_memory usable_cpus usable_memory",
        "main": "make_plan open_outputs output_orders",
        "plan": "Plan",
        "process_limit": "own_process",
        "reading": "read",
        "seams": "Limit ending",
        "text_batches": "TextBatches TextPosition",
    },
)
