"""Where the parts of a run are kept until they are merged: in a hidden folder of the dataset, or below its URL.

OUT/.parts/plan.json             what is to be done, and where each part begins
OUT/.parts/sources-HASH.jsonl    every source, a line each; named by its content, so that no plan finds another's list
OUT/.parts/00007/manifest.json   of a part that is whole; it comes into being in one step, if there is none yet
OUT/.parts/00007/MADE/…          what it holds, below a name of whoever made it, which the manifest says
OUT/.parts/unfinished/…          what is being made in a folder, and on which machine
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from shardmill.errors import BusyError, DamageError, OutputError
from shardmill.storage import open_store, writing_to
from shardmill.write import (
    MANIFEST,
    FileEntry,
    Journal,
    Manifest,
    OtherFile,
    manifest_json,
    parse_manifest,
    staging_folder,
    tables_in,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = ".parts"
PLAN = "plan.json"
_BLOCK = 1 << 20


class Place:
    """The storage of a plan and its parts, for any machine at any time. Names are those below `.parts`."""

    def __init__(self, out: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None) -> None:
        """`cache`: the folder in which parts of a store are made; the user's cache by default."""
        self._store = open_store(out)
        self.out = self._store.url
        """The folder or the URL of the dataset."""
        if self._store.folder is not None:
            self._work = self._store.folder / FOLDER / "unfinished"
        else:
            url = hashlib.sha256(self.out.encode()).hexdigest()[:16]
            self._work = staging_folder(Path(cache) if cache else None) / f"{url}-parts"

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is not there."""
        return self._store.read(f"{FOLDER}/{name}")

    def create(self, name: str, content: bytes) -> bool:
        """Store a small file, unless one of this name exists; return whether it was stored."""
        return self._store.create(f"{FOLDER}/{name}", content)

    def replace(self, name: str, content: bytes) -> None:
        """Store a small file in place of another."""
        self._store.put(f"{FOLDER}/{name}", content)

    def store(self, name: str, content: IO[bytes]) -> None:
        """Store a copy of a file under a name that says what it contains, unless it is there already."""
        if not self._store.has(f"{FOLDER}/{name}"):
            self._store.upload(f"{FOLDER}/{name}", partial(_blocks, content), content.seek(0, os.SEEK_END))

    def section(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        """Return bytes of a file, fewer at its end. Raise FileNotFoundError if it is not there."""
        return np.frombuffer(self._store.section(f"{FOLDER}/{name}", start, end), np.uint8)

    def work(self, name: str, attempt: int) -> Path:
        """Return a folder of this machine to make it in. Files of an earlier attempt may be in it."""
        # Locks on a shared folder may not work between machines, so each machine has a folder of its own.
        folder = self._work / f"{name}.{_host()}.{attempt}"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(
        self,
        name: str,
        folder: Path,
        manifest: Manifest,
        *,
        final: bool = False,
        sent: Callable[[int], None] | None = None,
    ) -> bool:
        """Publish the files of a folder under this name, unless it is taken. The folder is gone afterwards.

        `final`: they are files of the dataset, and get their names there. `sent`: called with the size of each block
        that is uploaded. Return False if the name is taken, or if there is no plan any more, or another one.
        """
        # Under a name of its own: a late copy must not replace what others may be reading. Final files have their
        # names at once, since a late copy writes the same bytes.
        own = secrets.token_hex(6)
        staying = {file["name"] for file in final_files(manifest)} if final else set()
        names = {
            file["name"]: file["name"] if file["name"] in staying else f"{FOLDER}/{name}/{own}/{file['name']}"
            for file in files_of(manifest)
        }
        first = self.read(f"{name}/{MANIFEST}") is None and self._is_planned(manifest)
        if first:
            self._store.take(folder, names, sent)
            first = self.create(f"{name}/{MANIFEST}", b"".join(manifest_json({**manifest, "made": own})))
            if not first:
                self._store.delete(new for file, new in names.items() if file not in staying)
            elif not self._is_planned(manifest):  # all was merged meanwhile
                self._store.delete_tree(f"{FOLDER}/{name}")
                first = False
        shutil.rmtree(folder, ignore_errors=True)
        self._remove_killed()
        return first

    def _is_planned(self, manifest: Manifest) -> bool:
        """Whether the plan that a part belongs to is still there."""
        plan = self.read(PLAN)
        return plan is not None and bool(json.loads(plan)["fingerprint"] == manifest["part"]["plan"])

    def _remove_killed(self) -> None:
        """Remove what killed processes of this machine have left of parts that are published by now."""
        for folder in self._work.glob(f"*.{_host()}.*"):
            if self.read(f"{folder.name.partition('.')[0]}/{MANIFEST}") is None:
                continue
            try:
                journal = Journal(folder)
            except BusyError:  # a process that does not know yet that it is late
                continue
            shutil.rmtree(folder, ignore_errors=True)
            journal.close()

    def adopt(self, files: Mapping[str, Sequence[OtherFile]]) -> None:
        """Check the final files of the parts. Raise OutputError if one is not as it was made."""
        there = self._store.list_folders({file["name"].rpartition("/")[0] for some in files.values() for file in some})
        for name, file in ((name, file) for name, some in files.items() for file in some):
            if there.get(file["name"]) != file["bytes"]:
                raise OutputError(
                    f"`{file['name']}` is missing, or has another size than when it was made",
                    place=f"{self.out}: {FOLDER}/{name}",
                    hint="delete that there, and run the same commands again",
                )

    def published(self) -> set[str]:
        """Return the names of all parts that are published."""
        names = [name.split("/") for name, _ in self._store.list_tree(FOLDER)]
        return {name[1] for name in names if len(name) == 3 and name[2] == MANIFEST}

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest of what was published, or None. Raise DamageError if it cannot be read."""
        data = self.read(f"{name}/{MANIFEST}")
        return None if data is None else parse_manifest(data, f"{self.out}/{FOLDER}/{name}/{MANIFEST}")

    def delete(self, folder: str) -> None:
        """Delete the files in a folder, without waiting for the disk."""
        self._store.delete_tree(f"{FOLDER}/{folder}")

    def clear(self) -> None:
        """Delete everything: the plan and the parts."""
        # The plan goes first: without it, a late copy knows that all is done.
        self._store.delete([f"{FOLDER}/{PLAN}"])
        self._store.delete_tree(FOLDER)
        shutil.rmtree(self._work, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Delete the parts. Without a plan, they are what a killed `clear` has left of another one."""
        names = [name.split("/") for name, _ in self._store.list_tree(FOLDER)]
        # A plan and its list are directly in the folder, all else is in folders of its own.
        for folder in {name[1] for name in names if len(name) > 2}:
            self._store.delete_tree(f"{FOLDER}/{folder}")
        shutil.rmtree(self._work, ignore_errors=True)


def part_name(number: int) -> str:
    return f"{number:05}"


def part_manifest(place: Place, number: int) -> Manifest | None:
    """Return the manifest of a part, or None. Raise OutputError if it is damaged."""
    try:
        manifest = place.manifest(part_name(number))
        if manifest is not None and manifest["part"]["number"] != number:
            raise KeyError
        return manifest
    except (DamageError, KeyError, TypeError):
        raise damaged_part(number, "its manifest cannot be read", place.out) from None


def damaged_part(number: int, what: str, out: str) -> OutputError:
    return OutputError(
        f"part {number:,} is damaged: {what}",
        place=f"{out}/{FOLDER}/{part_name(number)}",
        hint=f"delete it there, and make it again: `shardmill prepare --plan {out} --part {number}`",
    )


def files_of(manifest: Manifest) -> list[OtherFile]:
    """Return all files that a manifest lists."""
    tables = [table for split in manifest["splits"].values() for table in tables_in(split)]
    return [*final_files(manifest), *tables, *([manifest["rejects"]] if "rejects" in manifest else [])]


def final_files(manifest: Manifest) -> list[FileEntry]:
    """Return the files of all formats and splits."""
    described = (manifest, *manifest.get("also", ()))
    return [file for one in described for split in one["splits"].values() for file in split["files"]]


def _host() -> str:
    return socket.gethostname() or "host"


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file from its beginning."""
    file.seek(0)
    while block := file.read(_BLOCK):
        yield block
