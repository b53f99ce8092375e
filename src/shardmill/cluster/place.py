"""Where the parts of a run lie until they are merged: in a hidden folder of the dataset's folder, or below its URL.

OUT/.parts/plan.json             what is to be done, and where each part begins
OUT/.parts/sources.jsonl         every source, a line each
OUT/.parts/00007/manifest.json   of a part that is whole; it comes into being in one step, if there is none yet
OUT/.parts/00007/…               what it holds; in a store below a name of whoever made it
OUT/.parts/work/…                what is being made in a folder, and on which machine
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from shardmill.errors import DamageError, OutputError
from shardmill.run import MANIFEST as NAME
from shardmill.run import manifest_json, parse_manifest, staging_folder
from shardmill.storage import ObjectStore, is_url, write_whole, writing_to

FOLDER = ".parts"
PLAN = "plan.json"
_BLOCK = 1 << 20


class Place(Protocol):
    """What can be done with the parts of a run, wherever they lie. Any machine may do it at any time."""

    out: str
    """The folder or the URL of the dataset."""

    def read(self, name: str) -> bytes | None:
        """A small file; None: it is not there."""

    def create(self, name: str, path: Path) -> None:
        """Put a copy of a file there, unless there is one of this name already."""

    def section(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of a file."""

    def work(self, number: int, attempt: int) -> Path:
        """A folder of this machine's own in which a part is made; what an earlier attempt has left may be in it."""

    def publish(self, number: int, folder: Path, manifest: dict[str, Any]) -> bool:
        """Make a folder's files the part of this number, unless it is there already. The folder is gone then."""

    def numbers(self) -> set[int]:
        """Those of the parts that are there."""

    def bring(self, number: int, manifest: dict[str, Any], stopped: threading.Event) -> Path:
        """A folder with the files of a part, each of which was compared with what the manifest says.

        OutputError for a part that is damaged, or when `stopped` is set meanwhile.
        """

    def remove(self, number: int) -> None:
        """The files of a part that is needed no more; its manifest stays, to tell it from one that is missing."""

    def clear(self) -> None:
        """Remove everything that was for the parts."""


def place_of(out: str | os.PathLike[str]) -> Place:
    """Where the parts of a dataset lie."""
    return StorePlace(os.fspath(out)) if is_url(out) else FolderPlace(Path(out))


def published(place: Place, number: int) -> dict[str, Any] | None:
    """The manifest of a part; None: it is not there yet, OutputError: it is damaged."""
    name = f"{part_name(number)}/{NAME}"
    data = place.read(name)
    if data is None:
        return None
    try:
        manifest = parse_manifest(data, f"{place.out}/{FOLDER}/{name}")
        if manifest["part"]["number"] != number:
            raise KeyError
        _files(manifest)
    except (DamageError, KeyError, TypeError):
        raise _damaged(number, "its manifest cannot be read", place.out) from None
    return manifest


def part_name(number: int) -> str:
    return f"{number:05}"


