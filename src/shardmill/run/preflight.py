"""Before anything is written: how much disk the output will take, from a sample of the text, against what is free."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.errors import OutputError
from shardmill.storage import LARGEST, Sources, check_size
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from shardmill.documents import Reading
    from shardmill.run.mirror import Mirror
    from shardmill.run.plan import Plan
    from shardmill.run.worker import Milling
    from shardmill.shards import Output

_PLACES = 12
_SECONDS = 1.0
SHARDS_HERE = 6
"""Of each format, at the most, where they go to an object store: open ones, those that wait or are being sent."""


def check_disk(
    plan: Plan, reading: Reading, milling: Milling, out: Path, outputs: list[Output], mirror: Mirror | None = None
) -> None:
    """OutputError when the output would clearly not fit on the disk.

    What goes to a `mirror` needs space here only until a file is whole, and must not be too large for one object.
    """
    total = plan.sources.bytes_before(len(plan.sources))
    free = shutil.disk_usage(out).free
    most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
    if most < (min(free, LARGEST) if mirror else free) or plan.options.limit is not None:
        return  # would fit at one token for every byte of text, at a compression of four
    # Only now: most runs come this far never, and these take a twentieth of a second to load.
    from shardmill.inspection.download import looking_fetcher
    from shardmill.inspection.estimate import Expected, expected, output_sizes
    from shardmill.inspection.sampling import take_sample

    sized = Sources(source for source in plan.sources if source.size)
    engine = milling.engine()
    # With a fetcher of its own: that of the run expects the sources in their order.
    with looking_fetcher() as fetcher:
        looking = replace(reading, gaps=False, spans=False, tail=None, fetcher=fetcher)
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
        size, margin = sizes[output.format], tokens.margin * width
        if mirror and output.file_tokens:
            size, margin = min(size, SHARDS_HERE * output.file_tokens * width), 0
        elif mirror:
            check_size(f"the {output.format} file", int(size - margin), mirror.url)
        need += size
        doubt += margin
    # Stopping a run that would have fitted is worse than a late "no space".
    if need - doubt > free:
        raise OutputError(
            f"the output would take about {show_bytes(need)}, and {show_bytes(free)} are free",
            place=str(out),
            hint="a format with shards needs little space here, such as `-f shards`"
            if mirror
            else "choose another folder, or prepare a part of it with `--limit`",
        )
