"""Text in, token files out: plan → chunks → documents → tokens → shards → manifest."""

from __future__ import annotations

import inspect
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from shardmill import __version__, arguments
from shardmill.documents import Reading, chunks_of, load_libraries
from shardmill.errors import UsageError
from shardmill.options import Options, Val
from shardmill.run.budget import Budget
from shardmill.run.checkpoints import checkpoint_thread, describe_outputs, remove_dataset, warn
from shardmill.run.dealing import Most
from shardmill.run.journal import Journal, read_plan, refuse, tidy
from shardmill.run.machine import capped, hand_back, most_resident, settle_allocator
from shardmill.run.manifest import NAME, dataset_files, manifest_json, read_manifest
from shardmill.run.mirror import Mirror, at_work
from shardmill.run.pipeline import Pipeline
from shardmill.run.plan import Plan, SourceFacts, fingerprint
from shardmill.run.preflight import check_disk
from shardmill.run.progress import Progress
from shardmill.run.revisions import commits_of, record, recorded
from shardmill.run.worker import Entry, Milling, Worker
from shardmill.run.writer import REJECTS, Writer
from shardmill.shards import SPLITS, Output, open_output
from shardmill.sources import find_sources
from shardmill.sources.recipe_calls import apply_recipes
from shardmill.storage import PARTIAL, ROOM, waiting_words, write_whole
from shardmill.storage.cache import Cache
from shardmill.storage.fetching import Fetcher
from shardmill.tokens import load_tokenizer

_LEFT = REJECTS + PARTIAL
# Besides the workers: a feeder, a keeper, progress, and what libraries start; and those of the fetcher.
_THREADS, _FETCHING = 6, 8


@dataclass(frozen=True)
class Result:
    """What `prepare` has made."""

    out: Path | str
    """The folder, or the URL."""
    manifest: dict[str, Any]
    seconds: float = 0.0
    peak_memory: int = 0
    replaced: int = 0
    """Invalid UTF-8 sequences that became U+FFFD."""
    fallbacks: int = 0
    """Documents that the tokenizer's own library encoded, because the engine might have differed."""
    warnings: tuple[str, ...] = ()
    """What the readers of the formats will trip over."""
    already: bool = False
    """The dataset was complete before; nothing was done."""
    resumed: bool = False
    retries: int = 0
    """Requests to remote sources and to the output's store that were retried. Those that the store's library retries
    within an upload of many parts are not counted."""
    engine: str = ""
    """What encoded, and the library that it was compared with, with their versions."""


