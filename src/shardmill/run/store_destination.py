"""A dataset in an object store: a run makes it in a folder of this machine, and uploads what is done.

    URL/NAME                             complete files, each uploaded as a whole
    URL/.shardmill/journal.json          the run and its commits, the name of its plan, its state, and its parts
    URL/.shardmill/plan-….json           the plan, named by its fingerprint and written once
    URL/.shardmill/RUN/NAME.partial/AT   what a run has appended to an unfinished file from byte AT on
    URL/.shardmill/removal.json          the objects that `--overwrite` deletes, until all are deleted
    URL/.shardmill/plan.json             what remains of this when the dataset is complete

The folder is only a workplace: a run fills it from the store before it continues, so any machine can continue a run.
The journal is replaced only if it is still the version that this run has written. So the run that started last is the
one at work, and a run that was taken for dead stops at its next step. There is no lock that could outlive its holder.
Objects cannot grow, so the new bytes of a file are an object of their own, a part. A part is never replaced, and each
run has its own names: what a run that was taken for dead still uploads is never mistaken for a part of another run.
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
from shardmill.run.destination import Destination
from shardmill.run.journal import FOLDER, REMOVAL, Entries
from shardmill.run.manifest import NAME, REJECTS
from shardmill.run.plan import Facts, facts_json, fingerprint
from shardmill.shards import DATASET_FOLDERS, GrowingFiles, Output
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

_log = logging.getLogger(__name__)
_JOURNAL, _PLAN, _REMOVAL = f"{FOLDER}/journal.json", f"{FOLDER}/plan.json", f"{FOLDER}/{REMOVAL}"
_EVERY = 5.0  # seconds between uploads: the work that a kill costs, besides the chunks in flight
_BLOCK = 1 << 20
SHARDS_HERE = 6
"""The most files of each format on this machine: open files, those that wait for upload, and those being uploaded."""


class StoreDestination(Destination):
    """The objects below a URL, and a folder as the workplace."""

    medium = "store"
    buffer_bytes = ROOM
    waiting_files = 2  # a file that has its name leaves the disk
    largest_file = LARGEST_OBJECT
    hint = "a format with shards needs little space here, such as `-f shards`"

    def __init__(self, url: str, cache: Path | None = None) -> None:
        """`cache`: the folder for the workplace; the user's cache by default."""
        self._store = ObjectStore(url)
        self.url = self._store.url
        # The same for every run with this URL, so that the next run removes what a killed one has left.
        super().__init__(staging_folder(cache) / hashlib.sha256(self.url.encode()).hexdigest()[:16])
        self.shown = self.url
        self._staged = False
        self._run = secrets.token_hex(6)
        self._record: dict[str, Any] | None = None
        self._version: Version | None = None
        self._content = b""
        """Of the journal, as this run has found it or written it last."""
        self._serial = 0
        self._parts = Parts(self._store, self.folder, self._run)
        self._pushed = time.monotonic()
        self._completed = False
        self._outputs: Sequence[GrowingFiles] = ()

    @property
    def last_response(self) -> float:  # type: ignore[override]
        return self._store.last_progress

    @property
    def retries(self) -> int:  # type: ignore[override]
        return self._store.retries.count

    def retry_status(self) -> str:
        return self._store.retries.status()

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

    def has_manifest(self) -> bool:
        return self._store.version(NAME) is not None

    def finished(self, facts: Facts) -> dict[str, Any] | None:
        return super().finished(facts) if self._staged else None

    def _stage(self, *, overwrite: bool) -> None:
        """Make the workplace look like the folder of a run that has ended, but without the data.

        The workplace must be locked. OutputError when the store cannot be used.
        """
        self._empty_workplace()
        for name in (NAME, _PLAN):
            self._fetch(name, name)
        self._staged = True
        found = self._store.read(_JOURNAL)
        if found is None:
            return
        self._content, self._version = found
        try:
            record = json.loads(self._content)
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
        # For a complete dataset it may be deleted already: the journal is deleted last.
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
        """The files of the dataset in the store, with their sizes."""
        return self._store.list_folders(DATASET_FOLDERS)

    def _clear(self, facts: Facts, names: list[str]) -> None:
        """Start anew: delete the manifest first, then write a journal that says that nothing is done."""
        self._store.delete([NAME])
        self._record, self._parts.table = None, {}
        self._put_journal(self._new_record(facts))
        self._store.delete(names)
        self._sweep()
        self._store.delete([_REMOVAL])
        super()._clear(facts, names)

    def _record_removal(self, names: bytes) -> None:
        self._store.put(_REMOVAL, names)

    def _recorded_removal(self) -> list[str] | None:
        found = self._store.read(_REMOVAL)
        names: list[str] | None = json.loads(found[0]) if found else None
        return names

    def begin(self, facts: Facts, complete: Collection[Written], outputs: Sequence[GrowingFiles]) -> None:
        """Take over the journal, or write the first one; download the recorded parts of unfinished files.

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
        self._store.delete(mine - done)
        self._outputs = outputs
        self._store.abort_uploads(self._owns)
        self._parts.fetch()

    def restored(self) -> None:
        """Forget and delete parts beyond what the journal says."""
        self._parts.truncate()
        assert self._record is not None
        self._put_journal({**self._record, "parts": self._parts.table})
        self._sweep()

    def deliver(self, files: Iterable[Written]) -> None:
        """Upload files that became complete, and remove them from the workplace."""
        for written in files:
            self._check_owner()
            self._upload(written.name, self.folder / written.name, written.bytes)
            (self.folder / written.name).unlink()

    def record(self, files: Entries, state: dict[str, Any], *, now: bool) -> None:
        """Upload what was appended to unfinished files, then the journal, if `now` or the last time was long ago.

        Nothing is recorded in the workplace, which the next run fills from the store.
        """
        if self._completed or not (now or time.monotonic() - self._pushed >= _EVERY):
            return
        gone = self._parts.send()
        assert self._record is not None
        self._put_journal({**self._record, "files": files(0), "state": state, "parts": self._parts.table})
        self._parts.delete(gone)
        self._pushed = time.monotonic()

    def ended_early(self, files: Iterable[PartialFile]) -> None:
        """Upload unfinished files of a run that ends early to where people look for them."""
        for file in files if not self._completed else ():
            path = file.path.with_name(file.path.name + PARTIAL)
            self._upload(path.name, path, file.length)

    def complete(self) -> None:
        """Upload the other files of the dataset, then the manifest; then delete the working files."""
        self._completed = True
        self._check_owner()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name != NAME and not path.name.endswith(PARTIAL):
                self._upload(path.name, path)
        self._upload(_PLAN, self.folder / _PLAN)
        self._check_owner()
        self._upload(NAME, self.folder / NAME)
        try:
            self._store.delete([REJECTS + PARTIAL])
            # An upload whose first answer was lost is still open, though its data has been sent again.
            self._store.abort_uploads(self._owns)
            self.tidy()
        except OutputError as why:  # the dataset is complete; some stores do not allow to delete anything
            _log.warning("warning: the working files in %s cannot be deleted: %s", self.url, why.message)

    def tidy(self, facts: Facts | None = None) -> None:
        """Delete all working files of a complete dataset except for the plan.

        With `facts` only if they are of that plan: its run was killed after it had written the manifest.
        """
        if self._record is None or (facts and self._record["plan"] != _plan_name(facts)):
            return
        self._parts.table = {}
        self._parts.sweep(keep=(_JOURNAL, _PLAN))
        self._store.delete([_JOURNAL])

    def space(self, output: Output, size: float, margin: float) -> tuple[float, float]:
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
        return {"plan": self._put_plan(facts), "commits": self.commits, "files": [], "state": None, "parts": {}}

    def _put_plan(self, facts: Facts) -> str:
        """Upload the plan, as a stream, since it may list a million sources; return its name."""
        name = _plan_name(facts)
        self._store.upload(name, partial(facts_json, facts), sum(map(len, facts_json(facts))))
        return name

    def _sweep(self) -> None:
        """Delete all working files of any run that the journal does not need."""
        self._parts.sweep(keep=(_JOURNAL, _PLAN, _REMOVAL, self._record["plan"] if self._record else ""))

    def _upload(self, name: str, path: Path, size: int | None = None) -> None:
        size = path.stat().st_size if size is None else size
        self._store.upload(name, partial(_blocks, path, 0, size), size)

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
        version = self._store.compare_and_swap(_JOURNAL, data, self._version)
        if version is None:
            self._check_content()
            version = self._store.compare_and_swap(_JOURNAL, data, self._version)
        if version is None:
            raise self._taken_over()
        self._version, self._content = version, data

    def _check_owner(self) -> None:
        """Raise OutputError when another run has replaced the journal."""
        if self._store.version(_JOURNAL) != self._version:
            self._check_content()

    def _check_content(self) -> None:
        """The same by its content: a store or a proxy may give one object two ETags."""
        found = self._store.read(_JOURNAL)
        if found is None or found[0] != self._content:
            raise self._taken_over()
        self._version = found[1]

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
    return (cache or _user_cache()) / "staging"


def _user_cache() -> Path:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "shardmill"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shardmill"
    return Path.home() / ".cache" / "shardmill"


Chain = list[list[Any]]
"""The runs that have sent the parts of a file, in order: [run, byte up to which its parts count]."""


class Parts:
    """The unfinished files of a run: in a folder of this machine, and in the store."""

    def __init__(self, store: ObjectStore, folder: Path, run: str) -> None:
        self._store, self._folder, self._run = store, folder, run
        self.table: dict[str, Chain] = {}
        """What the journal says of them, by name. It does not grow with the number of parts."""

    def send(self) -> dict[str, Chain]:
        """Upload what was appended to files in the folder; return the entries of those that are gone."""
        here = {path.relative_to(self._folder).as_posix(): path for path in self._folder.rglob(f"*{PARTIAL}")}
        gone = {name: self.table.pop(name) for name in list(self.table) if name not in here}
        for name, path in here.items():
            chain = self.table.get(name, [])
            start, end = chain[-1][1] if chain else 0, path.stat().st_size
            if end > start:
                part = f"{_folder(self._run, name)}/{start:016x}"
                self._store.upload(part, partial(_blocks, path, start, end), end - start)
                if not chain or chain[-1][0] != self._run:
                    chain.append([self._run, end])
                chain[-1][1] = end
                self.table[name] = chain
        return gone

    def fetch(self) -> None:
        """Download the files into the folder; OutputError when a part is missing."""
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
                f"parts of `{name}` are not there as the journal says",
                place=f"{self._store.url}/{FOLDER}",
                hint="the store was changed by something else; start anew with `--overwrite`",
            )
        # What that run had sent beyond this, a later one has made again.
        file.truncate(end)
        file.seek(end)

    def truncate(self) -> None:
        """Forget parts beyond the end of the files in the folder, which were cut back to what is recorded."""
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
        """Delete the parts of files that the journal no longer lists."""
        for name, chain in gone.items():
            for run, _ in chain:
                self._store.delete(part for part, _ in self._store.list_tree(_folder(run, name)))

    def sweep(self, keep: tuple[str, ...]) -> None:
        """Delete the working files of all runs, except for the parts in the table and the names in `keep`."""
        needed = {(run, name): end for name, chain in self.table.items() for run, end in chain}
        stray = []
        for path, _ in self._store.list_tree(FOLDER):
            run, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
            name = rest.rpartition("/")[0]
            if path not in keep and not (name and _start(path) < needed.get((run, name), 0)):
                stray.append(path)
        self._store.delete(stray)


def _blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a file between two offsets."""
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            block = file.read(min(_BLOCK, end - start))
            if not block:
                raise OutputError(f"`{path.name}` became shorter while it was sent", place=str(path))
            start += len(block)
            yield block


def _folder(run: str, name: str) -> str:
    return f"{FOLDER}/{run}/{name}"


def _start(part: str) -> int:
    """The byte at which a part begins; larger than any offset when the name is not a part's."""
    try:
        return int(part.rpartition("/")[2], 16)
    except ValueError:
        return sys.maxsize
