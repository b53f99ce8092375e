"""Text as a stream of batches: chunks go out to the workers, and come back in plan order as tokens."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.documents import Reading, check_tails, chunks_of, load_libraries
from shardmill.options import Val
from shardmill.run.budget import Budget
from shardmill.run.loop import Producer
from shardmill.run.machine import hand_back, settle_allocator
from shardmill.run.pipeline import Pipeline
from shardmill.run.plan import Plan
from shardmill.run.process_limit import limited
from shardmill.run.splits import Limit
from shardmill.run.worker import Batch, Entry, Worker, WorkerSettings
from shardmill.shards import SPLITS
from shardmill.storage import Cache, Fetcher, Sources

if TYPE_CHECKING:
    from shardmill.run.destination import Destination
    from shardmill.run.writer import Writer
    from shardmill.shards import Output
    from shardmill.tokens import Engine

_PLACES, _SECONDS = 12, 1.0  # of a sample: whether the output will fit on the disk
_NO_STACK = "can't start new thread"
"""What Python says where there is no memory for the stack of a thread, in a RuntimeError."""
# What Arrow's allocator keeps of what was freed: without it, files with pages of 5 MB failed near the least memory.
_KEPT_BY_ARROW = 22_000_000


class EncodedText(Producer):
    """The sources of a plan, read and encoded."""

    def __init__(self, plan: Plan, outputs: list[Output], room: int = 0, engines: list[Engine] | None = None) -> None:
        """BudgetError when it cannot be done in the memory that is allowed; nothing is touched.

        `room`: bytes of memory that are buffered on the way out. `engines`: one that an earlier run of this process
        has left, if there was one; this run leaves one there too.
        """
        options, val = plan.options, Val.parse(plan.options.val)
        self._plan, self.facts, self.sources = plan, plan.facts(), plan.sources
        self.splits = ("train",) if val.nothing else SPLITS
        self.first, self.bad_allowed = val.first, options.bad_allowed
        # Also where nothing is dealt by content: `first:N` and `--limit` count by rows, which must not be chunks.
        spans = options.separator is None and not (val.nothing and options.limit is None)
        if val.tail:
            check_tails(plan.sources)
        engines = [] if engines is None else engines
        self._load(engines)
        self.budget = self._make_budget(room)
        cache = Cache(options.cache) if options.cache else None
        self._fetcher = Fetcher(plan.sources, self.budget.ahead, cache=cache)
        self._settings = WorkerSettings(
            tokenizer=plan.tokenizer,
            val=val,
            seed=options.seed,
            eots=tuple(dict.fromkeys(output.eot for output in outputs)),
            budget=self.budget,
            spans=spans,
            limited=options.limit is not None,
            warm=engines,
        )
        self._reading = Reading(
            text_field=options.text_field,
            separator=options.separator_bytes,
            gaps=True,
            cut=plan.tokenizer.cut,
            spans=spans,
            tail=val.tail or None,
            limited=options.limit is not None,
            largest=self.budget.largest,
            hold=self.budget.hold,
            fetcher=self._fetcher,
        )

    def _load(self, engines: list[Engine]) -> None:
        """Put everything to work that the budget must see: the libraries, and an engine."""
        settle_allocator()
        load_libraries(self.sources)
        if not engines:
            engines.append(self._plan.tokenizer.engine())
        self.engine = self._plan.tokenizer.provenance(engines[0])
        hand_back()

    def _make_budget(self, room: int) -> Budget:
        options, tokenizer = self._plan.options, self._plan.tokenizer
        return Budget(
            options.memory_bytes,
            options.workers,
            tokenizer.vocab_size,
            tokenizer.dtype.itemsize,
            engine_bytes=tokenizer.engine_bytes,
            engines=1,
            library_bytes=tokenizer.library_bytes,
            remote=self.sources.remote,
            beside=room + (0 if self.sources.light else _KEPT_BY_ARROW),
        )

    @property
    def retries(self) -> int:  # type: ignore[override]
        return self._fetcher.retries.count

    def trouble(self) -> str:
        return self._fetcher.retries.words()

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """OutputError when a sample of the text says that the output would clearly not fit."""
        plan, reading = self._plan, self._reading
        total = plan.sources.bytes_before(len(plan.sources))
        free = shutil.disk_usage(destination.folder).free
        most = total * 4 * max(output.dtype.itemsize for output in outputs) * len(outputs)
        if most < min(free, destination.largest_file or free) or plan.options.limit is not None:
            return  # would fit at one token for every byte of text, at a compression of four
        # Only now: most runs come this far never, and these take a twentieth of a second to load.
        from shardmill.sampling import Expected, expected, looking_fetcher, output_sizes, take_sample

        sized = Sources(source for source in plan.sources if source.size)
        engine = self._settings.engine()
        # With a fetcher of its own: that of the run expects the sources in their order.
        with looking_fetcher() as fetcher:
            looking = replace(reading, gaps=False, spans=False, tail=None, fetcher=fetcher)
            kinds = take_sample(sized, looking, engine, places=_PLACES, seconds=_SECONDS)
        self._settings.warm.append(engine)
        need = doubt = 0.0
        for output in outputs:
            separated, marked = reading.separator is not None, output.eot != "none"
            parts = (expected(kind, separated=separated, eot=marked) for kind in kinds)
            all_of_it = sum(parts, Expected())
            width = output.dtype.itemsize
            sizes = output_sizes(all_of_it, width, plan.tokenizer.vocab_size, plan.options.tokens_per_shard)
            size, margin = destination.space(output, sizes[output.format], all_of_it.tokens.margin * width)
            need, doubt = need + size, doubt + margin
        destination.check_free(need, doubt)

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        """BudgetError when memory runs out in spite of all."""
        own = Worker(self._settings)
        # The fetcher ends first: a feeder that waits for a silent server would hold up the end of the pipeline.
        with (
            limited(self.budget.memory) as ours,
            self._memory_errors(writer, ours),
            Pipeline(self._settings) as pipeline,
            self._fetcher,
        ):
            batches = pipeline.run(self._entries(writer), own)
            yield batches if self._plan.options.limit is None else self._limited(batches, writer, own)

    def _entries(self, writer: Writer) -> Iterator[Entry]:
        """What is still to be read, in plan order."""
        state = writer.state
        chunks = chunks_of(self.sources, state.source, state.position, self._reading, self.budget.chunk_bytes)
        yield from itertools.starmap(Entry, chunks)

    def _limited(self, batches: Iterator[Batch], writer: Writer, own: Worker) -> Iterator[Batch]:
        """The batches up to `--limit`; the one that reaches it is made again with fewer rows."""
        documents, tokens = self._plan.options.limits
        for batch in batches:
            done = writer.done()
            limit = Limit(
                None if documents is None else documents - done.documents,
                None if tokens is None else tokens - done.tokens,
            )
            if limit.nothing:
                yield Batch([], [], {}, last=True)
                return
            if batch.reaches(limit):
                batch = own.encode(batch.entries, limit)
                batch.last = True
                yield batch
                return
            yield batch

    @contextmanager
    def _memory_errors(self, writer: Writer, ours: bool) -> Iterator[None]:
        """`ours`: what was reached is the limit of this run, not the system's."""
        try:
            yield
        except (MemoryError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            if isinstance(error, RuntimeError) and str(error) != _NO_STACK:
                raise
            source = self.sources[min(writer.state.source, len(self.sources) - 1)]
            raise self.budget.exhausted(source.name, ours=ours) from error
