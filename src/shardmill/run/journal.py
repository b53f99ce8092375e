"""How far a run has come, on disk: who is at work in a folder, on which plan, and what of it is done.

    DIR/.shardmill/lock           held by the process at work; the system lets go of it when that process dies
    DIR/.shardmill/plan.json      the plan's facts, to say what differs when another plan comes
    DIR/.shardmill/run.json       how it went over time, for the report (run/record.py)
    DIR/.shardmill/journal.jsonl  a line per checkpoint: files that became whole, and the state of everything else

A line is appended only after all that it speaks of is on disk. What a torn last line would have said is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shardmill.errors import BusyError, MismatchError, OutputError
from shardmill.run.plan import Facts, differences, facts_json, fingerprint, read_facts
from shardmill.run.record import NAME as RECORD
from shardmill.storage import write_whole, writing_to

FOLDER = ".shardmill"
_KEPT = ("plan.json", RECORD)
"""What a complete dataset keeps."""
_COMPACT_ABOVE = 1 << 20

Entries = Callable[[int], list[Any]]
"""Returns the complete files of a run from a number on, as the journal lists them."""


class SavedRun(NamedTuple):
    """What an earlier run has recorded."""

    files: list[Any]
    """Those that are whole."""
    state: dict[str, Any] | None
    """None: it ended before its first checkpoint."""

    @property
    def did_nothing(self) -> bool:
        """It came to an orderly end before its first document: a wrong option, say. One that was killed is not."""
        state = self.state
        if state is None or self.files:
            return False
        # 0.1.0 knew nothing of merges.
        return not any((state["source"], state.get("merge"), *state["position"], *state["totals"].values()))


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
        """The disk does not answer: whoever closes a file, or deletes one, would wait for ever."""

    def resume(self, facts: Facts) -> SavedRun | None:
        """What an earlier run of the same plan has done; None if there was none, MismatchError if of another plan.

        One of another plan that did nothing is forgotten.
        """
        before = read_plan(self.folder.parent)
        if before is None:
            # The plan is written before anything else, and whole: without one nothing was begun.
            return None
        saved_run = self._read()
        if fingerprint(before) == fingerprint(facts):
            return saved_run
        if not saved_run.did_nothing:
            refuse(before, facts, "an unfinished run")
        self.clear(plan=False)
        return None

    def _read(self) -> SavedRun:
        files, state = [], None
        if self._path.exists():
            for line in self._path.read_bytes().split(b"\n"):
                try:
                    entry = json.loads(line)
                except ValueError:  # torn by the crash that ended that run, or the empty end
                    break
                files += entry["files"]
                state = entry["state"]
        return SavedRun(files, state)

    def begin(self, facts: Facts, files: Entries, state: dict[str, Any] | None) -> None:
        """Start to write, from nothing or from a state that was just restored."""
        if state is None:
            self._path.unlink(missing_ok=True)
            write_whole(self.folder / "plan.json", facts_json(facts))
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
        """Forget how far it came. With `plan` False the plan too; a complete dataset keeps it, to be compared with, and
        the record of the run."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for path in self.folder.iterdir():
            if path.name != "lock" and not (plan and path.name in _KEPT):
                path.unlink()

    def close(self) -> None:
        """Let go of the folder."""
        if self.stuck:
            return  # the system lets go of the lock when this process ends
        if self._file is not None:
            self._file.close()
        # Removed while it is still held, so that nobody can take a lock on a file that is about to vanish.
        (self.folder / "lock").unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # somebody has deleted the folder meanwhile, which the run has noticed
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
    """Remove what a run has left that was killed after it had written the manifest: its lock, and its working files."""
    try:
        left = [path.name for path in (out / FOLDER).iterdir() if path.name not in _KEPT]
    except OSError:
        return
    if left:
        try:
            journal = Journal(out)
        except OutputError:  # it is just being completed, or may only be read: both do no harm
            return
        journal.clear(plan=True)
        journal.close()


def read_plan(out: Path) -> dict[str, Any] | None:
    """The facts of the plan that was last begun in a folder; None when there is none."""
    return read_facts(out / FOLDER / "plan.json")


def refuse(before: dict[str, Any], now: dict[str, Any], what: str) -> None:
    """MismatchError that names what differs."""
    raise MismatchError(
        f"the folder holds {what} of another plan: " + "; ".join(differences(before, now)),
        hint="use another folder, or start anew with `--overwrite`",
    )


def _lock(path: Path, out: Path) -> int:
    """A file that is locked by this process for as long as it lives."""
    while True:
        with writing_to(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _hold(handle)
        except OSError:
            holder = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise BusyError(
                "another run is at work in this folder" + (f" (process {holder})" if holder else ""),
                place=str(out),
                hint="wait for it to end, or choose another folder",
            ) from None
        try:
            # The run that held it before may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                with writing_to(path):
                    os.truncate(handle, 0) if os.name != "nt" else None
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


if os.name == "nt":
    import msvcrt

    def _hold(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
else:
    import fcntl

    def _hold(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
