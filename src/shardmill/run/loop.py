"""The main loop: batches of tokens in order → shards → manifest, whoever makes the batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill import __version__
from shardmill.run.checkpoints import checkpoint_thread
from shardmill.run.destination import Destination
from shardmill.run.journal import Journal, SavedRun
from shardmill.run.manifest import NAME, describe_outputs, each_output, manifest_json
from shardmill.run.plan import Facts, fingerprint
from shardmill.run.progress import Done, Progress
from shardmill.run.record import RunRecord
from shardmill.run.summary import as_html, as_line
from shardmill.run.writer import Writer
from shardmill.shards import FORMATS, SPLITS, Output, foreseen
from shardmill.storage import Sources, refuse_second_reading, waiting_words, write_whole

if TYPE_CHECKING:
    from shardmill.run.budget import Budget
    from shardmill.run.worker import Batch


@dataclass(frozen=True)
class Result:
    """What a run has made."""

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

    def __repr__(self) -> str:
        return as_line(self)

    def _repr_html_(self) -> str:
        return as_html(self)


class Producer(ABC):
    """A stream of batches in order, which can be entered at any position that the writer has recorded.

    Text that is encoded is one kind, stored tokens are another.
    """

    facts: Facts
    """All that the bytes are a function of."""
    sources: Sources
    budget: Budget
    splits: tuple[str, ...] = SPLITS
    """Those that the dataset has."""
    first: int = 0
    """Tokens that val takes before train gets any, under `--val first:N`."""
    bad_allowed: float | int | None = None
    engine: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    """What encodes: its libraries, and a hash of what they give for a hard text."""
    remarks: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    """What the manifest says besides."""
    retries = 0
    """Requests for sources that were retried."""

    @abstractmethod
    def batches(self, writer: Writer) -> AbstractContextManager[Iterator[Batch]]:
        """The batches from the writer's position on. Leaving the context ends all threads, whatever happened."""

    @abstractmethod
    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """OutputError when the outputs would clearly not fit."""

    def trouble(self) -> str:
        """What is being retried just now, in words; empty when all is well."""
        return ""


class Run:
    """One run, from where the journal stands to the manifest."""

    def __init__(
        self,
        producer: Producer,
        destination: Destination,
        outputs: list[Output],
        progress: Progress,
        *,
        overwrite: bool = False,
    ) -> None:
        self._producer, self._destination, self._outputs = producer, destination, outputs
        self._progress, self._overwrite = progress, overwrite

    def go(self) -> Result:
        """Make the dataset, or what is missing of it; MismatchError when another one is there."""
        with self._destination.at_work(overwrite=self._overwrite) as journal:
            if not self._overwrite and (manifest := self._destination.finished(self._producer.facts)):
                return Result(self._destination.shown, manifest, already=True)
            return self._make(journal)

    def _make(self, journal: Journal) -> Result:
        started = time.monotonic()
        producer, destination = self._producer, self._destination
        saved_run = self._find_saved_run(journal)
        with checkpoint_thread() as thread:
            writer = Writer(producer, destination, journal, self._outputs, thread)
            writer.begin(saved_run)
            history = RunRecord(journal.folder, thread.submit)
            with self._watched(writer, history, saved_run) as tell, self._recording_an_early_end(writer, journal):
                with producer.batches(writer) as batches:
                    for batch in batches:
                        writer.write(batch)
                        tell()
                manifest = self._complete(writer, journal)
        return Result(
            destination.shown,
            manifest,
            time.monotonic() - started,
            producer.budget.peak,
            writer.state.totals["replaced"],
            writer.state.totals["fallbacks"],
            _warnings(self._outputs, manifest),
            resumed=saved_run is not None,
            retries=self._done(writer).retries,
            engine=producer.engine.get("libraries", ""),
        )

    def _find_saved_run(self, journal: Journal) -> SavedRun | None:
        """What to go on from; None: nothing, and there is space for the whole. MismatchError for another plan's."""
        producer, destination = self._producer, self._destination
        if self._overwrite:
            destination.remove_dataset(producer.facts, self._outputs)
            journal.clear(plan=False)
        saved_run = journal.resume(producer.facts)
        if saved_run is None:
            destination.record_commits()
            producer.check_space(destination, self._outputs)
        else:
            refuse_second_reading(producer.sources, saved_run.state.get("source", 0) if saved_run.state else 0)
        return saved_run

    @contextmanager
    def _recording_an_early_end(self, writer: Writer, journal: Journal) -> Iterator[None]:
        """Whatever ends the run, what is done by then is recorded, and all files are closed."""
        try:
            yield
        except BaseException as why:
            writer.checkpoints.stop(why, writer.kept())
            raise
        finally:
            if not journal.stuck:
                writer.close()

    @contextmanager
    def _watched(self, writer: Writer, history: RunRecord, saved_run: SavedRun | None) -> Iterator[Callable[[], None]]:
        """Progress and the record of the run, which what it gives tells how far the run has come."""
        producer, destination, progress = self._producer, self._destination, self._progress
        libraries, complete = producer.engine.get("libraries", ""), False

        def tell() -> None:
            done = self._done(writer)
            progress.update(done)
            history.update(done)

        history.begin(writer.done(), producer.budget, libraries, saved_run is not None)
        try:
            progress.trouble = lambda: producer.trouble() or destination.trouble() or waiting_words()
            progress.begin(producer.sources.total_bytes, self._done(writer), producer.budget)
            yield tell
            complete = True
        finally:
            progress.end()
            history.end(self._done(writer), complete=complete)

    def _done(self, writer: Writer) -> Done:
        """How far it has come, and what it took."""
        retries = self._producer.retries + self._destination.retries
        return replace(writer.done(), retries=retries, engines=self._producer.budget.engines_replaced)

    def _complete(self, writer: Writer, journal: Journal) -> dict[str, Any]:
        """Finish all files, then say so: the manifest comes last."""
        beside = writer.finish()
        facts, state = self._producer.facts, writer.state
        counts = [{split: count[split] for split in self._producer.splits} for count in state.counts]
        described = describe_outputs(self._outputs, writer.checkpoints.files, counts)
        manifest = {
            "shardmill": __version__,
            "fingerprint": fingerprint(facts),
            **{key: described[0][key] for key in ("format", "dtype", "eot")},
            "tokenizer": facts["tokenizer"],
            "splits": described[0]["splits"],
            "sources": writer.sources(),
            **{name: state.totals[name] for name in ("documents", "empty", "rejected", "replaced")},
            **beside,
            **self._producer.remarks,
            "options": facts["options"],
            **({"also": described[1:]} if described[1:] else {}),
        }
        write_whole(self._destination.folder / NAME, manifest_json(manifest))
        self._destination.complete()
        journal.clear(plan=True)
        return manifest


def _warnings(outputs: list[Output], manifest: dict[str, Any]) -> tuple[str, ...]:
    """What the readers of the formats will trip over."""
    described = zip(outputs, each_output(manifest), strict=True)
    known = [output.format for output in outputs if output.format in FORMATS]  # a part has no readers
    return (*foreseen(known), *(warning for output, one in described for warning in output.warnings(one["splits"])))
