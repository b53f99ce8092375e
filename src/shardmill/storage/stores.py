"""One interface for a folder and an object store: files that are written whole, read by ranges, listed and deleted."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shardmill.storage.files import create_whole, file_blocks, sync_folder, write_whole, writing_to


class Store(ABC):
    """Files below a folder or a URL, by their names from there on. Any thread may use it.

    A file is there with all its bytes or not at all. What is written, moved or deleted is on disk when a call returns.
    """

    url: str
    """The folder or URL, as messages show it."""
    folder: Path | None = None
    """The folder; None: an object store, whose files cannot be opened as files."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is not there."""

    @abstractmethod
    def section(self, name: str, start: int, end: int) -> bytes:
        """Return some bytes of a file, fewer at its end; raise FileNotFoundError if it is not there."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a file in bytes; raise FileNotFoundError if it is not there."""

    @abstractmethod
    def download(self, name: str) -> Iterator[bytes]:
        """Yield a file in blocks of about a megabyte; raise FileNotFoundError if it is not there."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, in place of any other."""
        self.upload(name, lambda: [data], len(data))

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless one of this name exists; return whether it was written.

        Of several machines that do this at once, one succeeds, if `data` differs from what the others write.
        """

    @abstractmethod
    def upload(self, name: str, blocks: Callable[[], Iterable[bytes]], size: int) -> None:
        """Write a file of any size, in place of any other. `blocks` may be called several times."""

    @abstractmethod
    def take(self, folder: Path, names: Mapping[str, str], sent: Callable[[int], None] | None = None) -> None:
        """Move or copy synced files of a folder of this machine here, each to its new name.

        Afterwards, or if this is killed, the folder is as it was, or is not there. `sent`: called with the size of each
        block that is copied.
        """

    @abstractmethod
    def list_folders(self, folders: Iterable[str]) -> dict[str, int]:
        """Return the files directly in these folders (the first is ``""``), with their sizes."""

    @abstractmethod
    def list_tree(self, folder: str) -> list[tuple[str, int]]:
        """Return the files anywhere below a folder, with their sizes."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files; one that is not there is no error."""

    @abstractmethod
    def delete_tree(self, folder: str) -> None:
        """Delete all files below a folder. Nothing is synced: a power failure may bring some of them back."""

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a file; raise FileNotFoundError if it is not there."""
        held = b""
        for block in self.download(name):
            *lines, held = (held + block).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if held:
            yield held

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True


class FolderStore(Store):
    """The files below a folder."""

    folder: Path

    def __init__(self, folder: Path) -> None:
        self.url, self.folder = str(folder), folder

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def section(self, name: str, start: int, end: int) -> bytes:
        with open(self.folder / name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def download(self, name: str) -> Iterator[bytes]:
        return file_blocks(self.folder / name)

    def create(self, name: str, data: bytes) -> bool:
        return create_whole(self._new(name), data)

    def upload(self, name: str, blocks: Callable[[], Iterable[bytes]], size: int) -> None:
        write_whole(self._new(name), blocks(), shared=True)

    def take(self, folder: Path, names: Mapping[str, str], sent: Callable[[int], None] | None = None) -> None:
        taken = folder.with_name(f"{folder.name}.taken")
        shutil.rmtree(taken, ignore_errors=True)
        new = {file: self._new(name) for file, name in names.items()}
        with writing_to(self.folder):
            os.rename(folder, taken)  # so that nobody takes half of its files for all of them
            sync_folder(folder.parent)
            for file, path in new.items():
                os.replace(taken / file, path)
            for parent in {path.parent for path in new.values()}:
                sync_folder(parent)
        shutil.rmtree(taken, ignore_errors=True)

    def _new(self, name: str) -> Path:
        """Return the path of a file that will be written; its folder is made, and on disk."""
        path = self.folder / name
        missing = [folder for folder in path.parents if not folder.exists()]
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_folder(folder.parent)
        return path

    def list_folders(self, folders: Iterable[str]) -> dict[str, int]:
        return {name: size for folder in folders for name, size in self._list(folder)}

    def _list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the files directly in a folder. Other processes may be deleting some of them."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.folder / folder):
                with suppress(FileNotFoundError):
                    if not entry.is_dir():
                        yield f"{folder}/{entry.name}" if folder else entry.name, entry.stat().st_size

    def list_tree(self, folder: str) -> list[tuple[str, int]]:
        folders = (Path(path).relative_to(self.folder).as_posix() for path, _, _ in os.walk(self.folder / folder))
        return [found for name in folders for found in self._list(name)]

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for path in (self.folder / name for name in names):
            with writing_to(path):
                if os.path.lexists(path):
                    path.unlink(missing_ok=True)
                    folders.add(path.parent)
        for folder in folders:
            with writing_to(folder):
                sync_folder(folder)

    def delete_tree(self, folder: str) -> None:
        shutil.rmtree(self.folder / folder, ignore_errors=True)
