"""A dataset in an object store: it is made in a folder of this machine, and what is done is brought there.

    URL/NAME                             files that are whole, each put there in one piece
    URL/.shardmill/journal.json          its run and commits, the name of its plan, how far it came, and of which parts
    URL/.shardmill/plan-….json           the plan, named by its fingerprint and written once
    URL/.shardmill/RUN/…                 what there is of unfinished files: see unfinished.py
    URL/.shardmill/plan.json             what remains of this when the dataset is complete

The folder is only a workplace: a run fills it from the store before it goes on, and can therefore be any machine's.
The journal is replaced only in the state in which this run has left it. So the run that came last is at work, and one
that another took for dead stops at its next step. There is no lock that could outlive who holds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError
from shardmill.run.destination import Destination
from shardmill.run.journal import FOLDER, Entries, Journal
from shardmill.run.manifest import NAME, REJECTS
from shardmill.run.plan import Facts, facts_json, fingerprint
from shardmill.run.unfinished import Parts, blocks
from shardmill.shards import SPLITS, Output
from shardmill.storage import (
    LARGEST_OBJECT,
    PARTIAL,
    ROOM,
    ObjectStore,
    PartialFile,
    Version,
    Written,
    check_size,
    write_whole,
    writing_to,
)

_JOURNAL, _PLAN = f"{FOLDER}/journal.json", f"{FOLDER}/plan.json"
_EVERY = 5.0  # seconds between pushes: what a killed run costs at the most, beside what it had in hand


SHARDS_HERE = 6
"""Files of each format that are on this machine, at the most: open ones, those that wait or are being sent."""


class StoreDestination(Destination):
    """The objects below a URL, and the folder where they are made."""

    medium = "store"
    room = ROOM
    waiting_files = 2  # a file that has its name leaves the disk
    largest_file = LARGEST_OBJECT
    hint = "a format with shards needs little space here, such as `-f shards`"

    def __init__(self, url: str, cache: Path | None = None) -> None:
        """`cache`: where the workplace may be made; the user's cache by default."""
        self._store = ObjectStore(url)
        self.url = self._store.url
        # The same for every run with this URL, so that the next one clears away what a killed one has left.
        super().__init__(staging_folder(cache) / hashlib.sha256(self.url.encode()).hexdigest()[:16])
        self.shown = self.url
        self._staged = False
        self._run = secrets.token_hex(6)
        self._record: dict[str, Any] | None = None
        self._version: Version | None = None
        self._serial = 0
        self._parts = Parts(self._store, self.folder, self._run)
        self._pushed = time.monotonic()
        self._sealed = False
        self._outputs: Sequence[Output] = ()

    @property
    def answered(self) -> float:  # type: ignore[override]
        return self._store.progressed

    @property
    def retries(self) -> int:  # type: ignore[override]
        return self._store.retries.count

    def trouble(self) -> str:
        return self._store.retries.words()

    def recorded_commits(self) -> dict[str, str]:
        found = self._store.read(_JOURNAL)
        try:
            commits: dict[str, str] = json.loads(found[0])["commits"] if found else {}
        except (ValueError, KeyError, TypeError):  # `_stage` says what is wrong with it
            return {}
        return commits

    def record_commits(self) -> None:
        """The store's journal holds them."""

    @contextmanager
    def at_work(self, *, overwrite: bool) -> Iterator[Journal]:
        """The journal of the workplace, which is as the store says, and cleared away in the end."""
        journal = Journal(self.folder)
        try:
            self._stage(overwrite=overwrite)
            yield journal
        finally:
            try:
                self.clean()
            finally:
                journal.close()
            if self.folder.exists() and not any(self.folder.iterdir()):
                self.folder.rmdir()

    def finished(self, facts: Facts) -> dict[str, Any] | None:
        return super().finished(facts) if self._staged else None

    def _stage(self, *, overwrite: bool) -> None:
        """Make the workplace as a folder would look whose run has ended there, without the data.

        The workplace must be locked. OutputError when the store cannot be used.
        """
        self.clean()
        for name in (NAME, _PLAN):
            self._fetch(name, name)
        self._staged = True
        found = self._store.read(_JOURNAL)
        if found is None:
            return
        data, self._version = found
        try:
            record = json.loads(data)
            plan, files, state, self._parts.table = (record[key] for key in ("plan", "files", "state", "parts"))
            if isinstance(plan, dict):  # earlier releases kept it in the journal; it becomes an object of its own
                record["plan"] = self._put_plan(plan)
        except (ValueError, KeyError, TypeError):
            if overwrite:
                return
            raise OutputError(
                "the journal cannot be read", place=f"{self.url}/{_JOURNAL}", hint="start anew with `--overwrite`"
            ) from None
        self._record = record
        # Of a complete dataset it may be gone already: the journal is the last to go.
        if not self._fetch(record["plan"], _PLAN) and not overwrite and not (self.folder / NAME).exists():
            raise OutputError(
                f"`{record['plan']}` is not there as the journal says",
                place=self.url,
                hint="the store was changed by something else; start anew with `--overwrite`",
            )
        if state is not None:
            line = json.dumps({"files": files, "state": state}).encode() + b"\n"
            write_whole(self.folder / FOLDER / "journal.jsonl", line)

    def names(self) -> dict[str, int]:
        """The files of the dataset that are there, with their sizes."""
        return self._store.beside(("", *SPLITS))

    def _clear(self, facts: Facts, names: Iterable[str]) -> None:
        """Start anew: the manifest goes first, then the journal is ours and says that nothing is done."""
        names = list(names)
        self._store.delete([NAME])
        self._record, self._parts.table = None, {}
        self._put_journal(self._fresh(facts))
        self._store.delete(names)
        self._sweep()
        super()._clear(facts, names)

    def begin(self, facts: Facts, complete: Collection[Written], outputs: Sequence[Output]) -> None:
        """Take the journal over, or write the first one; bring to the workplace what is recorded of unfinished files.

        OutputError when files that are recorded as complete are not there.
        """
        if not self._serial:
            # That of another plan is left only by a run that has done nothing.
            known = self._record if self._record and self._record["plan"] == _plan_name(facts) else None
            self._put_journal(known or self._fresh(facts))
        there = self.names()
        for written in complete:
            if there.get(written.name) != written.bytes:
                raise OutputError(
                    f"`{written.name}` is not there as the journal says",
                    place=self.url,
                    hint="the store was changed by something else; start anew with `--overwrite`",
                )
        done = {written.name for written in complete}
        mine = {name for output in outputs for name in output.foreign(there)}
        self._store.delete(mine - done)
        self._outputs = outputs
        self._store.abort_uploads(self._owns)
        self._parts.fetch()

    def restored(self) -> None:
        """Parts beyond what the journal says are forgotten."""
        self._parts.cut_back()
        assert self._record is not None
        self._put_journal({**self._record, "parts": self._parts.table})
        self._sweep()

    def deliver(self, files: Iterable[Written]) -> None:
        """Bring files that became whole to the store under their names; they leave the workplace."""
        for written in files:
            self._check_owner()
            self._upload(written.name, self.folder / written.name, written.bytes)
            (self.folder / written.name).unlink()

    def record(self, files: Entries, state: dict[str, Any], *, now: bool) -> None:
        """Bring what was appended to unfinished files to the store, and record it; unless it is too early for that.

        `files` are those that are whole, which must be there already; the state must be on disk.
        """
        if self._sealed or not (now or time.monotonic() - self._pushed >= _EVERY):
            return
        gone = self._parts.send()
        assert self._record is not None
        self._put_journal({**self._record, "files": files(0), "state": state, "parts": self._parts.table})
        self._parts.delete(gone)
        self._pushed = time.monotonic()

    def leave(self, files: Iterable[PartialFile]) -> None:
        """Put unfinished files where people find them, as they are when a run ends early."""
        for file in files if not self._sealed else ():
            path = file.path.with_name(file.path.name + PARTIAL)
            self._upload(path.name, path, file.length)

    def complete(self) -> None:
        """Bring what stands beside the outputs to the store, then the manifest; then end what was for the work only."""
        self._sealed = True
        self._check_owner()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name != NAME and not path.name.endswith(PARTIAL):
                self._upload(path.name, path)
        self._upload(_PLAN, self.folder / _PLAN)
        self._check_owner()
        self._upload(NAME, self.folder / NAME)
        self._store.delete([REJECTS + PARTIAL])
        # One whose beginning was not answered is still open, though all that it was for has been sent anew.
        self._store.abort_uploads(self._owns)
        self.tidy()

    def tidy(self, facts: Facts | None = None) -> None:
        """Only the plan remains of the work, for a dataset that is complete.

        With `facts` only what a run of that plan has left that was killed after it had written the manifest.
        """
        if self._record is None or (facts and self._record["plan"] != _plan_name(facts)):
            return
        self._parts.table = {}
        self._parts.sweep(keep=(_JOURNAL, _PLAN))
        self._store.delete([_JOURNAL])

    def space(self, output: Output, size: float, margin: float) -> tuple[float, float]:
        """A file needs space here only until it is whole, and must not be too large for one object."""
        if output.file_tokens:
            return min(size, SHARDS_HERE * output.file_tokens * output.dtype.itemsize), 0
        check_size(f"the {output.format} file", int(size - margin), self.url)
        return size, margin

    def _owns(self, name: str) -> bool:
        """Whether an object of that name is the dataset's, or working files."""
        return name.startswith(f"{FOLDER}/") or any(output.foreign([name]) for output in self._outputs)

    def _fresh(self, facts: Facts) -> dict[str, Any]:
        return {"plan": self._put_plan(facts), "commits": self.commits, "files": [], "state": None, "parts": {}}

    def _put_plan(self, facts: Facts) -> str:
        """Put the plan to the store, as a stream: it may list a million sources. Gives its name."""
        name = _plan_name(facts)
        self._store.upload(name, partial(facts_json, facts), sum(map(len, facts_json(facts))))
        return name

    def _sweep(self) -> None:
        """Delete all working files of any run that the journal does not need."""
        self._parts.sweep(keep=(_JOURNAL, _PLAN, self._record["plan"] if self._record else ""))

    def _upload(self, name: str, path: Path, size: int | None = None) -> None:
        size = path.stat().st_size if size is None else size
        self._store.upload(name, partial(blocks, path, 0, size), size)

    def _fetch(self, name: str, here: str) -> bool:
        """Bring an object to the workplace; False when there is none."""
        data = self._store.download(name)
        try:
            first = next(data, b"")
        except FileNotFoundError:
            return False
        with writing_to(self.folder / here), open(self.folder / here, "wb") as file:
            file.write(first)
            file.writelines(data)
        return True

    def _put_journal(self, record: dict[str, Any]) -> None:
        """Replace the journal; OutputError when it is another run's by now."""
        self._serial += 1
        self._record = {**record, "run": self._run, "serial": self._serial}
        data = json.dumps(self._record, separators=(",", ":")).encode()
        version = self._store.exchange(_JOURNAL, data, self._version)
        if version is None:
            raise self._taken_over()
        self._version = version

    def _check_owner(self) -> None:
        """OutputError when the journal is another run's by now."""
        if self._store.version(_JOURNAL) != self._version:
            raise self._taken_over()

    def _taken_over(self) -> OutputError:
        return OutputError(
            "another run has taken over this output",
            place=self.url,
            kept="what this one had recorded is with the other",
            hint="let one of them come to its end",
        )

    def clean(self) -> None:
        """Empty the workplace, but for the lock."""
        for path in self.folder.iterdir():
            if path.name == FOLDER:
                for working in path.iterdir():
                    if working.name != "lock":
                        working.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _plan_name(facts: Facts) -> str:
    return f"{FOLDER}/plan-{fingerprint(facts)}.json"


def staging_folder(cache: Path | None = None) -> Path:
    """Where the workplaces of all runs are that write to object stores."""
    return (cache or _user_cache()) / "staging"


def _user_cache() -> Path:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "shardmill"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shardmill"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "shardmill" / "cache"
    return Path.home() / ".cache" / "shardmill"
