"""Finds the sources that a call names: files, folders, globs, URLs and `-`, in a fixed order."""

from __future__ import annotations

import glob
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from shardmill.arguments import NO_PATH
from shardmill.errors import SourceError, UsageError
from shardmill.storage import (
    COMPRESSION_ENDINGS,
    FORMAT_ENDINGS,
    PARTIAL,
    STDIN,
    NamedSource,
    Source,
    Sources,
    endings,
    scheme_of,
    sorted_rows,
)

_FOLDER, _STREAM = -1, -2  # in place of a size
_HINT = "name a file, a folder, a glob, or `-` for standard input"
Owned = Callable[[str], Iterable[str]]
"""Returns the files of the dataset in a folder or at a URL, relative to it. They are not read as sources."""

# A name, its size, and the nanoseconds of its last change.
Entry = tuple[str, int, int]


def find_sources(
    specs: Iterable[str | NamedSource],
    input_format: str = "auto",
    pinned: Mapping[str, str] | None = None,
    cache: str | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    owned: Owned = lambda folder: (),
) -> Sources:
    """Return the sources in the order of `specs`, each folder and glob sorted.

    `pinned`: commits that an unfinished run has recorded for revisions at the hub. `cache`: where listings of the hub
    are kept. `out`: the folder or URL of the output, which is skipped if it is below a source folder. Files that are
    `owned` by another dataset are skipped too.
    Raise UsageError when a spec names nothing that can be read, SourceError when a server refuses it.
    """
    found = Sources()
    local = _LocalFiles(input_format, out, owned)
    named = streams = 0
    for spec in specs:
        named += 1
        if isinstance(spec, NamedSource):
            found.append(spec.as_source(len(found)))
            found.from_python[found[-1].path] = spec
        elif spec == STDIN:
            streams += 1
            if sys.stdin is None:  # by now the descriptor may be another file
                raise UsageError("standard input is closed", hint="name a file, or feed something into it")
            found.append(Source(STDIN, STDIN, None, "", input_format))
        elif scheme_of(spec):
            from shardmill.sources.remote import find_remote

            found.extend(find_remote(spec, input_format, pinned or {}, cache, str(out or ""), owned))
        else:
            found.extend(local.find(spec))
    if not named:
        raise UsageError("no source was given", hint=_HINT)
    if streams > 1:
        raise UsageError("standard input can be read only once", hint="give `-` once")
    local.warn()
    return found


