"""The state of a run on disk: which process is at work in a folder, on which plan, and how far it has come.

    DIR/.shardmill/lock           locked by the process at work; the system unlocks it when that process dies
    DIR/.shardmill/plan.json      the plan's facts, to say what differs when another plan comes
    DIR/.shardmill/removal.json   the files that `--overwrite` deletes, from before the first deletion to after the last
    DIR/.shardmill/journal.jsonl  a line per checkpoint: files that became complete, and the state of everything else

A line is appended only after all that it lists is on disk. If the last line is torn, its work is done again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shardmill.errors import BusyError, MismatchError, OutputError
from shardmill.storage import FolderStore, write_whole, writing_to
from shardmill.write.facts import Facts, differences, facts_json, fingerprint, read_facts
from shardmill.write.manifest import journal_entries

FOLDER = ".shardmill"
_PLAN = "plan.json"  # which a complete dataset keeps
REMOVAL = "removal.json"
_COMPACT_ABOVE = 1 << 20

Entries = Callable[[int], list[Any]]
"""Returns the complete files of a run from a number on, as the journal lists them."""


class SavedRun(NamedTuple):
    """What an earlier run has recorded."""

    files: list[Any]
    """Those that are complete."""
    state: dict[str, Any] | None
    """None: it ended before its first checkpoint."""

    @property
    def did_nothing(self) -> bool:
        """Whether it ended in order before its first document, for example because of a wrong option; not by a kill."""
        return self.state is not None and not self.files and self.state.get("position") is None

    @property
    def source(self) -> int:
        """The source that it was reading."""
        return int(self.state.get("ledger", {}).get("source", 0)) if self.state else 0


class Journal:
    """The working folder of one run, locked while it is open."""

    def __init__(self, out: Path) -> None:
        """OutputError when another process is at work in `out`, or when it cannot be made."""
        self.folder = out / FOLDER
        with writing_to(out):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder / "lock", out)
        self._path = self.folder / "journal.jsonl"
        self._file: Any = None
        self._size = self._compact_size = self._recorded = 0
        self.stuck = False
        """The disk does not respond: closing or deleting a file would block for ever."""

    def resume(self, facts: Facts) -> SavedRun | None:
        """The earlier run of the same plan, if there was one; MismatchError when it has another plan.

        A run of another plan that did nothing is forgotten.
        """
        before = read_facts(FolderStore(self.folder), _PLAN)
        if before is None:
            # The plan is written first, and atomically: without one no run has begun.
            return None
        saved_run = self._read()
        if fingerprint(before) == fingerprint(facts):
            return saved_run
        if not saved_run.did_nothing:
            raise_mismatch(before, facts, "an unfinished run")
        self.clear(plan=False)
        return None

    def _read(self) -> SavedRun:
        files, state = [], None
        for entry in journal_entries(self.folder.parent):
            files += entry["files"]
            state = entry["state"]
        return SavedRun(files, state)

    def begin(self, facts: Facts, files: Entries, state: dict[str, Any] | None) -> None:
        """Start to write, from nothing or from a state that was just restored."""
        if state is None:
            self._path.unlink(missing_ok=True)
            write_whole(self.folder / _PLAN, facts_json(facts))
            self._open()
        else:
            self._compact(files, state)

    def record(self, files: Entries, state: dict[str, Any]) -> None:
        """Append a checkpoint. What it lists must be on disk already."""
        new = files(self._recorded)
        line = _line(new, state)
        if self._size + len(line) > max(_COMPACT_ABOVE, 2 * self._compact_size):
            self._compact(files, state)
            return
        with writing_to(self._path):
            self._file.write(line)
            os.fsync(self._file.fileno())
        self._size += len(line)
        self._recorded += len(new)

    def clear(self, *, plan: bool) -> None:
        """Delete the working files; with `plan` keep the plan, as a complete dataset does."""
        if self._file is not None:
            self._file.close()
            self._file = None
        # The list of files to delete comes last: until then all of this is to be deleted.
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == REMOVAL):
            if path.name != "lock" and not (plan and path.name == _PLAN):
                path.unlink()

    def close(self) -> None:
        """Unlock the folder."""
        if self.stuck:
            return  # the system unlocks it when this process ends
        if self._file is not None:
            self._file.close()
        # Removed while it is still locked, so that no process can lock a file that is about to be removed.
        (self.folder / "lock").unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the folder was deleted meanwhile, which the run has noticed
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        os.close(self._lock)

    def _compact(self, files: Entries, state: dict[str, Any]) -> None:
        """Replace all lines by one."""
        if self._file is not None:
            self._file.close()
        everything = files(0)
        line = _line(everything, state)
        write_whole(self._path, line)
        self._size = self._compact_size = len(line)
        self._recorded = len(everything)
        self._open()

    def _open(self) -> None:
        with writing_to(self._path):
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed in close()


def _line(files: list[Any], state: dict[str, Any]) -> bytes:
    return json.dumps({"files": files, "state": state}, separators=(",", ":")).encode() + b"\n"


def tidy(out: Path) -> None:
    """Remove the lock and the working files of a run that was killed after it had written the manifest."""
    try:
        left = [path.name for path in (out / FOLDER).iterdir() if path.name != _PLAN]
    except OSError:
        return
    if left:
        try:
            journal = Journal(out)
        except OutputError:  # a run is just completing it, or it is read-only: both do no harm
            return
        journal.clear(plan=True)
        journal.close()


def raise_mismatch(before: dict[str, Any], now: dict[str, Any], what: str) -> None:
    """Raise a MismatchError that names what differs."""
    raise MismatchError(
        f"the folder holds {what} of other sources or options: " + "; ".join(differences(before, now)),
        hint="use another folder, or start anew with `--overwrite`",
    )


def _lock(path: Path, out: Path) -> int:
    """Lock a file for as long as this process lives; BusyError when another process holds it."""
    while True:
        with writing_to(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise BusyError(
                "another run is using this folder" + (f" (process {holder})" if holder else ""),
                place=str(out),
                hint="wait for it to end, or choose another folder",
            ) from None
        try:
            # The run that held it before may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                with writing_to(path):
                    os.truncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)
