"""A dataset in an object store: it is made in a folder of this machine, and what is done is brought there.

    URL/NAME                             files that are whole, each put there in one piece
    URL/.shardmill/journal.json          its run, plan and commits, how far it came, and of which parts
    URL/.shardmill/RUN/…                 what there is of unfinished files: see parts.py
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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError
from shardmill.run.journal import FOLDER, Journal
from shardmill.run.manifest import NAME
from shardmill.run.parts import Parts, blocks
from shardmill.run.plan import same_facts
from shardmill.shards import SPLITS, Output
from shardmill.storage import PARTIAL, ObjectStore, PartialFile, Version, Written, is_url, writing_to

_JOURNAL, _PLAN = f"{FOLDER}/journal.json", f"{FOLDER}/plan.json"
_EVERY = 5.0  # seconds between pushes: what a killed run costs at the most, beside what it had in hand


class Mirror:
    """The store's side of a run. `upload` and `push` run in the keeper's thread, the rest while that one is idle."""

    def __init__(self, url: str, cache: Path | None = None) -> None:
        """`cache`: where the workplace may be made; the user's cache by default."""
        self._store = ObjectStore(url)
        self.url = self._store.url
        place = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        self.staging = staging_folder(cache) / place
        """The same for every run with this URL, so that the next one clears away what a killed one has left."""
        self.commits: dict[str, str] = {}
        """Of the sources: what a later run reads, though a branch may have moved; see revisions.py."""
        self._run = secrets.token_hex(6)
        self._record: dict[str, Any] | None = None
        self._version: Version | None = None
        self._serial = 0
        self.retries = self._store.retries
        self._parts = Parts(self._store, self.staging, self._run)
        self._pushed = time.monotonic()
        self._sealed = False
        self._owned: Callable[[str], bool] = lambda name: False

    @staticmethod
    def of(out: str | os.PathLike[str], cache: Path | None = None) -> Mirror | None:
        """That of an output in an object store; None for a folder, UsageError for any other URL."""
        return Mirror(os.fspath(out), cache) if is_url(out) else None

    @property
    def progressed(self) -> float:
        """When the store last did something for us, by the monotonic clock."""
        return self._store.progressed

    def recorded(self) -> dict[str, str]:
        """The commits that an unfinished run reads; empty where there is none."""
        found = self._store.read(_JOURNAL)
        try:
            commits: dict[str, str] = json.loads(found[0])["commits"] if found else {}
        except (ValueError, KeyError, TypeError):  # `stage` says what is wrong with it
            return {}
        return commits

    def stage(self, *, overwrite: bool) -> None:
        """Make the workplace as a folder would look whose run has ended there, without the data.

        The workplace must be locked. OutputError when the store cannot be used.
        """
        self.clean()
        for name in (NAME, _PLAN):
            if found := self._store.read(name):
                self._write(name, found[0])
        found = self._store.read(_JOURNAL)
        if found is None:
            return
        data, self._version = found
        try:
            record = json.loads(data)
            facts, files, state, self._parts.table = (record[key] for key in ("plan", "files", "state", "parts"))
        except (ValueError, KeyError, TypeError):
            if overwrite:
                return
            raise OutputError(
                "the journal cannot be read", place=f"{self.url}/{_JOURNAL}", hint="start anew with `--overwrite`"
            ) from None
        self._record = record
        self._write(_PLAN, json.dumps(facts).encode())
        if state is not None:
            self._write(f"{FOLDER}/journal.jsonl", json.dumps({"files": files, "state": state}).encode() + b"\n")

    def names(self) -> dict[str, int]:
        """The files of the dataset that are there, with their sizes."""
        return self._store.beside(("", *SPLITS))

    def clear(self, facts: dict[str, Any], names: Iterable[str]) -> None:
        """Start anew: the manifest goes first, then the journal is ours and says that nothing is done."""
        self._store.delete([NAME])
        self._record, self._parts.table = None, {}
        self._put_journal(self._fresh(facts))
        self._store.delete(names)
        self._parts.sweep(keep=(_JOURNAL, _PLAN))

    def begin(self, facts: dict[str, Any], complete: Collection[Written], outputs: Sequence[Output]) -> None:
        """Take the journal over, or write the first one; bring to the workplace what is recorded of unfinished files.

        OutputError when files that are recorded as complete are not there.
        """
        if not self._serial:
            self._put_journal(self._record or self._fresh(facts))
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
        self._owned = _owned_by(outputs)
        self._store.abort_uploads(self._owned)
        self._parts.fetch()

    def adopt(self) -> None:
        """The workplace was cut back to what the journal says: parts beyond that are forgotten."""
        self._parts.cut_back()
        assert self._record is not None
        self._put_journal({**self._record, "parts": self._parts.table})
        self._parts.sweep(keep=(_JOURNAL, _PLAN))

    def upload(self, files: Iterable[Written]) -> None:
        """Bring files that became whole to the store under their names; they leave the workplace."""
        for written in files:
            self._check_owner()
            path = self.staging / written.name
            self._store.upload(written.name, partial(blocks, path, 0, written.bytes), written.bytes)
            path.unlink()

    def push(self, files: Callable[[], list[Any]], state: dict[str, Any], *, now: bool) -> None:
        """Bring what was appended to unfinished files to the store, and record it; unless it is too early for that.

        `files` are those that are whole, which must be there already; the state must be on disk.
        """
        if self._sealed or not (now or time.monotonic() - self._pushed >= _EVERY):
            return
        gone = self._parts.send()
        assert self._record is not None
        self._put_journal({**self._record, "files": files(), "state": state, "parts": self._parts.table})
        self._parts.delete(gone)
        self._pushed = time.monotonic()

    def leave(self, files: Iterable[PartialFile]) -> None:
        """Put unfinished files where people find them, as they are when a run ends early."""
        for file in files if not self._sealed else ():
            path = file.path.with_name(file.path.name + PARTIAL)
            self._store.upload(path.name, partial(blocks, path, 0, file.length), file.length)

    def complete(self, left: Iterable[str]) -> None:
        """Bring what stands beside the outputs to the store, then the manifest; then end what was for the work only."""
        self._sealed = True
        self._check_owner()
        for path in sorted(self.staging.iterdir()):
            if path.is_file() and path.name != NAME and not path.name.endswith(PARTIAL):
                size = path.stat().st_size
                self._store.upload(path.name, partial(blocks, path, 0, size), size)
        self._store.put(_PLAN, (self.staging / _PLAN).read_bytes())
        self._check_owner()
        self._store.put(NAME, (self.staging / NAME).read_bytes())
        self._store.delete(left)
        # One whose beginning was not answered is still open, though all that it was for has been sent anew.
        self._store.abort_uploads(self._owned)
        self.tidy()

    def tidy(self, facts: dict[str, Any] | None = None) -> None:
        """Only the plan remains of the work, for a dataset that is complete.

        With `facts` only what a run of that plan has left that was killed after it had written the manifest.
        """
        if self._record is None or (facts and not same_facts(facts, self._record["plan"])):
            return
        self._parts.table = {}
        self._parts.sweep(keep=(_JOURNAL, _PLAN))
        self._store.delete([_JOURNAL])

    def _fresh(self, facts: dict[str, Any]) -> dict[str, Any]:
        plan = {**facts, "sources": list(facts["sources"])}
        return {"plan": plan, "commits": self.commits, "files": [], "state": None, "parts": {}}

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

    def _write(self, name: str, data: bytes) -> None:
        path = self.staging / name
        with writing_to(path):
            path.write_bytes(data)

    def clean(self) -> None:
        """Empty the workplace, but for the lock."""
        for path in self.staging.iterdir():
            if path.name == FOLDER:
                for working in path.iterdir():
                    if working.name != "lock":
                        working.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def at_work(folder: Path, mirror: Mirror | None, *, overwrite: bool) -> Iterator[Journal]:
    """The journal of a folder, or of a mirror's workplace, which is as the store says, and cleared away in the end."""
    journal = Journal(folder)
    try:
        if mirror:
            mirror.stage(overwrite=overwrite)
        yield journal
    finally:
        try:
            if mirror:
                mirror.clean()
        finally:
            journal.close()
        if mirror and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()


def _owned_by(outputs: Sequence[Output]) -> Callable[[str], bool]:
    def owned(name: str) -> bool:
        return name.startswith(f"{FOLDER}/") or any(output.foreign([name]) for output in outputs)

    return owned


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