class _LocalFiles:
    """Finds local files, and counts those that it skips."""

    def __init__(self, input_format: str, out: str | os.PathLike[str] | None, owned: Owned) -> None:
        self._input_format, self._owned = input_format, owned
        self._out = os.path.realpath(out) if out is not None and os.path.isdir(out) else None
        self._owned_by = lru_cache(64)(self._files_of)  # needed for a folder and then for the folders in it
        self._user = os.geteuid()
        self._skipped = 0
        self._special = 0
        self._first_special = ""

    def find(self, spec: str) -> Iterator[Source]:
        """Yield the files that a path, a folder or a pattern names."""
        if not spec:
            raise UsageError("a source is an empty text", hint=_HINT)
        if "\0" in spec:
            raise UsageError("a source's name holds a NUL character", place=repr(spec))
        entries: Iterable[Entry]
        if os.path.isdir(spec):
            entries = self._walk(spec)
        elif os.path.lexists(spec) or not glob.has_magic(spec):
            entries = [self._single_entry(spec)]
        else:
            entries = self._matching(spec)
        form = self._input_format
        for path, size, changed in entries:
            is_stream = size == _STREAM
            yield Source(path, path, None if is_stream else size, "" if is_stream else str(changed), form)

    def warn(self) -> None:
        """Log what was left out, once for all."""
        if self._special:
            logging.getLogger("shardmill").warning(
                "left out: %s, which %s (a pipe is read if it is named itself)",
                self._first_special + (f" and {self._special - 1:,} more" if self._special > 1 else ""),
                "are no files" if self._special > 1 else "is no file",
            )

    def _walk(self, root: str) -> Iterator[Entry]:
        """Files below the folder in the order of their names; a symbolic link to a folder is not entered."""
        self._skipped = found = 0
        out = os.path.join(root, os.path.relpath(self._out, os.path.realpath(root))) if self._out else None
        # Folders may be nested a thousand deep, so this is not recursive.
        open_folders = [(os.path.join(root, ""), sorted_rows(self._entries(root)))]
        while open_folders:
            prefix, entries = open_folders[-1]
            entry = next(entries, None)
            if entry is None:
                open_folders.pop()
            elif entry[1] != _FOLDER:
                found += 1
                yield prefix + entry[0], entry[1], entry[2]
            elif (folder := prefix + entry[0]) != out:
                open_folders.append((os.path.join(folder, ""), sorted_rows(self._entries(folder))))
        if not found:
            raise nothing_readable(root, self._skipped)

    def _entries(self, folder: str) -> Iterator[Entry]:
        """The folders and the readable files in a folder, in no order; with `auto`, by the endings of their names."""
        auto, owned = self._input_format == "auto", self._owned_in(folder)
        prefix = os.path.join(folder, "")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name[0] in "._":
                        continue
                    link = entry.is_symlink()
                    if not link and entry.is_dir():
                        yield name, _FOLDER, 0
                    # The first test gives the same answer for most names, in a tenth of the time.
                    elif auto and not (name[name.rfind(".") + 1 :] in FORMAT_ENDINGS or is_readable_name(name)):
                        self._skipped += 1
                    elif not (owned and _is_owned(prefix + name, owned)):
                        status = _status(prefix + name, entry)
                        # No access list changes what the owner may do, so `os.access` is not needed.
                        mine = status.st_uid == self._user and status.st_mode & stat.S_IRUSR and not link
                        if (mine and stat.S_ISREG(status.st_mode)) or self._is_source(prefix + name, status, link):
                            yield name, status.st_size, status.st_mtime_ns
        except PermissionError as error:
            raise UsageError("no permission to list the folder", place=folder) from error
        except OSError as error:
            raise SourceError(f"the folder cannot be listed: {error.strerror}", place=folder) from error

    def _is_source(self, path: str, status: os.stat_result, link: bool) -> bool:
        """Whether a file found in a folder or by a pattern is a source; raises UsageError when it may not be read."""
        if stat.S_ISDIR(status.st_mode) or (link and self._is_in_out(path)):
            return False
        if not stat.S_ISREG(status.st_mode):
            self._special += 1
            self._first_special = self._first_special or path
            return False
        _check_access(path)
        return True

    def _matching(self, pattern: str) -> Iterator[Entry]:
        # glob itself skips hidden names unless the pattern spells the dot, as a shell does.
        last = ""
        for path, size, changed in sorted_rows(self._matches(pattern)):
            if path != last:  # `**` may give one twice
                last = path
                yield path, size, changed
        if not last:
            raise UsageError("nothing matches the pattern", place=pattern[:300], hint=_hint_for_texts(pattern))

    def _matches(self, pattern: str) -> Iterator[Entry]:
        fixed = os.path.dirname(pattern[: next(i for i, c in enumerate(pattern) if c in "*?[")])
        # If the pattern itself begins in the output folder, only the dataset's files are skipped.
        inside = self._is_in_out(fixed or ".")
        folder, skipped, owned = None, False, frozenset[str]()
        for path in glob.iglob(pattern, recursive=True):
            parent = os.path.dirname(path)
            if parent != folder:
                folder = parent
                skipped = not inside and self._is_in_out(folder or ".")
                owned = self._owned_in(folder)
            if skipped or (owned and _is_owned(path, owned)):
                continue
            status = _status(path)
            if self._is_source(path, status, link=not inside and self._out is not None and os.path.islink(path)):
                yield path, status.st_size, status.st_mtime_ns

    def _single_entry(self, path: str) -> Entry:
        """A path that is named itself is read whatever it is: the size of a pipe or a device is unknown."""
        status = _status(path)
        _check_access(path)
        return (path, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (path, _STREAM, 0)

    def _is_in_out(self, path: str) -> bool:
        if self._out is None:
            return False
        return os.path.join(os.path.realpath(path), "").startswith(os.path.join(self._out, ""))

    def _owned_in(self, folder: str) -> frozenset[str]:
        """Paths that belong to a dataset in this folder or in the one above, since a split may have its own folder."""
        here = self._owned_by(folder)
        above = self._owned_by(os.path.dirname(folder.rstrip("/")))
        return here | above if here and above else here or above

    def _files_of(self, folder: str) -> frozenset[str]:
        if not os.path.isdir(os.path.join(folder, ".shardmill")):
            return frozenset()
        return frozenset(os.path.normpath(os.path.join(folder, name)) for name in self._owned(folder))


def _status(path: str, entry: os.DirEntry[str] | None = None) -> os.stat_result:
    """The status of a file; `entry`: if it was found in a folder."""
    try:
        return os.stat(path) if entry is None else entry.stat()
    except FileNotFoundError as error:
        link = os.path.islink(path)
        if entry is not None and not link:
            raise SourceError(
                "the folder has changed while it was listed",
                place=path,
                hint="wait until nothing writes to it any more, then start again",
            ) from error
        hint = "is it a broken link?" if link else _hint_for_texts(path)
        raise UsageError("the source is not there", place=path[:300], hint=hint) from error
    except PermissionError as error:
        raise _no_permission(path) from error
    except OSError as error:
        raise UsageError(f"the source cannot be read: {error.strerror}", place=path) from error


def _check_access(path: str) -> None:
    if not os.access(path, os.R_OK):
        raise _no_permission(path)


def _no_permission(path: str) -> UsageError:
    return UsageError("no permission to read the source", place=path)


def _is_owned(path: str, owned: frozenset[str]) -> bool:
    return path.endswith(PARTIAL) or os.path.normpath(path) in owned


def nothing_readable(folder: str, skipped: int) -> UsageError:
    return UsageError(
        "the folder holds nothing that can be read" + (f" ({skipped:,} files of other kinds)" if skipped else ""),
        place=folder,
        hint="text, JSON Lines, parquet, Arrow and CSV files are taken, also as .gz .zst .bz2 .xz; "
        "files and folders whose names begin with `.` or `_` are skipped",
    )


def is_readable_name(path: str) -> bool:
    """Whether a file found in a folder is read: its ending is that of a format, or it has none."""
    plain, _ = endings(path)
    return plain in FORMAT_ENDINGS or plain == "" or plain in COMPRESSION_ENDINGS


def _hint_for_texts(path: str) -> str | None:
    """For a caller in Python who gave a list of texts, which are read as paths."""
    if len(path) > 255 or "\n" in path:
        return NO_PATH
    return None
