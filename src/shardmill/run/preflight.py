"""Before anything is written: how much disk the output will take, from a sample of the text, against what is free."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.storage import Sources

if TYPE_CHECKING:
    from shardmill.documents import Reading
    from shardmill.run.destination import Destination
    from shardmill.run.plan import Plan
    from shardmill.run.worker import WorkerSettings
    from shardmill.shards import Output

_PLACES = 12
_SECONDS = 1.0


def check_disk(
    plan: Plan, reading: Reading, settings: WorkerSettings, destination: Destination, outputs: list[Output]
) -> None:
    """OutputError when the output would clearly not fit on the disk, or a file not in the store."""
    total = plan.sources.bytes_before(len(plan.sources))
    free = shutil.disk_usage(destination.folder).free
    most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
    if most < min(free, destination.largest_file or free) or plan.options.limit is not None:
        return  # would fit at one token for every byte of text, at a compression of four
    # Only now: most runs come this far never, and these take a twentieth of a second to load.
    from shardmill.sampling import Expected, expected, looking_fetcher, output_sizes, take_sample

    sized = Sources(source for source in plan.sources if source.size)
    engine = settings.engine()
    # With a fetcher of its own: that of the run expects the sources in their order.
    with looking_fetcher() as fetcher:
        looking = replace(reading, gaps=False, spans=False, tail=None, fetcher=fetcher)
        kinds = take_sample(sized, looking, engine, places=_PLACES, seconds=_SECONDS)
    settings.warm.append(engine)
    separated = reading.separator is not None
    tokenizer = plan.tokenizer
    need = doubt = 0.0
    for output in outputs:
        parts = (expected(kind, separated=separated, eot=output.eot != "none") for kind in kinds)
        all_of_it = sum(parts, Expected())
        width = output.dtype.itemsize
        sizes = output_sizes(all_of_it, width, tokenizer.vocab_size, plan.options.tokens_per_shard)
        size, margin = destination.space(output, sizes[output.format], all_of_it.tokens.margin * width)
        need += size
        doubt += margin
    destination.check_free(need, doubt)
