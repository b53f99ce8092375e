"""Before anything is written: how much disk the output will take, from a sample of the text, against what is free."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.errors import OutputError
from shardmill.quantities import show_bytes

if TYPE_CHECKING:
    from shardmill.plan import Plan
    from shardmill.reading import Reading
    from shardmill.worker import Milling
    from shardmill.writing import Output

_PLACES = 12
_SECONDS = 1.0


def check_disk(plan: Plan, reading: Reading, milling: Milling, out: Path, outputs: list[Output]) -> None:
    """OutputError when the output would clearly not fit on the disk."""
    sized = [source for source in plan.sources if source.size]
    total = sum(source.size or 0 for source in sized)
    free = shutil.disk_usage(out).free
    most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
    if most < free or plan.options.limit is not None:
        return  # would fit at one token for every byte of text, at a compression of four
    # Only now: most runs come this far never, and these take a twentieth of a second to load.
    from shardmill.inspecting.download import looking_fetcher
    from shardmill.inspecting.estimate import Expected, expected, output_sizes
    from shardmill.inspecting.sampling import take_sample

    engine = milling.engine()
    # With a fetcher of its own: that of the run expects the sources in their order.
    with looking_fetcher() as fetcher:
        looking = replace(reading, spans=False, tail=None, fetcher=fetcher)
        kinds = take_sample(sized, looking, engine, places=_PLACES, seconds=_SECONDS)
    milling.warm.append(engine)
    separated = reading.separator is not None
    tokenizer = plan.tokenizer
    need, doubt = 0, 0.0
    for output in outputs:
        parts = (expected(kind, separated=separated, eot=output.eot != "none") for kind in kinds)
        all_of_it = sum(parts, Expected())
        tokens, width = all_of_it.tokens, output.dtype.itemsize
        sizes = output_sizes(
            tokens.value, all_of_it.written, width, tokenizer.vocab_size, plan.options.tokens_per_shard
        )
        need += sizes[output.format]
        doubt += tokens.margin * width
    # Stopping a run that would have fitted is worse than a late "no space".
    if need - doubt > free:
        raise OutputError(
            f"the output would take about {show_bytes(need)}, and {show_bytes(free)} are free",
            place=str(out),
            hint="choose another folder, or prepare a part of it with `--limit`",
        )
