"""The main loop: batches of tokens in order → shards → manifest, whatever produces the batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardmill import __version__
from shardmill.run.checkpoints import checkpoint_thread
from shardmill.run.destination import Destination
from shardmill.run.found import warnings_about
from shardmill.run.journal import SavedRun
from shardmill.run.manifest import NAME, TABLE, describe_outputs, manifest_json, tables_of
from shardmill.run.plan import SKIPPED, Facts, fingerprint
from shardmill.run.progress import Done, Progress
from shardmill.run.summary import Result
from shardmill.run.writer import Writer
from shardmill.shards import SPLITS, Output
from shardmill.storage import write_whole

if TYPE_CHECKING:
    from shardmill.run.batch import Batch
    from shardmill.run.budget import Budget
    from shardmill.source_list import Sources


class Producer(ABC):
    """A stream of batches in order, which can start at any position that the writer has recorded.

    Encoded text is one kind, stored tokens are another, and the parts of a merge a third.
    """

    facts: Facts
    """Everything that the bytes of the dataset depend on."""
    sources: Sources
    budget: Budget
    splits: tuple[str, ...] = SPLITS
    """The splits that the dataset has."""
    first: int = 0
    """Tokens that val takes before train gets any, under `--val first:N`."""
    bad_allowed: float | int | None = None
    engine: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    """What encodes: its libraries, and a hash of their tokens for a difficult text."""
    remarks: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    """Additional entries of the manifest."""
    retries = 0
    """Requests for sources that were retried."""
    has_table = True
    """The dataset gets a documents table."""
    numbers_documents = False
    """Nothing says where documents come from: the table has the number of each in its split."""

    @abstractmethod
    def batches(self, writer: Writer) -> AbstractContextManager[Iterator[Batch]]:
        """The batches after the writer's position. Leaving the context ends all threads, whatever happened."""

    @abstractmethod
    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """Raise OutputError when the outputs would clearly not fit."""

    def retry_status(self) -> str:
        """A message about the request that is being retried now; empty when there is none."""
        return ""


@dataclass
class Run:
    """One run, from the last checkpoint to the manifest."""

    producer: Producer
    destination: Destination
    outputs: list[Output]
    progress: Progress
    overwrite: bool = False

    def go(self) -> Result:
        """Make the dataset, or what is missing of it; MismatchError when there is another one."""
        if done := self._finished_result():
            return done
        with self.destination.locked(overwrite=self.overwrite):
            return self._finished_result() or self._make()

    def _finished_result(self) -> Result | None:
        return None if self.overwrite else finished_result(self.destination, self.producer.facts, self.producer.sources)

    def _make(self) -> Result:
        started = time.monotonic()
        saved_run = self._find_saved_run()
        with checkpoint_thread() as thread:
            writer = Writer(self.producer, self.destination, self.outputs, thread)
            writer.begin(saved_run)
            engine, resumed = self.producer.engine.get("libraries", ""), saved_run is not None
            text_before = sum(split["bytes"] for split in writer.state.counts[0].values())
            with self._reporting_progress(writer) as report, self._recording_an_early_end(writer):
                with self.producer.batches(writer) as batches:
                    for batch in batches:
                        writer.write(batch)
                        report()
                manifest = self._complete(writer)
        totals = writer.state.totals
        return Result(
            self.destination.shown,
            manifest,
            seconds=time.monotonic() - started,
            peak_memory=self.producer.budget.peak,
            replaced=totals["replaced"],
            fallbacks=totals["fallbacks"],
            warnings=warnings_about(self.outputs, manifest),
            resumed=resumed,
            text_before=text_before,
            retries=self._done(writer).retries,
            engine=engine,
        )

    def _find_saved_run(self) -> SavedRun | None:
        """The run to continue; None: there is none, and enough space. MismatchError when it has another plan."""
        facts = self.producer.facts
        if self.overwrite:
            self.destination.remove_dataset(facts, self.outputs)
        else:
            self.destination.finish_removal(facts)
        saved_run = self.destination.journal.resume(facts)
        if saved_run is None:
            self.producer.check_space(self.destination, self.outputs)
        else:
            first = saved_run.state.get("source", 0) if saved_run.state else 0
            self.producer.sources.refuse_second_reading(first)
        return saved_run

    @contextmanager
    def _recording_an_early_end(self, writer: Writer) -> Iterator[None]:
        """Whatever ends the run, record what is done by then, and close all files."""
        try:
            yield
        except BaseException as error:
            writer.checkpoints.stop(error, writer.kept())
            raise
        finally:
            if not self.destination.journal.stuck:
                writer.close()

    @contextmanager
    def _reporting_progress(self, writer: Writer) -> Iterator[Callable[[], None]]:
        """Show progress; yields a function to call after every batch."""
        producer, destination, progress = self.producer, self.destination, self.progress
        try:
            waits = writer.checkpoints.wait_message
            progress.status = lambda: producer.retry_status() or destination.retry_status() or waits()
            progress.begin(producer.sources.total_bytes, self._done(writer), producer.budget)
            yield lambda: progress.update(self._done(writer))
        finally:
            progress.end()

    def _done(self, writer: Writer) -> Done:
        retries = self.producer.retries + self.destination.retries
        return replace(writer.done(), retries=retries)

    def _complete(self, writer: Writer) -> dict[str, Any]:
        """Finish all files, then write the manifest, last of all."""
        rejects = writer.finish()
        facts, state = self.producer.facts, writer.state
        counts = [{split: count[split] for split in self.producer.splits} for count in state.counts]
        first, *others = describe_outputs(self.outputs, writer.checkpoints.files, counts)
        for name, table in tables_of(writer.checkpoints.files).items():
            first["splits"][name][TABLE] = table
        manifest = {
            "shardmill": __version__,
            "fingerprint": fingerprint(facts),
            **{key: first[key] for key in ("format", "dtype", "eot")},
            "tokenizer": facts["tokenizer"],
            "splits": first["splits"],
            "sources": writer.sources(),
            **{name: state.totals[name] for name in ("documents", "empty", "rejected", "replaced")},
            **rejects,
            **({SKIPPED: facts[SKIPPED]} if SKIPPED in facts else {}),
            **self.producer.remarks,
            "options": facts["options"],
            **({"also": others} if others else {}),
        }
        write_whole(self.destination.folder / NAME, manifest_json(manifest))
        self.destination.complete()
        self.destination.journal.clear(plan=True)
        return manifest


def finished_result(destination: Destination, facts: Facts, sources: Sources) -> Result | None:
    """The result of an earlier run of the plan, if it is complete; MismatchError where that cannot be told."""
    manifest = destination.finished(facts)
    if manifest is None:
        return None
    sources.refuse_unversioned()
    return Result(destination.shown, manifest, already=True)
