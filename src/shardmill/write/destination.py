"""Where a dataset is written: a local folder, or an object store with a local folder as its workplace."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError, ShardmillError
from shardmill.shards import DATASET_FOLDERS, FORMATS, TABLE_NAMES, ShardWriter, format_named
from shardmill.storage import PARTIAL, FolderStore, ObjectStore, PartialFile, Retries, Store, Written, is_url
from shardmill.units import show_bytes
from shardmill.write.facts import COMMITS, Facts, SourceFacts, fingerprint, read_facts, shard_name
from shardmill.write.journal import FOLDER, REMOVAL, Entries, Journal, raise_mismatch, tidy
from shardmill.write.manifest import NAME, REJECTS, Manifest, dataset_files, read_manifest

PLAN = f"{FOLDER}/plan.json"
_REMOVAL = f"{FOLDER}/{REMOVAL}"


class Destination:
    """A folder. The methods that do nothing here are hooks for an object store, which uploads what is done.

    `deliver` and `record` run in the checkpoint thread, the others while that thread is idle.
    """

    medium = "disk"
    """What an error calls it if it does not respond."""
    buffer_bytes = 0
    """Bytes of memory for upload buffers."""
    waiting_files = 8
    """Full files that may wait for a checkpoint; each holds two handles."""
    largest_file: int | None = None
    """Bytes that one file may have; None: any number."""
    hint = "free some space, or choose another folder"
    """What to do when the disk is too small."""
    last_response = 0.0
    """When the store last responded, by the monotonic clock."""
    journal: Journal
    """While a run is at work."""
    retries = Retries()
    """Of requests to a store."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder
        """Where files are written."""
        self._store: Store = store or FolderStore(folder)
        """Where they are when they are complete."""
        self.shown: Path | str = folder
        """The folder or URL that the user named."""

    def pinned_commits(self, plan: Facts | None) -> dict[str, str]:
        """The commits that an unfinished run of the recorded plan reads; empty when there is no such run."""
        commits: dict[str, str] = (plan or {}).get(COMMITS, {})
        return {} if commits and (self.has_manifest() or self.removal_pending()) else commits

    def recorded_plan(self) -> Facts | None:
        """The plan of the dataset or the unfinished run that is there; None when there is none."""
        try:
            return read_facts(self._store, PLAN)
        except OSError:  # for which the journal has the better error
            return None

    @contextmanager
    def locked(self, *, overwrite: bool) -> Iterator[None]:
        """Open and lock the journal; OutputError when another process is at work there."""
        self.journal = Journal(self.folder)
        try:
            yield
        finally:
            self.journal.close()

    def work_folder(self, name: str) -> Path:
        """Return a folder on this machine for temporary files; who uses it makes and deletes it."""
        return self.folder / f".{name}"

    def has_manifest(self) -> bool:
        """Whether there is a complete dataset."""
        return self._store.has(NAME)

    def manifest(self) -> Manifest | None:
        """The manifest of the complete dataset, if there is one; of a dataset in a store, only while it is locked."""
        return read_manifest(self.folder) if (self.folder / NAME).exists() else None

    def finished(self, facts: Facts) -> Manifest | None:
        """The manifest of a complete dataset, if there is one; MismatchError when it has another plan."""
        manifest = self.manifest()
        if manifest is None:
            return None
        if manifest["fingerprint"] != fingerprint(facts):
            sources = SourceFacts(lambda: ([source["name"], source["bytes"], ""] for source in manifest["sources"]))
            known = {"options": manifest["options"], "tokenizer": manifest["tokenizer"], "sources": sources}
            raise_mismatch(self.recorded_plan() or known, facts, "the dataset")
        self.tidy(facts)
        return manifest

    def tidy(self, facts: Facts) -> None:
        """Remove the working files of a run of this plan that was killed after it had written the manifest."""
        tidy(self.folder)

    def names(self) -> dict[str, int]:
        """The files that are there, with their sizes."""
        return self._store.list_folders(DATASET_FOLDERS)

    def check_conflicts(self, outputs: Sequence[ShardWriter]) -> None:
        """Raise OutputError when files that shardmill did not make have names that the outputs will use."""
        there = self.names()
        self._refuse([name for output in outputs for name in output.matching_files(there)])

    def _refuse(self, foreign: list[str]) -> None:
        """Raise OutputError if files are in the way. A table that no dataset lists is never replaced."""
        if foreign:
            replaceable = not any(TABLE_NAMES.fullmatch(name) for name in foreign)
            raise OutputError(
                f"files of another making are in the way: {', '.join(foreign[:3])}",
                place=str(self.shown),
                hint="choose another folder" + (", or replace them with `--overwrite`" if replaceable else ""),
            )

    def remove_dataset(self, facts: Facts, outputs: Sequence[ShardWriter], also: Iterable[str] = ()) -> None:
        """Remove all files of a dataset or an unfinished run, and `also`, before a run of the plan `facts`.

        The names are recorded first, so that a later run can finish this if it is killed. Then the manifest is
        removed, so that no half dataset has one. OutputError when a documents table is there that is not ours.
        """
        there = self.names()
        names = [*dataset_files(self.folder), REJECTS + PARTIAL, *(self._recorded_removal() or ()), *also]
        names += [name for output in outputs for name in output.matching_files(there)]
        if (plan := self.recorded_plan()) is not None:
            # Some files may be unfinished, and listed nowhere.
            options, first = plan["options"], next(iter(plan["sources"]), ("",))[0]
            names += self.files_of(options.get("format"), shard_name(options.get("name"), first))
            names += [] if self._has_good_manifest() else self._matching_files([TABLE_NAMES])
        self._refuse(sorted(set(self._matching_files([TABLE_NAMES])).difference(names)))
        # A manifest may come from an untrusted place.
        names = [name for name in dict.fromkeys(names) if not Path(name).is_absolute() and ".." not in Path(name).parts]
        self._store.put(_REMOVAL, json.dumps(names).encode())
        self._clear(facts, names)
        self.journal.clear(plan=False)

    def removal_pending(self) -> bool:
        """Whether a run was killed while it removed a dataset."""
        return self._recorded_removal() is not None

    def finish_removal(self, facts: Facts) -> None:
        """Remove what is left of a dataset, if a run was killed while it removed that. The next one may have any plan.

        Where the manifest is still there, nothing was removed yet: such a dataset is complete.
        """
        names = self._recorded_removal()
        if names is not None and not (self.folder / NAME).exists():
            self._clear(facts, names)
            self.journal.clear(plan=False)

    def _has_good_manifest(self) -> bool:
        """Whether there is a manifest that can be read, so that it lists all files of the dataset."""
        try:
            return self.manifest() is not None
        except ShardmillError:
            return False

    def files_of(self, formats: Iterable[str] | None, name: str) -> list[str]:
        """The files that are there whose names are those of these formats."""
        kinds = [format_named(one) for one in formats or () if one in FORMATS]
        return self._matching_files([kind.file_names(name) for kind in kinds])

    def _matching_files(self, patterns: list[re.Pattern[str]]) -> list[str]:
        """The files that are there whose names match, unfinished ones included."""
        there = self.names()
        return [name for name in there for pattern in patterns if pattern.fullmatch(name.removesuffix(PARTIAL))]

    def _recorded_removal(self) -> list[str] | None:
        """The files that a run was about to remove when it was killed; None: there was no such run."""
        found = self._store.read(_REMOVAL)
        names: list[str] | None = json.loads(found) if found else None
        return names

    def _clear(self, facts: Facts, names: list[str]) -> None:
        """Remove files; the manifest is the first, and its removal is on disk before another file is removed."""
        self._store.delete([NAME])
        self._store.delete(names)

    def begin(self, facts: Facts, complete: Collection[Written], outputs: Sequence[ShardWriter]) -> None:
        """Called before the outputs are restored. OutputError when files are missing."""

    def restored(self) -> None:
        """Called when the files were cut back to what the journal says."""

    def deliver(self, files: Iterable[Written]) -> None:
        """Called when files became complete."""

    def record(self, files: Entries, state: dict[str, Any], *, now: bool) -> None:
        """Record a checkpoint: `files` are complete and delivered, and what the state describes is on disk."""
        self.journal.record(files, state)

    def ended_early(self, files: Iterable[PartialFile]) -> None:
        """Called with unfinished files when a run ends early."""

    def complete(self) -> None:
        """Called when the manifest is written, last of all."""

    def space(self, output: ShardWriter, size: float, margin: float) -> tuple[float, float]:
        """How much space an output of `size` bytes, give or take `margin`, needs on this disk."""
        return size, margin

    def check_free(self, need: float, doubt: float = 0, hint: str | None = None) -> None:
        """Raise OutputError when `need` bytes, give or take `doubt`, do not fit on this disk.

        `hint`: what helps with this command, if that is not what the destination says.
        """
        free = shutil.disk_usage(self.folder).free
        # Stopping a run that would have fitted is worse than a late "no space".
        if need - doubt > free:
            raise OutputError(
                f"the output would take about {show_bytes(need)}, and {show_bytes(free)} are free",
                place=str(self.folder),
                hint=hint or self.hint,
            )


def open_destination(out: str | os.PathLike[str], cache: str | None = None) -> Destination:
    """The destination at a folder or a URL; UsageError for a URL that cannot be written to.

    `cache`: the folder for the workplace of an object store.
    """
    if is_url(out):
        # Imported here, since most runs do not need it.
        from shardmill.write.store_destination import StoreDestination

        return StoreDestination(ObjectStore(os.fspath(out)), Path(cache) if cache else None)
    return Destination(Path(out))
