"""Where the parts of a run are kept until they are merged: in a hidden folder of the dataset, or below its URL.

OUT/.parts/plan.json             what is to be done, and where each part begins
OUT/.parts/sources-HASH.jsonl    every source, a line each; named by its content, so that no plan finds another's list
OUT/.parts/00007/manifest.json   of a part that is whole; it comes into being in one step, if there is none yet
OUT/.parts/00007/…               what it holds; in a store below a name of whoever made it
OUT/.parts/unfinished/…          what is being made in a folder, and on which machine
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import BusyError, DamageError, OutputError
from shardmill.run import MANIFEST, Journal, manifest_json, parse_manifest, staging_folder
from shardmill.storage import ObjectStore, create_whole, is_url, sync_folder, write_whole, writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = ".parts"
PLAN = "plan.json"
_BLOCK = 1 << 20


class Place(ABC):
    """The storage of parts, for any machine at any time."""

    out: str
    """The folder or the URL of the dataset."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is not there."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Store a small file, unless one of this name exists; return whether it was stored.

        Of several machines that do this at once, one succeeds.
        """

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Store a small file in place of another."""

    @abstractmethod
    def store(self, name: str, content: IO[bytes]) -> None:
        """Store a copy of a file under a name that says what it contains, unless it is there already."""

    @abstractmethod
    def section(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        """Return bytes of a file, fewer at its end. Raise FileNotFoundError if it is not there."""

    @abstractmethod
    def work(self, name: str, attempt: int) -> Path:
        """Return a folder of this machine to make it in. Files of an earlier attempt may be in it."""

    @abstractmethod
    def publish(
        self,
        name: str,
        folder: Path,
        manifest: dict[str, Any],
        *,
        final: bool = False,
        sent: Callable[[int], None] | None = None,
    ) -> bool:
        """Publish the files of a folder under this name, unless it is taken. The folder is gone afterwards.

        `final`: they are files of the dataset, and `adopt` will give them their names. `sent`: called with the size of
        each block that is uploaded. Return False if it is taken.
        """

    @abstractmethod
    def adopt(self, files: Mapping[str, list[dict[str, Any]]]) -> None:
        """Give final files their names in the dataset, unless they have them. Raise OutputError if one is missing."""

    @abstractmethod
    def published(self) -> set[str]:
        """Return the names of all parts that are published."""

    @abstractmethod
    def delete(self, names: list[str]) -> None:
        """Delete files, as far as they are there."""

    @abstractmethod
    def clear(self) -> None:
        """Delete everything: the plan and the parts."""

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Delete the parts. Without a plan, they are what a killed `clear` has left of another one."""

    def manifest(self, name: str) -> dict[str, Any] | None:
        """Return the manifest of what was published, or None. Raise DamageError if it cannot be read."""
        data = self.read(f"{name}/{MANIFEST}")
        return None if data is None else parse_manifest(data, f"{self.out}/{FOLDER}/{name}/{MANIFEST}")


def place_of(out: str | os.PathLike[str], cache: str | None = None) -> Place:
    """Return the place for the parts of a dataset. `cache`: the folder in which parts of a store are made."""
    return StorePlace(os.fspath(out), Path(cache) if cache else None) if is_url(out) else FolderPlace(Path(out))


def part_name(number: int) -> str:
    return f"{number:05}"


def part_manifest(place: Place, number: int) -> dict[str, Any] | None:
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


class FolderPlace(Place):
    """Parts in a folder that all machines see."""

    def __init__(self, out: Path) -> None:
        self.out = str(out)
        self._out, self._folder = out, out / FOLDER

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, content: bytes) -> bool:
        return create_whole(self._path(name), content)

    def replace(self, name: str, content: bytes) -> None:
        write_whole(self._path(name), content)

    def store(self, name: str, content: IO[bytes]) -> None:
        path = self._path(name)
        if not path.exists():
            create_whole(path, _read_blocks(content))

    def _path(self, name: str) -> Path:
        """Return the path of a file that will be written."""
        path = self._folder / name
        with writing_to(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def section(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        data = np.empty(end - start, np.uint8)
        with open(self._folder / name, "rb", buffering=0) as file:
            file.seek(start)
            return data[: file.readinto(data.data)]

    def work(self, name: str, attempt: int) -> Path:
        # Locks on a shared folder may not work between machines, so each machine has a folder of its own.
        folder = self._folder / "unfinished" / f"{name}.{socket.gethostname() or 'host'}.{attempt}"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(
        self,
        name: str,
        folder: Path,
        manifest: dict[str, Any],
        *,
        final: bool = False,
        sent: Callable[[int], None] | None = None,
    ) -> bool:
        try:
            os.rename(folder, self._folder / name)
        except OSError as why:
            # These mean that it is there already, or that all was merged and is gone.
            late = self.read(f"{name}/{MANIFEST}") is not None or self.read(PLAN) is None
            if why.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.ENOENT) or not late:
                raise OutputError(f"cannot write: {why.strerror or why}", place=str(self._folder)) from why
            shutil.rmtree(folder, ignore_errors=True)
            return False
        sync_folder(self._folder)  # whoever sees it may rely on it, and delete what it was made from
        return True

    def adopt(self, files: Mapping[str, list[dict[str, Any]]]) -> None:
        for name, file in ((name, file) for name, listed in files.items() for file in listed):
            made, final = self._folder / name / file["name"], self._out / file["name"]
            found = next((path.stat().st_size for path in (made, final) if path.exists()), None)
            if found != file["bytes"]:
                raise _not_as_made(name, file, self.out)
            if made.exists():
                with writing_to(final):
                    final.parent.mkdir(exist_ok=True)
                    os.replace(made, final)
        for folder in {(self._out / file["name"]).parent for listed in files.values() for file in listed}:
            sync_folder(folder)

    def published(self) -> set[str]:
        try:
            entries = [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return set()
        return {name for name in entries if (self._folder / name / MANIFEST).exists()}

    def delete(self, names: list[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        # The plan goes first: without it, a late copy knows that all is done.
        self.delete([PLAN])
        shutil.rmtree(self._folder, ignore_errors=True)

    def remove_leftovers(self) -> None:
        try:
            folders = [entry.path for entry in os.scandir(self._folder) if entry.is_dir()]
        except FileNotFoundError:
            return
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


class StorePlace(Place):
    """Parts in an object store. They are made on the machine's own disk, uploaded, and read by ranges."""

    def __init__(self, url: str, cache: Path | None = None) -> None:
        self._store = ObjectStore(url)
        self.out = self._store.url
        self._own = staging_folder(cache) / f"{hashlib.sha256(self.out.encode()).hexdigest()[:16]}-parts"

    def read(self, name: str) -> bytes | None:
        found = self._store.read(f"{FOLDER}/{name}")
        return None if found is None else found[0]

    def create(self, name: str, content: bytes) -> bool:
        return self._store.compare_and_swap(f"{FOLDER}/{name}", content, None) is not None

    def replace(self, name: str, content: bytes) -> None:
        self._store.put(f"{FOLDER}/{name}", content)

    def store(self, name: str, content: IO[bytes]) -> None:
        if self._store.version(f"{FOLDER}/{name}") is None:
            self._store.upload(f"{FOLDER}/{name}", partial(_read_blocks, content), content.seek(0, os.SEEK_END))

    def section(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        return np.frombuffer(bytearray(self._store.section(f"{FOLDER}/{name}", start, end)), np.uint8)

    def work(self, name: str, attempt: int) -> Path:
        folder = self._own / f"{name}.{attempt}"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(
        self,
        name: str,
        folder: Path,
        manifest: dict[str, Any],
        *,
        final: bool = False,
        sent: Callable[[int], None] | None = None,
    ) -> bool:
        # Under a name of its own: a late copy must not replace what others may be reading. Final files have their
        # names already, since a late copy writes the same bytes.
        own = secrets.token_hex(6)
        files = {file["name"]: file["bytes"] for file in files_of(manifest)}
        staying = {file["name"] for file in final_files(manifest)} if final else ()
        names = {file: file if file in staying else f"{FOLDER}/{name}/{own}/{file}" for file in files}
        first = self.read(f"{name}/{MANIFEST}") is None and self.read(PLAN) is not None
        if first:
            for file, size in files.items():
                self._store.upload(names[file], partial(_blocks, folder / file, sent), size)
            data = b"".join(manifest_json({**manifest, "made": own}))
            first = self._store.compare_and_swap(f"{FOLDER}/{name}/{MANIFEST}", data, None) is not None
            if not first:
                self._store.delete([names[file] for file in files if file not in staying])
        shutil.rmtree(folder, ignore_errors=True)
        self._remove_killed()
        return first

    def _remove_killed(self) -> None:
        """Remove what killed processes of this machine have left of parts that are published by now."""
        for folder in self._own.iterdir() if self._own.exists() else ():
            if self.read(f"{folder.name.rpartition('.')[0]}/{MANIFEST}") is None:
                continue
            try:
                journal = Journal(folder)
            except BusyError:  # a process that does not know yet that it is late
                continue
            shutil.rmtree(folder, ignore_errors=True)
            journal.close()

    def adopt(self, files: Mapping[str, list[dict[str, Any]]]) -> None:
        """Check the final files, which have their names already."""
        there = self._store.list_folders(
            {file["name"].rpartition("/")[0] for listed in files.values() for file in listed}
        )
        for name, file in ((name, file) for name, listed in files.items() for file in listed):
            if there.get(file["name"]) != file["bytes"]:
                raise _not_as_made(name, file, self.out)

    def published(self) -> set[str]:
        names = [name.split("/") for name, _ in self._store.list_tree(FOLDER)]
        return {name[-2] for name in names if name[-1] == MANIFEST}

    def delete(self, names: list[str]) -> None:
        self._store.delete([f"{FOLDER}/{name}" for name in names])

    def clear(self) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        names = sorted((name for name, _ in self._store.list_tree(FOLDER)), key=lambda name: not name.endswith(PLAN))
        self._store.delete(names[:1])
        self._store.delete(names[1:])

    def remove_leftovers(self) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        # A plan and its list are directly in the folder, all else is in folders of its own.
        self._store.delete([name for name, _ in self._store.list_tree(FOLDER) if name.count("/") > 1])


def files_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all files that a manifest lists."""
    return final_files(manifest) + ([manifest["rejects"]] if "rejects" in manifest else [])


def final_files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files of all formats and splits."""
    described = (manifest, *manifest.get("also", ()))
    return [file for one in described for split in one["splits"].values() for file in split["files"]]


def _not_as_made(name: str, file: dict[str, Any], out: str) -> OutputError:
    return OutputError(
        f"`{file['name']}` is missing, or has another size than when it was made",
        place=f"{out}: {FOLDER}/{name}",
        hint="delete that there, and run the same commands again",
    )


def _blocks(content: Path, sent: Callable[[int], None] | None = None) -> Iterator[bytes]:
    with open(content, "rb") as file:
        for block in _read_blocks(file):
            if sent is not None:
                sent(len(block))
            yield block


def _read_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file from its beginning."""
    file.seek(0)
    while block := file.read(_BLOCK):
        yield block