class FolderPlace:
    """Parts in a folder that all machines see."""

    def __init__(self, out: Path) -> None:
        self.out = str(out)
        self._folder = out / FOLDER

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, path: Path) -> None:
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / name).exists():
            write_whole(self._folder / name, _blocks(path))

    def section(self, name: str, start: int, end: int) -> bytes:
        with open(self._folder / name, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def work(self, number: int, attempt: int) -> Path:
        # A folder that several machines see need not have locks that they all respect, so each has its own.
        folder = self._folder / "work" / f"{part_name(number)}.{socket.gethostname() or 'host'}.{attempt}"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(self, number: int, folder: Path, manifest: dict[str, Any]) -> bool:
        try:
            os.rename(folder, self._folder / part_name(number))
        except OSError as why:
            # So the system says that the part is there already; or that all was merged, and nothing is there any more.
            late = self.read(f"{part_name(number)}/{NAME}") is not None or self.read(PLAN) is None
            if why.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.ENOENT) or not late:
                raise OutputError(f"cannot write: {why.strerror or why}", place=str(self._folder)) from why
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def numbers(self) -> set[int]:
        try:
            entries = [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return set()
        return {int(name) for name in entries if name.isdigit() and (self._folder / name / NAME).exists()}

    def bring(self, number: int, manifest: dict[str, Any], stopped: threading.Event) -> Path:
        folder = self._folder / part_name(number)
        for file in _files(manifest):
            try:
                _check(number, file, _blocks(folder / file["name"]), stopped, self.out)
            except FileNotFoundError:
                raise _damaged(number, f"`{file['name']}` is not there", self.out) from None
        return folder

    def remove(self, number: int) -> None:
        for path in (self._folder / part_name(number)).iterdir():
            if path.name != NAME:
                path.unlink()

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class StorePlace:
    """Parts in an object store. A part is made on the machine's own disk, and brought there again to be merged."""

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)
        self.out = self._store.url
        self._own = staging_folder() / f"{hashlib.sha256(self.out.encode()).hexdigest()[:16]}-parts"

    def read(self, name: str) -> bytes | None:
        found = self._store.read(f"{FOLDER}/{name}")
        return None if found is None else found[0]

    def create(self, name: str, path: Path) -> None:
        if self._store.version(f"{FOLDER}/{name}") is None:
            self._store.upload(f"{FOLDER}/{name}", partial(_blocks, path), path.stat().st_size)

    def section(self, name: str, start: int, end: int) -> bytes:
        return self._store.section(f"{FOLDER}/{name}", start, end)

    def work(self, number: int, attempt: int) -> Path:
        folder = self._own / f"{part_name(number)}.{attempt}"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(self, number: int, folder: Path, manifest: dict[str, Any]) -> bool:
        # Under a name of its own: one that comes late must not replace what others may be reading.
        own = secrets.token_hex(6)
        names = [f"{FOLDER}/{part_name(number)}/{own}/{file['name']}" for file in _files(manifest)]
        for name, file in zip(names, _files(manifest), strict=True):
            self._store.upload(name, partial(_blocks, folder / file["name"]), file["bytes"])
        data = b"".join(manifest_json({**manifest, "part": {**manifest["part"], "made": own}}))
        first = self._store.exchange(f"{FOLDER}/{part_name(number)}/{NAME}", data, None) is not None
        if not first:
            self._store.delete(names)
        shutil.rmtree(folder, ignore_errors=True)
        return first

    def numbers(self) -> set[int]:
        names = [name.split("/") for name, _ in self._store.below(FOLDER)]
        return {int(name[-2]) for name in names if name[-1] == NAME}

    def bring(self, number: int, manifest: dict[str, Any], stopped: threading.Event) -> Path:
        folder = self._own / f"{part_name(number)}.merge"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for file in _files(manifest):
                name = f"{FOLDER}/{part_name(number)}/{manifest['part']['made']}/{file['name']}"
                with open(folder / file["name"], "wb") as to:
                    _check(number, file, self._store.download(name), stopped, self.out, to)
        return folder

    def remove(self, number: int) -> None:
        shutil.rmtree(self._own / f"{part_name(number)}.merge", ignore_errors=True)
        names = [name for name, _ in self._store.below(f"{FOLDER}/{part_name(number)}")]
        self._store.delete([name for name in names if not name.endswith(f"/{NAME}")])

    def clear(self) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        # The plan goes first: without it, whoever comes late knows that all is done.
        names = sorted((name for name, _ in self._store.below(FOLDER)), key=lambda name: not name.endswith(PLAN))
        self._store.delete(names[:1])
        self._store.delete(names[1:])


def _files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    rejects = [manifest["rejects"]] if "rejects" in manifest else []
    return [*manifest["splits"]["train"]["files"], *rejects]


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _check(
    number: int,
    file: dict[str, Any],
    blocks: Iterator[bytes],
    stopped: threading.Event,
    out: str,
    to: IO[bytes] | None = None,
) -> None:
    """Compare all of a file with what the manifest says; `to`: copy it there meanwhile."""
    found, size = hashlib.sha256(), 0
    for block in blocks:
        if stopped.is_set():
            raise OutputError("the run has ended")
        found.update(block)
        size += len(block)
        if to is not None:
            to.write(block)
    if (size, found.hexdigest()) != (file["bytes"], file["sha256"]):
        raise _damaged(number, f"`{file['name']}` is not what was written", out)


def _damaged(number: int, what: str, out: str) -> OutputError:
    return OutputError(
        f"part {number:,} is damaged: {what}",
        place=f"{out}/{FOLDER}/{part_name(number)}",
        hint=f"delete it there, and make it again: `shardmill prepare --plan {out} --part {number}`",
    )
