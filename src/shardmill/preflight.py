"""Before anything is written: how much disk the output will take, from a sample of the text, against what is free."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.errors import OutputError
from shardmill.quantities import show_bytes
from shardmill.reading import Reading, reader_for
from shardmill.reading.documents import Position

if TYPE_CHECKING:
    from shardmill.encoding import Engine
    from shardmill.plan import Plan
    from shardmill.worker import Milling
    from shardmill.writing import Output

_SAMPLES = 3
_SAMPLE_BYTES = 256 * 1024
_MARGIN = (
    0.9  # of the estimate: a sample errs, and stopping a run that would have fitted is worse than a late "no space"
)


def tokens_per_byte(plan: Plan, reading: Reading, engine: Engine) -> float | None:
    """Tokens for each stored byte of the sources, from the beginnings of a few of them; None: nothing to sample."""
    sized = [i for i, source in enumerate(plan.sources) if source.size]
    step = max(1, len(sized) // _SAMPLES)
    tokens = stored = 0
    for i in sized[::step][:_SAMPLES]:
        size = plan.sources[i].size or 0
        reader = reader_for(i, plan.sources[i], reading)
        with closing(reader.chunks(Position(), _SAMPLE_BYTES)) as chunks:  # type: ignore[type-var]
            chunk = next(chunks, None)
            if chunk is None or chunk.long:
                continue
            documents = reader.read(chunk)
            encoded = engine.encode(documents.data, documents.offsets)
            tokens += len(encoded.tokens) + len(documents)
            stored += min(size, chunk.through if chunk.through >= 0 else chunk.end)
    return tokens / stored if stored else None


def check_disk(plan: Plan, reading: Reading, milling: Milling, out: Path, outputs: list[Output]) -> None:
    """OutputError when the output would clearly not fit on the disk."""
    total = sum(source.size or 0 for source in plan.sources)
    free = shutil.disk_usage(out).free
    most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
    if most < free or plan.options.limit is not None:
        return  # would fit at one token for every byte of text, at a compression of four
    engine = milling.engine()
    rate = tokens_per_byte(plan, reading, engine)
    milling.warm.append(engine)
    if rate is None:
        return
    need = int(total * rate * sum(output.dtype.itemsize for output in outputs))
    if need * _MARGIN > free:
        raise OutputError(
            f"the output would take about {show_bytes(need)}, and {show_bytes(free)} are free",
            place=str(out),
            hint="choose another folder, or prepare a part of it with `--limit`",
        )
