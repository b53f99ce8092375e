"""Finds the sources that a call names: files, folders, globs, URLs and `-`, in a fixed order."""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

from shardmill.arguments import NO_PATH
from shardmill.detection import format_of
from shardmill.errors import SourceError, UsageError
from shardmill.python_sources import NamedSource
from shardmill.source_list import Skipped, Sources
from shardmill.sources.first_look import NO_GROUP, FirstLook, Twin, TwinCount, Twins
from shardmill.sources.layouts import MARKERS, SHARD, UNCOUNTED, Copy, Layout, check_splits, copy_in, layout_of
from shardmill.sources.names import Choice, is_housekeeping, kind_of
from shardmill.storage import PARTIAL, STDIN, WEB, Source, endings, scheme_of, sorted_rows
from shardmill.units import plural

# In place of a size: a folder, a stream, or why something is skipped.
_FOLDER, _STREAM, _OTHER, _HIDDEN_FOLDER, _LINK, _SPECIAL, _OWNED, _EXCLUDED, _EXCLUDED_FOLDER, _MODEL = range(
    -1, -11, -1
)
_MATCHED_FOLDER = -11
_KINDS = {
    _HIDDEN_FOLDER: "hidden folder",
    _LINK: "linked folder",
    _SPECIAL: "special file",
    _OWNED: "dataset file",
    _EXCLUDED: "excluded file",
    _EXCLUDED_FOLDER: "excluded folder",
    _MODEL: "model folder",
    _MATCHED_FOLDER: "matching folder",
}
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
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    text_field: str = "text",
) -> Sources:
    """Return the sources in the order of `specs`, each folder and glob sorted; what is not read is in `skipped`.

    `pinned`: commits that an unfinished run has recorded for revisions at the hub. `cache`: where listings of the hub
    are kept. `out`: the folder or URL of the output, which is skipped if it is below a source folder. Files that are
    `owned` by another dataset are skipped too. `include`, `exclude`: globs for files of folders and patterns.
    Raise UsageError when a spec names nothing that can be read, SourceError when a server refuses it.
    """
    found = Sources()
    choice = Choice(include, exclude)
    local = _LocalFiles(input_format, out, owned, choice, text_field, found.skipped)
    specs = list(specs)
    streams = 0
    for web, spec in _by_kind(specs):
        if web:
            from shardmill.sources.remote import find_on_web

            found.extend(find_on_web(web, input_format))
        elif isinstance(spec, NamedSource):
            found.append(spec.as_source(len(found)))
            found.from_python[found[-1].path] = spec
        elif spec == STDIN:
            streams += 1
            if sys.stdin is None:  # by now the descriptor may be another file
                raise UsageError("standard input is closed", hint="name a file, or feed something into it")
            found.append(Source(STDIN, STDIN, None, "", input_format))
        elif scheme_of(spec):
            from shardmill.sources.remote import find_remote

            found.extend(
                find_remote(spec, input_format, pinned or {}, cache, str(out or ""), owned, choice=choice, found=found)
            )
        else:
            before = len(found)
            found.extend(local.find(spec))
            found = local.without_misfits(found, before)
    if not specs:
        raise UsageError("no source was given", hint=_HINT)
    if streams > 1:
        raise UsageError("standard input can be read only once", hint="give `-` once")
    local.warn()
    return found


def _by_kind(specs: Iterable[str | NamedSource]) -> Iterator[tuple[list[str], str | NamedSource]]:
    """Yield web addresses that follow each other together, and all else one by one."""
    for is_web, some in groupby(specs, lambda spec: isinstance(spec, str) and scheme_of(spec) in WEB):
        if is_web:
            yield [str(spec) for spec in some], ""
        else:
            yield from (([], spec) for spec in some)


@dataclass
class _Frame:
    """A folder that is being walked through."""

    prefix: str
    entries: Iterator[Entry]
    layout: Layout | None
    copy: Copy | None
    is_plain: bool
    """It has no layout in which files are chosen."""
    twins: Twins = field(default_factory=list)
    group: tuple[str, str] = NO_GROUP
    """How the names of the last group of files begin, and the first of them."""


