"""Checkpoints: sync what was written and record it in the journal, in a background thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardmill.errors import Interrupted, OutputError, ShardmillError, StuckError
from shardmill.shards import ShardWriter
from shardmill.storage import PartialFile, Written
from shardmill.write.facts import Facts
from shardmill.write.journal import SavedRun

if TYPE_CHECKING:
    from shardmill.write.destination import Destination

# Seconds between checkpoints: the work that a crash costs, besides the chunks in flight. Frequent, so that the disk is
# busy all the time instead of at the end.
_EVERY = 0.5
_SLOW = 10.0  # seconds for one checkpoint, after which the progress line mentions the disk
_TIMEOUT = 600.0  # seconds for one checkpoint; a disk that takes longer has failed


class Checkpoints:
    """Records in the journal what the outputs of a run have written. One thread uses it; `thread` syncs files."""

    def __init__(
        self,
        destination: Destination,
        outputs: Sequence[ShardWriter],
        thread: Executor,
        state: Callable[[], dict[str, Any]],
    ) -> None:
        """`state` returns what a later run needs to continue from here, except for the outputs' positions."""
        self._destination, self._outputs, self._thread, self._state = destination, outputs, thread, state
        self.files: list[tuple[int, str, Written]] = []
        """Complete files: the number of the output, the split, and what the manifest says."""
        self.extra_files: list[PartialFile] = []
        """Other files to sync with the outputs."""
        self._consistent = True
        self._running: Future[None] | None = None
        self._last = time.monotonic()

    def begin(self, facts: Facts, saved_run: SavedRun | None) -> dict[str, Any] | None:
        """Start from nothing, or from what an earlier run has recorded; return the state that it recorded.

        OutputError when files that shardmill did not make are in the way.
        """
        saved = saved_run.state if saved_run else None
        if saved_run is None:
            self._destination.check_conflicts(self._outputs)
        elif saved:
            self.files = [(i, split, Written(**entry)) for i, split, entry in saved_run.files]
        self._destination.begin(facts, [written for _, _, written in self.files], self._outputs)
        for i, output in enumerate(self._outputs):
            position = saved["outputs"][i] if saved else output.position()
            output.restore(position, [written for j, _, written in self.files if j == i])
        self._destination.journal.begin(facts, self._entries, saved)
        return saved

    def adopt(self, files: list[tuple[int, str, Written]]) -> None:
        """Take over complete files that were written by others."""
        self._wait()
        self.files += files

    @contextmanager
    def step(self, *, final: bool = True) -> Iterator[None]:
        """Around changes that must be recorded together or not at all: an interrupt may come between any two lines.

        Not `final`: a later run cannot continue from here, so nothing is recorded before a step that is final.
        """
        self._consistent = False
        yield
        self._consistent = final

    def keep(self, *, now: bool = False) -> None:
        """Start a checkpoint when it is time for one; with `now` make one in any case, and wait for its end.

        After a step that is not final, full files get their names and nothing is recorded.
        """
        if self._running is not None and self._running.done():
            self._wait()
        consistent = self._consistent
        too_many_full = sum(output.full for output in self._outputs) >= self._destination.waiting_files
        due = consistent and self._running is None and time.monotonic() - self._last >= _EVERY
        if not (now or too_many_full or due):
            return
        self._wait()
        self._last = time.monotonic()
        saved = {**self._state(), "outputs": [output.position() for output in self._outputs]} if consistent else None
        extra_files = [(file, file.length) for file in self.extra_files]
        # From here on the outputs assume that their full files get their names: record nothing if this fails.
        with self.step(final=consistent):
            syncs = [output.prepare_sync() for output in self._outputs]
            self._running = self._thread.submit(self._sync, syncs, extra_files, saved, now)
        if now:
            self._wait()

    def wait_message(self) -> str:
        """Return what the progress line says if the disk has not answered for some time; empty if it has."""
        running, seconds = self._running, time.monotonic() - self._last
        waits = running is not None and not running.done() and self._destination.medium == "disk"
        return f"the disk has not answered for {seconds:.0f} s" if waits and seconds > _SLOW else ""

    def stop(self, error: BaseException, kept: str | None) -> None:
        """Record what is done when a run ends early, and put `kept` into the error."""
        if isinstance(error, StuckError):
            return
        try:
            if self._consistent:
                self.keep(now=True)
                here = self._destination.folder
                self._destination.ended_early(
                    [file for file in self.extra_files if file.path.parent == here and file.length]
                )
            else:
                self._wait()
        except StuckError:
            raise
        except OutputError as failed:  # the disk itself fails: what was recorded before remains valid
            if error is not failed and isinstance(error, ShardmillError) and error.hint is None:
                error.hint = failed.message
        if isinstance(error, (ShardmillError, Interrupted)) and error.kept is None:
            error.kept = kept

    def _sync(
        self, syncs: list[Any], extra_files: list[tuple[PartialFile, int]], saved: dict[str, Any] | None, now: bool
    ) -> None:
        done = [(i, split, written) for i, work in enumerate(syncs) for split, written in work()]
        self._destination.deliver([written for _, _, written in done])
        self.files += done
        if saved is None:
            return
        for file, length in extra_files:
            file.sync(length)
        self._destination.record(self._entries, saved, now=now)
        for output in self._outputs:
            output.recorded()

    def _entries(self, first: int = 0) -> list[Any]:
        """The complete files from a number on, as the journal lists them."""
        return [[i, split, written.entry()] for i, split, written in self.files[first:]]

    def _wait(self) -> None:
        if self._running is None:
            return
        waiting = time.monotonic()
        while not wait_for([self._running], timeout=_TIMEOUT).done:
            # An upload of gigabytes over a slow line may take long: for a store, only silence is a failure.
            if self._destination.last_response < waiting:
                self._destination.journal.stuck = self._destination.medium == "disk"
                raise StuckError(
                    f"the {self._destination.medium} has not answered for {_TIMEOUT:.0f} seconds",
                    place=str(self._destination.shown),
                    kept="progress recorded before; the same command resumes the run",
                )
            waiting = time.monotonic()
        # A failed checkpoint is kept: after files that never got their names, nothing may be recorded.
        self._running.result()
        self._running = None


@contextmanager
def checkpoint_thread() -> Iterator[Executor]:
    """The thread that makes checkpoints; at the end it is waited for, unless the disk does not answer."""
    thread, stuck = ThreadPoolExecutor(1, "shardmill-checkpoints"), False
    try:
        yield thread
    except StuckError:
        stuck = True
        raise
    finally:
        thread.shutdown(wait=not stuck, cancel_futures=stuck)
