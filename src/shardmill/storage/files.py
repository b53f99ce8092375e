"""Files that get their names only when they are whole and on disk."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.errors import OutputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTIAL = ".partial"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Written:
    """A file that is whole: what the manifest says of it."""

    name: str
    """From the dataset's folder on."""
    tokens: int
    bytes: int
    sha256: str
    role: str = ""
    """`index` or `metadata` if it does not hold tokens."""
    documents: int = 0
    """For formats whose index counts them."""

    def entry(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in ("role", "documents") or value}


class PartialFile:
    """A file that grows as `NAME.partial`.

    One thread appends; another may `sync` what has been appended: it reads the file after the writer, so that
    hashing costs the writer nothing and a resumed run hashes what was there before in the same way.
    """

    def __init__(self, path: Path, keep: int = 0, *, name: str | None = None, hashed: bool = True) -> None:
        """Create the file, or keep its first `keep` bytes. Raise OutputError when there are fewer.

        `name`: what the manifest calls it, if not the last part of the path. `hashed`: False for a file with checksums
        of its own.
        """
        self.path, self.name, self._is_hashed = path, name or path.name, hashed
        self._partial = path.with_name(path.name + PARTIAL)
        self._hash = hashlib.sha256()
        self._hashed = 0
        with writing_to(self._partial):
            if keep:
                undo_rename(path)
                size = self._partial.stat().st_size if self._partial.exists() else 0
                if size < keep:
                    raise OutputError(
                        f"`{self._partial.name}` has {size:,} bytes where the journal says {keep:,}",
                        place=str(self._partial),
                        hint="the folder was changed by something else; start anew with `--overwrite`",
                    )
            self._open("r+b" if keep else "w+b")
            self._file.truncate(keep)
            self._file.seek(keep)
        self.length = keep

    def _open(self, mode: str) -> None:
        self._file = open(self._partial, mode, buffering=0)  # noqa: SIM115 - closed in close()
        self._reader = open(self._partial, "rb", buffering=0)  # noqa: SIM115 - closed in close()

    def append(self, data: NDArray[Any] | bytes) -> None:
        self._append(memoryview(data).cast("B"))  # type: ignore[arg-type,unused-ignore]

    def _append(self, block: memoryview) -> None:
        with writing_to(self._partial):
            done = 0
            while done < len(block):
                done += self._file.write(block[done:]) or 0
        self.length += len(block)

    def read(self, start: int, size: int) -> bytes:
        """Return bytes that were appended before."""
        with writing_to(self._partial), open(self._partial, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(size)

    def sync(self, length: int, *, hashed: bool = True) -> None:
        """Hash the first `length` bytes, as far as they are not hashed yet, and sync them to the disk.

        `hashed`: False to leave the hash for later, for a file whose header will change.
        """
        with writing_to(self._partial):
            if hashed:
                self._hash_up_to(length)
            _sync_data(self._file.fileno())

    def finish(self, tokens: int, header: bytes = b"", role: str = "") -> Written:
        """Write `header` at the start, where there is room for it, sync the file, and give it its name.

        The file may have been closed since the last byte was appended.
        """
        with writing_to(self._partial):
            if self._file.closed:
                self.close()  # an interrupt may have come between its two handles
                self._open("r+b")
            self._reader.seek(0)
            if header and self._reader.read(len(header)) != header:
                self._file.seek(0)
                self._file.write(header)
                self._hash, self._hashed = hashlib.sha256(), 0
            self._hash_up_to(self.length)
            os.fsync(self._file.fileno())
            self.close()
            os.replace(self._partial, self.path)
            sync_folder(self.path.parent)
        return Written(self.name, tokens, self.length, self._hash.hexdigest() if self._is_hashed else "", role)

    def close(self) -> None:
        self._file.close()
        self._reader.close()

    def remove(self) -> None:
        """Delete what was written; close it before."""
        self._partial.unlink(missing_ok=True)

    def _hash_up_to(self, length: int) -> None:
        self._reader.seek(self._hashed)
        block = bytearray(_BLOCK)
        while self._is_hashed and self._hashed < length:
            got = self._reader.readinto(memoryview(block)[: min(_BLOCK, length - self._hashed)])
            if not got:
                raise OutputError(
                    f"`{self._partial.name}` became shorter while it was written", place=str(self._partial)
                )
            self._hash.update(memoryview(block)[:got])
            self._hashed += got


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an error of the file system into an OutputError that names the path."""
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "free some space and run the same command again",
            errno.EDQUOT: "your quota is used up: free some space and run the same command again",
            errno.EACCES: "choose a folder that you may write to",
            errno.EROFS: "choose a folder that you may write to",
            errno.ENOENT: "does the folder exist? `TMPDIR` names the one for temporary files",
            errno.EFBIG: "files may not become so large here: lift the limit (`ulimit -f`), or choose `-f shards`",
        }
        reason = error.strerror or str(error)
        message = f"cannot write: {reason[:1].lower()}{reason[1:]}"
        raise OutputError(message, place=str(path), hint=hints.get(error.errno or 0)) from error


def writing_temporary_files() -> AbstractContextManager[None]:
    """Return `writing_to` for the folder of temporary files."""
    return writing_to(Path(os.environ.get("TMPDIR") or "/tmp"))


def file_blocks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file between two offsets; raise OutputError if it ends before `end`."""
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while end is None or start < end:
            block = file.read(_BLOCK if end is None else min(_BLOCK, end - start))
            if not block:
                if end is None:
                    return
                raise OutputError(f"`{path.name}` became shorter while it was read", place=str(path))
            start += len(block)
            yield block


def undo_rename(path: Path) -> None:
    """Undo the renaming of a finished file that the journal does not know of."""
    partial = path.with_name(path.name + PARTIAL)
    if path.exists() and not partial.exists():
        os.replace(path, partial)


def write_whole(path: Path, data: bytes | Iterable[bytes], *, shared: bool = False) -> None:
    """Write a temporary file, sync it and rename it, so that the file is there whole or not at all.

    `shared`: other processes may be writing the same file.
    """
    partial = _own_partial(path) if shared else path.with_name(path.name + PARTIAL)
    with writing_to(path):
        try:
            _write_synced(partial, data)
            os.replace(partial, path)
        except BaseException:
            if shared:  # nobody else would remove it
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def create_whole(path: Path, data: bytes | Iterable[bytes]) -> bool:
    """Write a file whole and synced, unless one of this name exists; return whether it was written.

    Of several processes on several machines that do this at once, one succeeds.
    """
    partial = _own_partial(path)
    with writing_to(path):
        try:
            _write_synced(partial, data)
            if not _link(partial, path):
                return False
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True


def _own_partial(path: Path) -> Path:
    """A name that no other process has: two that share a temporary file would write into each other's."""
    return path.with_name(f"{path.name}.{secrets.token_hex(6)}{PARTIAL}")


def _write_synced(path: Path, data: bytes | Iterable[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def _link(partial: Path, path: Path) -> bool:
    """Give a finished file its name, unless that is taken; return whether it was free."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without hard links. Two processes in the same instant: the later one replaces a whole file.
        if path.exists():
            return False
        os.replace(partial, path)
    return True


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_sync_data = getattr(os, "fdatasync", os.fsync)