class _LocalFiles:
    """Finds local files, and counts those that it skips."""

    def __init__(
        self,
        input_format: str,
        out: str | os.PathLike[str] | None,
        owned: Owned,
        choice: Choice,
        text_field: str,
        skipped: Skipped,
    ) -> None:
        self._input_format, self._owned, self._choice = input_format, owned, choice
        self._out = os.path.realpath(out) if out is not None and os.path.isdir(out) else None
        self._owned_by = lru_cache(64)(self._files_of)  # needed for a folder and then for the folders in it
        self._user = os.geteuid()
        self._skipped = skipped
        self._look = FirstLook(input_format, text_field)
        self._twins = TwinCount()
        self._named: dict[str, bool] = {}  # path → whether it is a folder
        self._misfits = array("q")  # the numbers of sources that seem to hold no records
        self._special = 0
        self._first_special = ""

    def find(self, spec: str) -> Iterator[Source]:
        """Yield the files that a path, a folder or a pattern names."""
        if not spec:
            raise UsageError("a source is an empty text", hint=_HINT)
        if "\0" in spec:
            raise UsageError("a source's name holds a NUL character", place=repr(spec))
        entries: Iterable[Entry]
        if is_folder := os.path.isdir(spec):
            entries = self._walk(spec)
        elif os.path.lexists(spec) or not glob.has_magic(spec):
            entries = [self._single_entry(spec)]
        else:
            entries = self._matching(spec)
        self._note_named(spec, is_folder)
        form = self._input_format
        for path, size, changed in entries:
            is_stream = size == _STREAM
            yield Source(path, path, None if is_stream else size, "" if is_stream else str(changed), form)

    def warn(self) -> None:
        """Log what was left out, once for all, and keep warnings about what is read twice."""
        if self._special:
            logging.getLogger("shardmill").warning(
                "left out: %s, which %s (a pipe is read if it is named itself)",
                self._first_special + (f" and {self._special - 1:,} more" if self._special > 1 else ""),
                "are no files" if self._special > 1 else "is no file",
            )
        self._twins.warn(self._skipped)

    def without_misfits(self, found: Sources, before: int) -> Sources:
        """Leave out the JSON and CSV files of a folder that hold no records, if most of its files are others.

        If they are not, the run stops at them, since they may be what the user means. `before`: sources of other specs.
        """
        misfits, self._misfits = self._misfits, array("q")
        if not misfits or 2 * len(misfits) >= len(found) - before:
            return found
        numbers = [before + number for number in misfits]
        for number in numbers:
            name = found[number].name
            self._skipped.add("JSON file" if endings(name)[0] == "json" else "CSV file", name)
        self._skipped.note(
            f"JSON and CSV files without `{self._look.text_field}` are skipped, since most files of the folder are "
            "others (`--input-format text` reads them as text)"
        )
        return found.without(numbers)

    def _note_named(self, spec: str, is_folder: bool) -> None:
        """Warn when a spec is given twice, or lies in a folder that is given too."""
        path = os.path.abspath(spec)
        above = path
        while above not in self._named and above != (parent := os.path.dirname(above)):
            above = parent
        if path in self._named or self._named.get(above):
            inside = "" if path == above else f", since it lies in `{above}`, which is named too"
            self._skipped.warn(f"`{spec}` is read twice{inside or ', since it is named twice'}")
        self._named[path] = is_folder

    def _walk(self, root: str) -> Iterator[Entry]:
        """Files below the folder in the order of their names; a symbolic link to a folder is not entered."""
        before, found, length = self._skipped.files, 0, len(os.path.join(root, ""))
        out = os.path.join(root, os.path.relpath(self._out, os.path.realpath(root))) if self._out else None
        sure = self._look.sure
        # Folders may be nested a thousand deep, so this is not recursive.
        frames = [self._frame(root, "", None)]
        while frames:
            frame = frames[-1]
            prefix, is_plain, (group, first) = frame.prefix, frame.is_plain, frame.group
            for name, size, changed in frame.entries:  # continues where it was left
                path = prefix + name
                # Most names are enough, and then nothing more is asked.
                if size < 0 or not is_plain or name[name.rfind(".") + 1 :] not in sure:
                    if size == _FOLDER:
                        if inner := self._entered(frame, path, path[length:] + "/", out):
                            frames.append(inner)
                            frame.group = group, first
                            break
                        continue
                    if kind := self._kind_if_skipped(frame, path, size):
                        self._count(kind, path)
                        continue
                    if self._look.is_misfit:
                        self._misfits.append(found)
                        self._look.is_misfit = False
                if name.startswith(group):
                    self._twins.check(frame.twins, prefix, first, name)
                else:  # most names have no twin, so no more is found out yet
                    group, first = name[: name.find(".") + 1] or name + ".", name
                found += 1
                yield path, size, changed
            else:
                frames.pop()
        if not found:
            raise nothing_readable(root, self._skipped, self._skipped.files - before, self._choice)

    def _entered(self, frame: _Frame, path: str, below: str, out: str | None) -> _Frame | None:
        """A folder in a folder; None: it is not entered. `out`: the output."""
        overridden = frame.layout is None or self._is_overridden(frame.layout)
        kind = "" if frame.layout is None or overridden else frame.layout.folder(path[len(frame.prefix) :])
        if kind or path == out:
            self._count(kind if path != out else UNCOUNTED, path)
            return None
        return self._frame(path, below, frame.copy)

    def _frame(self, folder: str, below: str, copy: Copy | None) -> _Frame:
        """List a folder. `below`: its path below the source, with a slash at its end. `copy`: the one that it is in."""
        markers = set[str]()
        entries = sorted_rows(self._entries(folder, below, markers))
        layout = layout_of(folder, markers, self._skipped)
        if layout is None and copy is None and self._input_format == "auto" and not self._choice.include:
            copy = copy_in(folder, markers, self._skipped)
        if layout is None and copy is None and markers & {"train", SHARD}:
            check_splits(folder, below, self._choice, self._skipped)
        return _Frame(os.path.join(folder, ""), entries, layout, copy, layout is None and copy is None)

    def _is_overridden(self, layout: Layout) -> bool:
        return layout.by_split and bool(self._choice.include)

    def _kind_if_skipped(self, frame: _Frame, path: str, size: int) -> str:
        """Why a file or a link in a folder is not read, as a kind; empty: it is read."""
        if size < 0:
            return _KINDS.get(size) or kind_of(path[len(frame.prefix) :])
        kind = ""
        if frame.layout is not None and not self._is_overridden(frame.layout):
            kind = frame.layout.file(path[len(frame.prefix) :])
        if not kind and frame.copy is not None:
            kind = frame.copy.files.kind_if_skipped(path[len(frame.copy.root) :])
        return kind or self._look.kind_if_skipped(path, size)

    def _count(self, kind: str, path: str) -> None:
        if kind != UNCOUNTED:
            self._skipped.add(kind, path)

    def _entries(self, folder: str, below: str, markers: set[str]) -> Iterator[Entry]:
        """The folders and files in a folder, in no order; what is not read has a mark in place of its size.

        Names by which a layout is recognised are added to `markers`.
        """
        sure, owned, choice, user = self._look.sure, self._owned_in(folder), self._choice, self._user
        choice_given = choice.given
        prefix = os.path.join(folder, "")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name in MARKERS:
                        markers.add(name)
                    if name[0] in "._" and is_housekeeping(name):
                        continue
                    link = entry.is_symlink()
                    if not link and entry.is_dir():
                        yield name, self._folder_mark(name, below), 0
                    elif name[0] in "._":
                        yield name, _OTHER, 0
                    elif choice_given and not choice.wants(below + name):
                        yield name, _EXCLUDED, 0
                    # The first test gives the same answer for most names, in a tenth of the time.
                    elif name[name.rfind(".") + 1 :] not in sure and not (
                        choice.include or self._look.is_readable_name(name)
                    ):
                        yield name, _LINK if link and os.path.isdir(prefix + name) else _OTHER, 0
                    elif not (owned and _is_owned(prefix + name, owned)):
                        if "train" in name:
                            markers.add(SHARD if name.startswith(SHARD) else "train")
                        status = _status(prefix + name, entry)
                        # No access list changes what the owner may do, so `os.access` is not needed.
                        mine = status.st_uid == user and status.st_mode & stat.S_IRUSR and not link
                        if (mine and stat.S_ISREG(status.st_mode)) or self._is_source(prefix + name, status, link):
                            yield name, status.st_size, status.st_mtime_ns
                        elif stat.S_ISDIR(status.st_mode):
                            yield name, _LINK, 0
                        elif not stat.S_ISREG(status.st_mode):
                            yield name, _SPECIAL, 0
                    elif not self._is_in_out(folder):
                        yield name, _OWNED, 0
        except PermissionError as error:
            raise UsageError("no permission to list the folder", place=folder) from error
        except OSError as error:
            raise SourceError(f"the folder cannot be listed: {error.strerror}", place=folder) from error

    def _folder_mark(self, name: str, below: str) -> int:
        """Whether a folder in a folder is entered."""
        if name[0] in "._":
            return _HIDDEN_FOLDER
        if self._choice.given and self._choice.excludes(below + name):
            return _EXCLUDED_FOLDER
        return _MODEL if name.startswith(("models--", "spaces--")) else _FOLDER

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
        last, found, twins, last_folder, (group, first) = "", 0, list[Twin](), "", NO_GROUP
        for path, size, changed in sorted_rows(self._matches(pattern)):
            if path == last:  # `**` may give one twice
                continue
            last = path
            if size < 0:
                self._skipped.add(_KINDS[size], path)
                continue
            found += 1
            folder, name = os.path.split(path)
            if folder == last_folder and name.startswith(group):
                self._twins.check(twins, folder, first, name)
            else:
                last_folder, group, first = folder, name[: name.find(".") + 1] or name + ".", name
            yield path, size, changed
        if not found:
            hint = "`--include` and `--exclude` leave nothing" if last and self._choice.given else None
            raise UsageError("nothing matches the pattern", place=pattern[:300], hint=hint or _hint_for_texts(pattern))

    def _matches(self, pattern: str) -> Iterator[Entry]:
        fixed = os.path.dirname(pattern[: next(i for i, c in enumerate(pattern) if c in "*?[")])
        length = len(os.path.join(fixed, "")) if fixed else 0
        # If the pattern itself begins in the output folder, only the dataset's files are skipped.
        inside = self._is_in_out(fixed or ".")
        folder, skipped, owned = None, False, frozenset[str]()
        for path in glob.iglob(pattern, recursive=True):
            parent = os.path.dirname(path)
            if parent != folder:
                folder = parent
                skipped = not inside and self._is_in_out(folder or ".")
                owned = self._owned_in(folder)
            if skipped:
                continue
            if owned and _is_owned(path, owned):
                if not self._is_in_out(folder or "."):
                    yield path, _OWNED, 0
                continue
            if self._choice.given and not self._choice.wants(path[length:]):
                if not os.path.isdir(path):
                    yield path, _EXCLUDED, 0
                continue
            status = _status(path)
            if self._is_source(path, status, link=not inside and self._out is not None and os.path.islink(path)):
                yield path, status.st_size, status.st_mtime_ns
            elif stat.S_ISDIR(status.st_mode) and "**" not in pattern:
                yield path, _MATCHED_FOLDER, 0
            elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                yield path, _SPECIAL, 0

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
        hint = (
            "is it a broken link? `--exclude` leaves it out" if link else _hint_for_texts(path) or _hint_for_hub(path)
        )
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


def nothing_readable(folder: str, skipped: Skipped, count: int, choice: Choice) -> UsageError:
    """`count`: the files of this folder that were skipped."""
    said = skipped.sentence() if count == skipped.files else plural(count, "file")
    said = f" ({said})" if count else ""
    return UsageError(
        f"the folder holds nothing that can be read{said}",
        place=folder,
        hint="`--include` and `--exclude` leave nothing"
        if choice.given
        else "text, JSON Lines, parquet, Arrow and CSV files are taken, also as .gz .zst .bz2 .xz; "
        "files and folders whose names begin with `.` or `_` are skipped",
    )


def _hint_for_texts(path: str) -> str | None:
    """For a caller in Python who gave a list of texts, which are read as paths."""
    if len(path) > 255 or "\n" in path:
        return NO_PATH
    return None


def _hint_for_hub(path: str) -> str | None:
    """For a dataset of the hub that is named as a tokenizer would be."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", path) and not format_of(path):
        return f"is it a dataset of the Hugging Face hub? Then write `hf://datasets/{path}`"
    return None
