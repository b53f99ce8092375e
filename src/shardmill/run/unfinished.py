"""Unfinished files in an object store, as parts: objects cannot grow, so what a file has grown by is an object.

    URL/.shardmill/RUN/NAME.partial/AT   what a run has appended from byte AT on

A part is never replaced, and each run has names of its own: whatever a run that was taken for dead still sends can not
get among what another one goes on from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError
from shardmill.run.journal import FOLDER
from shardmill.storage import PARTIAL, ObjectStore, writing_to

_BLOCK = 1 << 20

Chain = list[list[Any]]
"""The runs that a file's parts are of: [run, byte up to which they are], in order."""


class Parts:
    """The unfinished files of a run: in a folder of this machine, and in the store."""

    def __init__(self, store: ObjectStore, folder: Path, run: str) -> None:
        self._store, self._folder, self._run = store, folder, run
        self.table: dict[str, Chain] = {}
        """What the journal must say of them, by name. It does not grow with the number of parts."""

    def send(self) -> dict[str, Chain]:
        """Bring to the store what was appended to files in the folder; gives those that are no longer there."""
        here = {path.relative_to(self._folder).as_posix(): path for path in self._folder.rglob(f"*{PARTIAL}")}
        gone = {name: self.table.pop(name) for name in list(self.table) if name not in here}
        for name, path in here.items():
            chain = self.table.get(name, [])
            start, end = chain[-1][1] if chain else 0, path.stat().st_size
            if end > start:
                part = f"{_folder(self._run, name)}/{start:016x}"
                self._store.upload(part, partial(blocks, path, start, end), end - start)
                if not chain or chain[-1][0] != self._run:
                    chain.append([self._run, end])
                chain[-1][1] = end
                self.table[name] = chain
        return gone

    def fetch(self) -> None:
        """Put the files together in the folder; OutputError when a part is missing."""
        for name, chain in self.table.items():
            path = self._folder / name
            with writing_to(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    for run, end in chain:
                        self._fetch(file, run, name, end)

    def _fetch(self, file: Any, run: str, name: str, end: int) -> None:
        for part, _ in sorted(self._store.below(_folder(run, name))):
            if _start(part) != file.tell() or file.tell() >= end:
                break
            file.writelines(self._store.download(part))
        if file.tell() < end:
            raise OutputError(
                f"parts of `{name}` are not there as the journal says",
                place=f"{self._store.url}/{FOLDER}",
                hint="the store was changed by something else; start anew with `--overwrite`",
            )
        # What that run had sent beyond this was made again by a later one.
        file.truncate(end)
        file.seek(end)

    def cut_back(self) -> None:
        """The files in the folder were cut back to what is recorded: parts beyond that count no more."""
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
        """Delete the parts of files that the journal speaks of no more."""
        for name, chain in gone.items():
            for run, _ in chain:
                self._store.delete(part for part, _ in self._store.below(_folder(run, name)))

    def sweep(self, keep: tuple[str, ...]) -> None:
        """Delete all working files of any run but the parts in the table and those named in `keep`."""
        needed = {(run, name): end for name, chain in self.table.items() for run, end in chain}
        stray = []
        for path, _ in self._store.below(FOLDER):
            run, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
            name = rest.rpartition("/")[0]
            if path not in keep and not (name and _start(path) < needed.get((run, name), 0)):
                stray.append(path)
        self._store.delete(stray)


def blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """A stretch of a file."""
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
    """The byte at which a part begins; larger than any when it is none."""
    try:
        return int(part.rpartition("/")[2], 16)
    except ValueError:
        return sys.maxsize
