"""A dataset in an object store: a run makes it in a folder of this machine, and uploads what is done.

    URL/NAME                             complete files, each uploaded as a whole
    URL/.shardmill/journal.json          the run, the name of its plan, its state, and unfinished files
    URL/.shardmill/plan-….json           the plan, named by its fingerprint and written once
    URL/.shardmill/RUN/NAME.partial/AT   what a run has appended to an unfinished file from byte AT on
    URL/.shardmill/removal.json          the objects that `--overwrite` deletes, until all are deleted
    URL/.shardmill/plan.json             what remains of this when the dataset is complete

The folder is only a workplace: a run fills it from the store before it continues, so any machine can continue a run.
The journal is replaced only if it is still the version that this run has written. So the run that started last is the
one at work, and a run that was taken for dead stops at its next step. There is no lock that could outlive its holder.
Objects cannot grow, so the new bytes of a file are an object of their own, an increment. No increment is replaced, and
each run has its own names: what a run that was taken for dead still uploads is never mistaken for another's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError
from shardmill.shards import ShardWriter
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
from shardmill.write.destination import PLAN, Destination
from shardmill.write.facts import Facts, facts_json, fingerprint, read_facts
from shardmill.write.journal import FOLDER, REMOVAL, Entries
from shardmill.write.manifest import NAME, REJECTS, Manifest

_log = logging.getLogger(__name__)
_JOURNAL, _REMOVAL = f"{FOLDER}/journal.json", f"{FOLDER}/{REMOVAL}"
_RECORDED = "plan", "files", "state", "unfinished"
_EVERY = 5.0  # seconds between uploads: the work that a kill costs, besides the chunks in flight
SHARDS_HERE = 6
"""The most files of each format on this machine: open files, those that wait for upload, and those being uploaded."""


class StoreDestination(Destination):
    """The objects below a URL, and a folder as the workplace."""

    medium = "store"
    buffer_bytes = ROOM
    waiting_files = 2  # a file that has its name leaves the disk
    largest_file = LARGEST_OBJECT
    hint = "a format with shards needs little space here, such as `-f shards`"

    _store: ObjectStore

    def __init__(self, store: ObjectStore, cache: Path | None = None) -> None:
        """`cache`: the folder for the workplace; the user's cache by default."""
        self.url = store.url
        # The same for every run with this URL, so that the next run removes what a killed one has left.
        super().__init__(staging_folder(cache) / hashlib.sha256(self.url.encode()).hexdigest()[:16], store)
        self.shown, self.retries = self.url, store.retries
        self._staged = False
        self._run = secrets.token_hex(6)
        self._record: dict[str, Any] | None = None
        self._version: Version | None = None
        self._serial = 0
        self._unfinished = UnfinishedFiles(store, self.folder, self._run)
        self._pushed = time.monotonic()
        self._completed = self._warned = False
        self._outputs: Sequence[ShardWriter] = ()

    @property
    def last_response(self) -> float:  # type: ignore[override]
        return self._store.last_progress

    def recorded_plan(self) -> Facts | None:
        name = PLAN
        with suppress(ValueError, KeyError, TypeError):  # `_stage` says what is wrong with the journal
            name = json.loads(self._store.read(_JOURNAL) or b"{}")["plan"]
        return read_facts(self._store, name)

    @contextmanager
    def locked(self, *, overwrite: bool) -> Iterator[None]:
        """Lock the workplace, fill it from the store, and empty it at the end."""
        try:
            with super().locked(overwrite=overwrite):
                try:
                    self._stage(overwrite=overwrite)
                    yield
                finally:
                    self._empty_workplace()
        finally:
            if self.folder.exists() and not any(self.folder.iterdir()):
                self.folder.rmdir()

    def work_folder(self, name: str) -> Path:
        """Beside the workplace, which every run empties when it begins and ends."""
        return self.folder.with_name(f"{self.folder.name}.{name}")

    def finished(self, facts: Facts) -> Manifest | None:
        return super().finished(facts) if self._staged else None

    def _stage(self, *, overwrite: bool) -> None:
        """Make the workplace look like the folder of a run that has ended, but without the data.

        The workplace must be locked. OutputError when the store cannot be used.
        """
        self._empty_workplace()
        for name in (NAME, PLAN):
            self._fetch(name, name)
        self._staged = True
        found = self._store.read_version(_JOURNAL)
        if found is None:
            return
        content, self._version = found
        try:
            record = json.loads(content)
            plan, files, state, self._unfinished.table = (record[key] for key in _RECORDED)
        except (ValueError, KeyError, TypeError):
            if overwrite:
                return
            raise OutputError(
                "the journal cannot be read", place=f"{self.url}/{_JOURNAL}", hint="start anew with `--overwrite`"
            ) from None
        self._record = record
        # For a complete dataset it may be deleted already: the journal is deleted last.
        if not self._fetch(plan, PLAN) and not overwrite and not (self.folder / NAME).exists():
            raise OutputError(
                f"`{plan}` is not there as the journal says",
                place=self.url,
                hint="the store was changed by something else; start anew with `--overwrite`",
            )
        if state is not None:
            line = json.dumps({"files": files, "state": state}).encode() + b"\n"
            write_whole(self.folder / FOLDER / "journal.jsonl", line)

    def _clear(self, facts: Facts, names: list[str]) -> None:
        """Start anew: delete the manifest first, then write a journal that says that nothing is done."""
        self._store.delete([NAME])
        (self.folder / NAME).unlink(missing_ok=True)
        self._record, self._unfinished.table = None, {}
        self._put_journal(self._new_record(facts))
        self._store.delete(names)
        self._sweep()
        self._store.delete([_REMOVAL])

    def begin(self, facts: Facts, complete: Collection[Written], outputs: Sequence[ShardWriter]) -> None:
        """Take over the journal, or write the first one; download the unfinished files.

        OutputError when files that are recorded as complete are missing.
        """
        if not self._serial:
            # Another plan's journal is still there only if its run has done nothing.
            known = self._record if self._record and self._record["plan"] == _plan_name(facts) else None
            self._put_journal(known or self._new_record(facts))
        there = self.names()
        for written in complete:
            if there.get(written.name) != written.bytes and not self._is_there(written):
                raise OutputError(
                    f"`{written.name}` is not there as the journal says",
                    place=self.url,
                    hint="the store was changed by something else; start anew with `--overwrite`",
                )
        done = {written.name for written in complete}
        mine = {name for output in outputs for name in output.matching_files(there)}
        with self._deleting():  # this run writes them again
            self._store.delete(mine - done)
        self._outputs = outputs
        self._store.abort_uploads(self._owns)
        self._unfinished.fetch()

    def restored(self) -> None:
        """Forget and delete increments beyond what the journal says."""
        self._unfinished.truncate()
        assert self._record is not None
        self._put_journal({**self._record, "unfinished": self._unfinished.table})
        with self._deleting():
            self._sweep()

    def deliver(self, files: Iterable[Written]) -> None:
        """Upload files that became complete, and remove them from the workplace."""
        for written in files:
            self._check_owner()
            self._store.upload_file(written.name, self.folder / written.name)
            (self.folder / written.name).unlink()

    def record(self, files: Entries, state: dict[str, Any], *, now: bool) -> None:
        """Upload what was appended to unfinished files, then the journal, if `now` or the last time was long ago.

        Nothing is recorded in the workplace, which the next run fills from the store.
        """
        if self._completed or not (now or time.monotonic() - self._pushed >= _EVERY):
            return
        gone = self._unfinished.send()
        assert self._record is not None
        self._put_journal({**self._record, "files": files(0), "state": state, "unfinished": self._unfinished.table})
        with self._deleting():
            self._unfinished.delete(gone)
        self._pushed = time.monotonic()

    def ended_early(self, files: Iterable[PartialFile]) -> None:
        """Upload unfinished files of a run that ends early to where people look for them."""
        for file in files if not self._completed else ():
            path = file.path.with_name(file.path.name + PARTIAL)
            self._store.upload_file(path.name, path, end=file.length)

    def complete(self) -> None:
        """Upload the other files of the dataset, then the manifest; then delete the working files."""
        self._completed = True
        self._check_owner()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name != NAME and not path.name.endswith(PARTIAL):
                self._store.upload_file(path.name, path)
        self._store.upload_file(PLAN, self.folder / PLAN)
        self._check_owner()
        self._store.upload_file(NAME, self.folder / NAME)
        with self._deleting():
            self._store.delete([REJECTS + PARTIAL])
            # An upload whose first answer was lost is still open, though its data has been sent again.
            self._store.abort_uploads(self._owns)
        self.tidy()

    def tidy(self, facts: Facts | None = None) -> None:
        """Delete all working files of a complete dataset except for the plan.

        With `facts` only if they are of that plan: its run was killed after it had written the manifest.
        """
        if self._record is None or (facts and self._record["plan"] != _plan_name(facts)):
            return
        self._unfinished.table = {}
        with self._deleting():
            self._unfinished.sweep(keep=(_JOURNAL, PLAN))
            self._store.delete([_JOURNAL])

    @contextmanager
    def _deleting(self) -> Iterator[None]:
        """Only warn, once, if working files cannot be deleted: some stores do not allow it."""
        try:
            yield
        except OutputError as why:
            if not self._warned:
                _log.warning("warning: working files in %s cannot be deleted: %s", self.url, why.message)
            self._warned = True

    def space(self, output: ShardWriter, size: float, margin: float) -> tuple[float, float]:
        """A file needs space here only until it is complete, and must not be too large for one object."""
        if output.file_tokens:
            return min(size, SHARDS_HERE * output.file_tokens * output.dtype.itemsize), 0
        check_size(f"the {output.format} file", int(size - margin), self.url)
        return size, margin

    def _is_there(self, written: Written) -> bool:
        """Ask for a single object: the lists of some stores are older than their objects."""
        try:
            return self._store.size(written.name) == written.bytes
        except FileNotFoundError:
            return False

    def _owns(self, name: str) -> bool:
        """Whether an object of that name belongs to the dataset or to its working files."""
        return name.startswith(f"{FOLDER}/") or any(output.matching_files([name]) for output in self._outputs)

    def _new_record(self, facts: Facts) -> dict[str, Any]:
        return {"plan": self._put_plan(facts), "files": [], "state": None, "unfinished": {}}

    def _put_plan(self, facts: Facts) -> str:
        """Upload the plan, as a stream, since it may list a million sources; return its name."""
        name = _plan_name(facts)
        self._store.upload(name, partial(facts_json, facts), sum(map(len, facts_json(facts))))
        return name

    def _sweep(self) -> None:
        """Delete all working files of any run that the journal does not need."""
        self._unfinished.sweep(keep=(_JOURNAL, PLAN, _REMOVAL, self._record["plan"] if self._record else ""))

    def _fetch(self, name: str, here: str) -> bool:
        """Download an object to the workplace; False when there is none."""
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
        """Replace the journal; OutputError when another run has replaced it."""
        self._serial += 1
        self._record = {**record, "run": self._run, "serial": self._serial}
        data = json.dumps(self._record, separators=(",", ":")).encode()
        self._version = self._store.compare_and_swap(_JOURNAL, data, self._version)
        if self._version is None:
            raise self._taken_over()

    def _check_owner(self) -> None:
        """Raise OutputError when another run has replaced the journal."""
        if self._store.version(_JOURNAL) != self._version:
            raise self._taken_over()

    def _taken_over(self) -> OutputError:
        return OutputError(
            "another run has taken over this output",
            place=self.url,
            kept="what this one had recorded is with the other",
            hint="let one of them come to its end",
        )

    def _empty_workplace(self) -> None:
        """Empty the workplace, except for the lock."""
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
    """The folder that holds the workplaces of all runs that write to object stores."""
    return (cache or user_cache()) / "staging"