def prepare(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Turn `sources` into token files in the folder `out`, or below a URL; the keywords are the command's options.

    Raises a ShardmillError for all that can be expected to go wrong. The same call goes on from where one ended.
    """
    before = most_resident()
    arguments.instance("progress", progress, Progress)
    out = arguments.path("out", out)
    specs, options = apply_recipes(arguments.paths("sources", sources), Options.typed(options))
    chosen = Options.of(options)
    mirror = Mirror.of(out, Path(chosen.cache) if chosen.cache else None)
    folder = mirror.staging if mirror else Path(out)
    known = None if chosen.overwrite else mirror.recorded() if mirror else recorded(folder)
    plan = Plan(
        find_sources(specs, chosen.input_format, known, chosen.cache, out=folder, owned=dataset_files),
        load_tokenizer(chosen.tokenizer, pattern=chosen.pattern, specials=chosen.specials).with_delimiter(
            chosen.delimiter
        ),
        chosen,
    )
    if mirror:
        mirror.commits = commits_of(plan.sources)
    elif (folder / NAME).exists() and not chosen.overwrite:
        already = _already(plan, folder)
        tidy(folder)
        return already
    run = Run(plan, folder, _outputs(plan, folder), progress or Progress(), mirror)
    with at_work(folder, mirror, overwrite=chosen.overwrite) as journal:
        if mirror and (folder / NAME).exists() and not chosen.overwrite:
            already = _already(plan, folder)
            mirror.tidy(plan.facts())
            return replace(already, out=mirror.url)
        result = run.go(journal)
    # What was seen now and then is less than what there was. A process may have held more before it called us.
    most = most_resident()
    return replace(result, peak_memory=max(result.peak_memory, most if most > before else 0))


prepare.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in inspect.signature(prepare).parameters.values() if p.kind is not p.VAR_KEYWORD]
    + [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Options)],
    return_annotation=Result,
)


class Run:
    """One run, from where the journal stands to the manifest."""

    def __init__(
        self, plan: Plan, out: Path, outputs: list[Output], progress: Progress, mirror: Mirror | None = None
    ) -> None:
        """UsageError or BudgetError when it cannot be done as it is asked for; nothing is touched before `go`.

        With a `mirror`, `out` is its workplace.
        """
        options = plan.options
        self._plan, self._out, self._progress, self._mirror = plan, out, progress, mirror
        self._facts = plan.facts()
        self._val = Val.parse(options.val)
        self._outputs = outputs
        settle_allocator()
        separator = options.separator_bytes or b""
        gaps = plan.tokenizer.takes(separator)
        load_libraries(plan.sources)
        # At work already, so that the budget sees what the libraries take.
        warm = plan.tokenizer.engine(separator if gaps else b"")
        self._engine = plan.tokenizer.provenance(warm)
        hand_back()
        self._budget = Budget(
            options.memory_bytes,
            options.workers,
            plan.tokenizer.vocab_size,
            plan.tokenizer.dtype.itemsize,
            engine_bytes=plan.tokenizer.engine_bytes,
            library_bytes=plan.tokenizer.library_bytes,
            remote=plan.sources.remote,
            beside=ROOM if mirror else 0,
        )
        cache = Cache(options.cache) if options.cache else None
        self._fetcher = Fetcher(plan.sources, self._budget.ahead, cache=cache)
        # Also where nothing is dealt by content: `first:N` and `--limit` count by rows, which must not be chunks.
        spans = options.separator is None and not (self._val.nothing and options.limit is None)
        self._milling = Milling(
            tokenizer=plan.tokenizer,
            val=self._val,
            seed=options.seed,
            eots=tuple(dict.fromkeys(output.eot for output in self._outputs)),
            budget=self._budget,
            spans=spans,
            separator=separator if gaps else b"",
            limited=options.limit is not None,
            warm=[warm],
        )
        self._reading = Reading(
            text_field=options.text_field,
            separator=options.separator_bytes,
            gaps=gaps,
            cut=plan.tokenizer.cut,
            spans=spans,
            tail=self._val.tail or None,
            limited=options.limit is not None,
            largest=self._budget.largest,
            hold=self._budget.hold,
            fetcher=self._fetcher,
        )

    def go(self, journal: Journal) -> Result:
        started = time.monotonic()
        own = Worker(self._milling)
        if self._plan.options.overwrite:
            remove_dataset(self._out, journal, self._outputs, REJECTS, _LEFT, mirror=self._mirror, facts=self._facts)
        begun = journal.resume(self._facts)
        if begun is None:
            record(journal.folder, self._plan.sources)
            check_disk(self._plan, self._reading, self._milling, self._out, self._outputs, self._mirror)
        with checkpoint_thread() as keeper:
            writer = Writer(
                self._plan, self._out, journal, self._outputs, self._val, self._budget, keeper, self._mirror
            )
            writer.begin(self._facts, begun, self._engine)
            try:
                self._progress.trouble = self._retrying
                self._progress.begin(self._plan.total_bytes, writer.done(), self._budget)
                self._mill(writer, own)
                manifest = self._complete(writer, journal)
            except BaseException as why:
                writer.checkpoints.stop(why, writer.kept())
                raise
            finally:
                self._progress.end()
                if not journal.stuck:
                    writer.close()
        totals = writer.state.totals
        return Result(
            self._mirror.url if self._mirror else self._out,
            manifest,
            time.monotonic() - started,
            self._budget.peak,
            totals["replaced"],
            totals["fallbacks"],
            warn(self._outputs, manifest),
            resumed=begun is not None,
            retries=self._fetcher.retries.count + (self._mirror.retries.count if self._mirror else 0),
            engine=self._engine["libraries"],
        )

    def _retrying(self) -> str:
        """What the progress line says of what is being retried, or waited for."""
        stored = self._mirror.retries.words() if self._mirror else ""
        return self._fetcher.retries.words() or stored or waiting_words()

    def _mill(self, writer: Writer, own: Worker) -> None:
        """The main loop: chunks in plan order go out to the workers, and come back in plan order to be written."""
        budget = self._budget
        threads = budget.workers + _THREADS + (_FETCHING if budget.ahead else 0)
        # The fetcher ends first: a feeder that waits for a silent server would hold up the end of the pipeline.
        with (
            self._memory_errors(writer),
            capped(budget.memory, budget.ceiling, budget.workers, threads),
            Pipeline(self._milling) as pipeline,
            self._fetcher,
        ):
            for milled in pipeline.run(self._entries(writer), own):
                most = _left(self._plan.options.limits, writer)
                if most is not None and (most.nothing or milled.reaches(most)):
                    if not most.nothing:
                        writer.take(own.mill(milled.entries, most))
                    writer.leave_source()
                    return
                writer.take(milled)
                self._progress.update(writer.done())

    @contextmanager
    def _memory_errors(self, writer: Writer) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            source = self._plan.sources[min(writer.state.source, len(self._plan.sources) - 1)]
            raise self._budget.exhausted(source.name) from error

    def _entries(self, writer: Writer) -> Iterator[Entry]:
        """What is still to be read, in plan order."""
        state = writer.state
        chunks = chunks_of(self._plan.sources, state.source, state.position, self._reading, self._budget.chunk_bytes)
        return itertools.starmap(Entry, chunks)

    def _complete(self, writer: Writer, journal: Journal) -> dict[str, Any]:
        """Finish all files, then say so: the manifest comes last."""
        beside = writer.finish()
        options, tokenizer, state = self._plan.options, self._plan.tokenizer, writer.state
        counts = [{split: count[split] for split in writer.wanted} for count in state.counts]
        described = describe_outputs(self._outputs, writer.checkpoints.files, counts)
        manifest = {
            "shardmill": __version__,
            "fingerprint": fingerprint(self._facts),
            **{key: described[0][key] for key in ("format", "dtype", "eot")},
            "tokenizer": tokenizer.describe(),
            "splits": described[0]["splits"],
            "sources": writer.sources(),
            **{name: state.totals[name] for name in ("documents", "empty", "rejected", "replaced")},
            **beside,
            "options": options.shaping(),
            **({"also": described[1:]} if described[1:] else {}),
        }
        write_whole(self._out / NAME, manifest_json(manifest))
        if self._mirror:
            self._mirror.complete([_LEFT])
        journal.clear(plan=True)
        return manifest


def _outputs(plan: Plan, out: Path) -> list[Output]:
    """An output for each format that is asked for."""
    options, tokenizer = plan.options, plan.tokenizer
    outputs = [
        open_output(
            name,
            out,
            name=plan.name,
            dtype=tokenizer.dtype,
            shard_tokens=options.tokens_per_shard,
            eot=options.eot,
            tail=options.tail,
            tokenizer=tokenizer.name,
            vocab_size=tokenizer.vocab_size,
            splits=("train",) if Val.parse(options.val).nothing else SPLITS,
        )
        for name in options.format
    ]
    if tokenizer.eot is None and any(output.eot != "none" for output in outputs):
        raise UsageError(f"the tokenizer `{tokenizer.name}` has no end-of-text token", hint="add `--eot none`")
    return outputs


def _left(limits: tuple[int | None, int | None], writer: Writer) -> Most | None:
    """What `--limit` still allows; None: everything."""
    documents, tokens = limits
    if documents is None and tokens is None:
        return None
    written = sum(count["tokens"] for count in writer.state.counts[0].values())
    return Most(
        None if documents is None else documents - writer.state.totals["documents"],
        None if tokens is None else tokens - written,
    )


def _already(plan: Plan, out: Path) -> Result:
    """The complete dataset of the same plan; MismatchError if it is of another."""
    manifest = read_manifest(out)
    facts = plan.facts()
    if manifest["fingerprint"] != fingerprint(facts):
        known = {
            "options": manifest["options"],
            "tokenizer": manifest["tokenizer"],
            "sources": SourceFacts(lambda: ([source["name"], source["bytes"], ""] for source in manifest["sources"])),
        }
        refuse(read_plan(out) or known, facts, "the dataset")
    return Result(out, manifest, already=True)
