"""Text as a stream of batches: chunks go to the workers, and come back in plan order as tokens."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardmill.documents import (
    STREAM_BYTES,
    Bounds,
    Position,
    Reading,
    check_tails,
    chunks_of,
    footer_bytes,
    load_libraries,
)
from shardmill.options import Val
from shardmill.run.budget import Budget, check_memory
from shardmill.run.encoded_chunks import Entry
from shardmill.run.machine import settle_allocator, trim_memory
from shardmill.run.pipeline import Pipeline
from shardmill.run.process_limit import memory_limit
from shardmill.run.text_batches import TextBatches, TextPosition
from shardmill.run.worker import encode
from shardmill.shards import SPLITS
from shardmill.storage import Cache, Fetcher
from shardmill.write import Producer

if TYPE_CHECKING:
    from shardmill.run.encoded_chunks import EncodedChunks
    from shardmill.run.plan import Plan
    from shardmill.shards import ShardWriter
    from shardmill.tokens import Engine
    from shardmill.write import Batch, Destination

_PLACES, _SECONDS = 12, 1.0  # of a sample: whether the output will fit on the disk
_UNSURE = 0.25  # a share of the tokens, where the sample has no margin
_NO_STACK = "can't start new thread"
"""What Python says where there is no memory for the stack of a thread, in a RuntimeError."""
# Freed memory that Arrow's allocator keeps: without this, files with pages of 5 MB failed near the least memory.
_KEPT_BY_ARROW = 22_000_000


def surely_fits(plan: Plan, destination: Destination, outputs: list[ShardWriter]) -> bool:
    """Whether it would fit even with one token per byte of text, and text compressed to a quarter."""
    total = plan.sources.bytes_before(len(plan.sources))
    free = shutil.disk_usage(destination.folder).free
    most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
    return most < min(free, destination.largest_file or free) or plan.options.limit is not None


class EncodedText(Producer):
    """The sources of a plan, read and encoded."""

    budget: Budget
    _bounds: Bounds | None = None
    """The part of the sources that is read; None: all."""

    def __init__(
        self, plan: Plan, outputs: list[ShardWriter], buffer_bytes: int = 0, engines: list[Engine] | None = None
    ) -> None:
        """BudgetError when the memory that is allowed does not suffice.

        `buffer_bytes`: memory for buffers of the destination. `engines`: those that an earlier run of this process has
        left, if any; this run leaves its own there too.
        """
        options = plan.options
        self.plan, self.facts, self.sources = plan, plan.facts(), plan.sources
        self.position = TextPosition()
        """How far the batches have come."""
        self.val, self.seed = Val.parse(options.val), options.seed
        val = self.val
        if val.tail:
            check_tails(plan.sources)
        self.splits = ("train",) if val.nothing else SPLITS
        self.first, self.bad_allowed = val.first, options.bad_allowed
        self.eots = tuple(dict.fromkeys(output.eot for output in outputs))
        """The EOT policies that the outputs need, each once."""
        self.engines = [] if engines is None else engines
        """Engines that are not in use."""
        self.budget = self._make_budget(buffer_bytes + sum(output.memory_bytes for output in outputs))
        del self.engines[self.budget.workers :]
        cache = Cache(options.cache) if options.cache else None
        self._fetcher = Fetcher(plan.sources, self.budget.read_ahead, cache=cache, footer_bytes=footer_bytes)
        self.retries = self._fetcher.retries
        self._reading = Reading(
            text_field=options.text_field,
            separator=options.separator_bytes,
            cut=plan.tokenizer.cut,
            only_source=plan.only_source,
            stream_bytes=STREAM_BYTES if plan.stream_bytes is None else plan.stream_bytes,
            # Also if no split depends on content: `first:N` and `--limit` count rows, and a row must not be a chunk.
            spans=not (val.nothing and options.limit is None),
            tail=val.tail or None,
            limited=options.limit is not None,
        )

    def _make_budget(self, buffer_bytes: int) -> Budget:
        """Load the libraries and an engine, because the budget counts what is in memory already."""
        options, tokenizer, sources = self.plan.options, self.plan.tokenizer, self.sources
        settle_allocator()
        load_libraries(sources)
        if not self.engines:
            self.engines.append(tokenizer.engine())
        self.engine = tokenizer.provenance(self.engines[0])
        trim_memory()
        check_memory(options.memory_bytes, options.workers)
        return Budget(
            options.memory_bytes,
            options.workers,
            tokenizer.dtype.itemsize,
            engine_bytes=tokenizer.engine_bytes,
            engines=len(self.engines),
            library_bytes=tokenizer.library_bytes,
            remote=sources.remote,
            beside=buffer_bytes + (0 if sources.arrow_free else _KEPT_BY_ARROW),
            cuts=tokenizer.cut is not None,
        )

    @property
    def _eot_id(self) -> int:
        return self.plan.tokenizer.eot or 0

    def take_engine(self) -> Engine:
        """An engine that is not in use, or a new one. Append it to `engines` after use."""
        try:
            return self.engines.pop()
        except IndexError:
            return self.plan.tokenizer.engine()

    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """OutputError when a sample of the text says that the output would clearly not fit."""
        plan, reading = self.plan, self._reading
        if surely_fits(plan, destination, outputs):
            return
        # Imported here, since most runs never get here and it takes a twentieth of a second.
        from shardmill.inspection import (
            Expected,
            Looking,
            expected,
            looking_fetcher,
            output_sizes,
            table_size,
            take_sample,
        )  # fmt: skip

        sized = plan.sources.without(number for number, size in enumerate(plan.sources.sizes) if size <= 0)
        engine = self.take_engine()
        # Not with the run's fetcher, which expects the sources in their order.
        with looking_fetcher() as fetcher:
            looking = Looking(replace(reading, spans=False, tail=None), self.budget, fetcher, engine)
            kinds = take_sample(sized, looking, places=_PLACES, seconds=_SECONDS)
        self.engines.append(engine)
        need = doubt = 0.0
        for output in outputs:
            separated, marked = reading.separator is not None, output.eot != "none"
            parts = (expected(kind, separated=separated, eot=marked) for kind in kinds)
            all_of_it = sum(parts, Expected())
            width = output.dtype.itemsize
            sizes = output_sizes(all_of_it, width, plan.tokenizer.vocab_size, plan.options.tokens_per_shard)
            tokens = all_of_it.tokens
            unsure = _UNSURE * tokens.value if tokens.margin is None else tokens.margin
            size, margin = destination.space(output, sizes[output.format], unsure * width)
            need, doubt = need + size, doubt + margin
        need += table_size(all_of_it)
        destination.check_free(need, doubt, f"{destination.hint}; `--limit` prepares only a part of the text")

    @contextmanager
    def batches(self, position: dict[str, Any] | None) -> Iterator[Iterator[Batch]]:
        """BudgetError when memory runs out nevertheless."""
        made = TextBatches(position, self.sources, self.budget, self.eots, self.plan.tokenizer.dtype, self._eot_id)
        self.position = made.at
        # The fetcher ends first: a feeder that waits for a silent server would hold up the end of the pipeline.
        with (
            memory_limit(self.budget.memory) as ours,
            self._memory_errors(ours),
            Pipeline(self) as pipeline,
            self._fetcher,
        ):
            encoded = pipeline.run(self._entries(made.at.source, made.at.in_source))
            yield self._unlimited(encoded, made) if self.plan.options.limit is None else self._limited(encoded, made)

    def _entries(self, source: int, position: Position) -> Iterator[Entry]:
        """What is still to be read, in plan order."""
        size = self.budget.chunk_bytes
        chunks = chunks_of(
            self.sources, source, position, self._reading, self.budget, size, self._fetcher, self._bounds
        )
        yield from itertools.starmap(Entry, chunks)

    @staticmethod
    def _unlimited(encoded: Iterator[EncodedChunks], made: TextBatches) -> Iterator[Batch]:
        for chunks in encoded:
            yield from made.batches(chunks)

    def _limited(self, encoded: Iterator[EncodedChunks], made: TextBatches) -> Iterator[Batch]:
        """The batches up to `--limit`; the chunks that reach it are encoded again with fewer rows.

        A long stretch is taken whole: it cannot be encoded again.
        """
        for chunks in encoded:
            limit, chunk = made.limit(chunks, *self.plan.options.limits), chunks.entries[0].chunk
            if limit.nothing and (chunks.begins or chunks.stream):
                yield made.end()
                return
            whole = (chunks.ends or chunks.stream) and not (chunk is not None and chunk.long)
            if whole and limit.is_inside(chunks.streams[self.eots[0]].rows, stream=chunks.stream):
                yield from made.batches(encode(self, chunks.entries, limit), last=True)
                return
            yield from made.batches(chunks)

    @contextmanager
    def _memory_errors(self, ours: bool) -> Iterator[None]:
        """`ours`: the limit that was reached is this run's, not the system's."""
        try:
            yield
        except (MemoryError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            if isinstance(error, RuntimeError) and str(error) != _NO_STACK:
                raise
            source = self.sources[min(self.position.source, len(self.sources) - 1)]
            raise self.budget.exhausted(source.name, ours=ours) from error