def user_cache() -> Path:
    """The folder in which shardmill keeps what it can make again."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "shardmill"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shardmill"
    return Path.home() / ".cache" / "shardmill"


Chain = list[list[Any]]
"""The runs that have sent the increments of a file, in order: [run, byte up to which they count]."""


class UnfinishedFiles:
    """The unfinished files of a run: in a folder of this machine, and as increments in the store."""

    def __init__(self, store: ObjectStore, folder: Path, run: str) -> None:
        self._store, self._folder, self._run = store, folder, run
        self.table: dict[str, Chain] = {}
        """What the journal says of them, by name. It does not grow with the number of increments."""

    def send(self) -> dict[str, Chain]:
        """Upload what was appended to files in the folder; return the entries of those that are gone."""
        here = {path.relative_to(self._folder).as_posix(): path for path in self._folder.rglob(f"*{PARTIAL}")}
        gone = {name: self.table.pop(name) for name in list(self.table) if name not in here}
        for name, path in here.items():
            chain = self.table.get(name, [])
            start, end = chain[-1][1] if chain else 0, path.stat().st_size
            if end > start:
                self._store.upload_file(f"{_folder(self._run, name)}/{start:016x}", path, start, end)
                if not chain or chain[-1][0] != self._run:
                    chain.append([self._run, end])
                chain[-1][1] = end
                self.table[name] = chain
        return gone

    def fetch(self) -> None:
        """Download the files into the folder; OutputError when an increment is missing."""
        for name, chain in self.table.items():
            path = self._folder / name
            with writing_to(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    for run, end in chain:
                        self._fetch(file, run, name, end)

    def _fetch(self, file: Any, run: str, name: str, end: int) -> None:
        reached = -1
        while reached < file.tell() < end:
            reached = file.tell()
            with suppress(FileNotFoundError):
                file.writelines(self._store.download(f"{_folder(run, name)}/{reached:016x}"))
        if file.tell() < end:
            raise OutputError(
                f"`{name}` is not there as the journal says",
                place=f"{self._store.url}/{FOLDER}",
                hint="the store was changed by something else; start anew with `--overwrite`",
            )
        # What that run had sent beyond this, a later one has made again.
        file.truncate(end)
        file.seek(end)

    def truncate(self) -> None:
        """Forget increments beyond the end of the files in the folder, which were cut back to what is recorded."""
        for name, chain in list(self.table.items()):
            path = self._folder / name
            size = path.stat().st_size if path.exists() else 0
            starts = [0, *(end for _, end in chain)]
            kept = [[run, min(end, size)] for start, (run, end) in zip(starts, chain, strict=False) if start < size]
            if kept:
                self.table[name] = kept
            else:
                del self.table[name]

    def delete(self, gone: dict[str, Chain]) -> None:
        """Delete the increments of files that the journal no longer lists."""
        for name, chain in gone.items():
            for run, _ in chain:
                self._store.delete_tree(_folder(run, name))

    def sweep(self, keep: tuple[str, ...]) -> None:
        """Delete the working files of all runs, except for the increments in the table and the names in `keep`."""
        needed = {(run, name): end for name, chain in self.table.items() for run, end in chain}
        stray = []
        for path, _ in self._store.list_tree(FOLDER):
            run, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
            name = rest.rpartition("/")[0]
            if path not in keep and not (name and _start(path) < needed.get((run, name), 0)):
                stray.append(path)
        self._store.delete(stray)


def _folder(run: str, name: str) -> str:
    return f"{FOLDER}/{run}/{name}"


def _start(name: str) -> int:
    """The byte at which an increment begins; larger than any offset when the name is not one of an increment."""
    try:
        return int(name.rpartition("/")[2], 16)
    except ValueError:
        return sys.maxsize
