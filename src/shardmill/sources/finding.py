"""Which sources a call names: files, folders, globs, URLs and `-`, in a fixed order."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from shardmill.errors import SourceError, UsageError
from shardmill.storage.addresses import scheme_of
from shardmill.storage.names import COMPRESSION_ENDINGS, FORMAT_ENDINGS, endings
from shardmill.storage.source import Source

STDIN = "-"


def find_sources(
    specs: Sequence[str],
    input_format: str = "auto",
    pinned: Mapping[str, str] | None = None,
    cache: str | None = None,
) -> list[Source]:
    """Return the sources in the order of `specs`, each folder and glob sorted.

    `pinned`: commits that a run in progress has recorded for what was asked for at the hub. `cache`: where lists of the
    hub are kept.
    Raises UsageError when a spec names nothing that can be read, SourceError when a server refuses it.
    """
    if not specs:
        raise UsageError("no source was given", hint="name a file, a folder, a glob, or `-` for standard input")
    if list(specs).count(STDIN) > 1:
        raise UsageError("standard input can be read only once", hint="give `-` once")
    found: list[Source] = []
    for spec in specs:
        if scheme_of(spec):
            from shardmill.sources.remote import find_remote

            found.extend(find_remote(spec, input_format, pinned or {}, cache))
        else:
            found.extend(_expand(spec, input_format))
    return found


def _expand(spec: str, input_format: str) -> list[Source]:
    if spec == STDIN:
        return [Source(STDIN, STDIN, None, "", input_format)]
    if not spec:
        raise UsageError("a source is an empty text", hint="name a file, a folder, a glob, or `-` for standard input")
    if "\0" in spec:
        raise UsageError("a source's name holds a NUL character", place=repr(spec))
    if os.path.isdir(spec):
        paths = _folder(spec, input_format)
    elif os.path.lexists(spec) or not glob.has_magic(spec):
        paths = [spec]
    else:
        paths = _glob(spec)
    return [_file(path, input_format) for path in paths]


def _folder(folder: str, input_format: str) -> list[str]:
    """What is read of a folder: with `auto`, the files whose names allow it."""
    paths = list(_walk(folder))
    taken = paths
    if input_format == "auto":
        # The first test is the second one's answer for most names, in a tenth of the time.
        taken = [path for path in paths if path[path.rfind(".") + 1 :] in FORMAT_ENDINGS or is_readable_name(path)]
    if not taken:
        raise nothing_in(folder, len(paths))
    return taken


def nothing_in(folder: str, skipped: int) -> UsageError:
    return UsageError(
        "the folder holds nothing that can be read" + (f" ({skipped:,} files of other kinds)" if skipped else ""),
        place=folder,
        hint="text, JSON Lines, parquet, Arrow and CSV files are taken, also as .gz .zst .bz2 .xz; "
        "files and folders whose names begin with `.` or `_` are skipped",
    )


def _walk(folder: str) -> Iterator[str]:
    """Files below the folder in the order of their names; a symbolic link to a folder is not entered."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted([(entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries])
    except PermissionError as error:
        raise UsageError("no permission to list the folder", place=folder) from error
    except OSError as error:
        raise SourceError(f"the folder cannot be listed: {error.strerror}", place=folder) from error
    prefix = os.path.join(folder, "")
    for name, is_folder, is_link in listed:
        if name[0] in "._":
            continue
        if not is_folder:
            yield prefix + name
        elif not is_link:
            yield from _walk(prefix + name)


def _glob(pattern: str) -> list[str]:
    # glob itself skips hidden names unless the pattern spells the dot, as a shell does.
    paths = sorted(path for path in glob.iglob(pattern, recursive=True) if not os.path.isdir(path))
    if not paths:
        raise UsageError("nothing matches the pattern", place=pattern)
    return list(dict.fromkeys(paths))


def _file(path: str, input_format: str) -> Source:
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        hint = "is it a broken link?" if os.path.islink(path) else None
        raise UsageError("the source is not there", place=path, hint=hint) from error
    except PermissionError as error:
        raise UsageError("no permission to read the source", place=path) from error
    except OSError as error:
        raise UsageError(f"the source cannot be read: {error.strerror}", place=path) from error
    if not os.access(path, os.R_OK):
        raise UsageError("no permission to read the source", place=path)
    if not stat.S_ISREG(status.st_mode):
        return Source(path, path, None, "", input_format)
    return Source(path, path, status.st_size, str(status.st_mtime_ns), input_format)


def is_readable_name(path: str) -> bool:
    """Whether a file found in a folder is taken: its name says a format, or says nothing at all."""
    plain, _ = endings(path)
    return plain in FORMAT_ENDINGS or plain == "" or plain in COMPRESSION_ENDINGS
