"""The main loop: batches of tokens in order → shards → manifest, whatever produces the batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from shardmill import __version__
from shardmill.shards import SPLITS, ShardWriter
from shardmill.storage import Retries, write_whole
from shardmill.write.checkpoints import checkpoint_thread
from shardmill.write.destination import Destination
from shardmill.write.facts import SKIPPED, Facts, fingerprint
from shardmill.write.journal import SavedRun
from shardmill.write.ledger import Ledger
from shardmill.write.manifest import NAME, Manifest, describe_outputs, manifest_json
from shardmill.write.progress import Done, MemoryUse, Progress
from shardmill.write.summary import Result
from shardmill.write.warnings import warnings_about
from shardmill.write.writer import Writer

if TYPE_CHECKING:
    from shardmill.source_list import Sources
    from shardmill.write.batch import Batch


class RunMemory(MemoryUse, Protocol):
    """The memory of a run, and the most that was held of it."""

    @property
    def peak(self) -> int: ...


class Producer(ABC):
    """A stream of batches in order, which can continue at the position of any of them.

    Encoded text is one kind, stored tokens are another, and the parts of a merge a third.
    """

    facts: Facts
    """Everything that the bytes of the dataset depend on."""
    sources: Sources
    budget: RunMemory
    splits: tuple[str, ...] = SPLITS
    """The splits that the dataset has."""
    first: int = 0
    """Tokens that val takes before train gets any, under `--val first:N`."""
    bad_allowed: float | int | None = None
    engine: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    """What encodes: its libraries, and a hash of their tokens for a difficult text."""
    retries = Retries()
    """Of requests for sources."""
    table: Literal["sources", "numbers", ""] = "sources"
    """What the documents table says of a document: its source and record, or only its number in the split, because
    nothing says where it comes from; empty: there is no table, because nothing says where documents end."""
    has_used_files = False
    """It holds files that are not needed once a checkpoint has recorded its position: `delete_used_files` follows."""

    @abstractmethod
    def batches(self, position: dict[str, Any] | None) -> AbstractContextManager[Iterator[Batch | None]]:
        """The batches after a position that one of them had; None: all. A batch may be None, where there is no other.

        Leaving the context ends all threads, whatever happened.
        """

    @abstractmethod
    def check_space(self, destination: Destination, outputs: list[ShardWriter]) -> None:
        """Raise OutputError when the outputs would clearly not fit."""

    def remarks(self, ledger: Ledger) -> dict[str, Any]:
        """Additional entries of the manifest, when all batches are written."""
        return {}

    def delete_used_files(self) -> None:  # noqa: B027 - most have none
        """Delete the files that batches before the recorded position were made from."""


@dataclass
class Run:
    """One run, from the last checkpoint to the manifest."""

    producer: Producer
    destination: Destination
    outputs: list[ShardWriter]
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
            writer = self._open_writer(thread)
            writer.begin(self.producer.facts, self.producer.engine, saved_run)
            engine, resumed = self.producer.engine.get("libraries", ""), saved_run is not None
            text_before = writer.text_bytes
            with self._reporting_progress(writer) as report, self._recording_an_early_end(writer):
                with self.producer.batches(writer.position) as batches:
                    for batch in batches:
                        if batch is not None:
                            writer.write(batch)
                        if self.producer.has_used_files:
                            writer.checkpoints.keep(now=True)
                            self.producer.delete_used_files()
                        report()
                manifest = self._complete(writer)
        totals = writer.ledger.counts.totals
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

    def _open_writer(self, thread: Executor) -> Writer:
        producer, destination = self.producer, self.destination
        ledger = Ledger(destination, producer.sources, producer.bad_allowed)
        return Writer(destination, self.outputs, ledger, thread, producer.splits, producer.first, producer.table)

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
            self.producer.sources.refuse_second_reading(saved_run.source)
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
            progress.status = lambda: producer.retries.status() or destination.retries.status() or waits()
            progress.begin(producer.sources.total_bytes, self._done(writer), producer.budget)
            yield lambda: progress.update(self._done(writer))
        finally:
            progress.end()

    def _done(self, writer: Writer) -> Done:
        ledger, totals = writer.ledger, writer.ledger.counts.totals
        retries = self.producer.retries.count + self.destination.retries.count
        return Done(
            ledger.bytes, totals["documents"], writer.tokens, totals["rejected"], ledger.source_name, retries=retries
        )

    def _complete(self, writer: Writer) -> Manifest:
        """Finish all files, then write the manifest, last of all."""
        rejects = writer.finish()
        facts, ledger = self.producer.facts, writer.ledger
        counts = [{split: count[split] for split in self.producer.splits} for count in writer.counts]
        first, *others = describe_outputs(self.outputs, writer.checkpoints.files, counts)
        entries = {
            "shardmill": __version__,
            "fingerprint": fingerprint(facts),
            **{key: first[key] for key in ("format", "dtype", "eot")},
            "tokenizer": facts["tokenizer"],
            "splits": first["splits"],
            "sources": ledger.sources(),
            **{name: ledger.counts.totals[name] for name in ("documents", "empty", "rejected", "replaced")},
            **rejects,
            **({SKIPPED: facts[SKIPPED]} if SKIPPED in facts else {}),
            **self.producer.remarks(ledger),
            "options": facts["options"],
            **({"also": others} if others else {}),
        }
        manifest = cast("Manifest", entries)
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
