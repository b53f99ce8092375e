"""Files of this machine: a folder and all below it, those that match a pattern, or a single one."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache

from shardmill.arguments import NO_PATH
from shardmill.detection import format_of
from shardmill.errors import SourceError, UsageError
from shardmill.source_list import Sources
from shardmill.sources.cards import CARD, CARD_BYTES, is_card
from shardmill.sources.names import UNCOUNTED
from shardmill.sources.walking import MARKERS, Entry, Rules, Tree, Walk, note_marker
from shardmill.storage import PARTIAL, Source, endings, sorted_rows

NAME_ONE = "name a file, a folder, a glob, or `-` for standard input"
Owned = Callable[[str], Iterable[str]]
"""Returns the files of the dataset in a folder or at a URL, relative to it. They are not read as sources."""


class LocalFiles(Tree):
    """Finds local files, and counts those that it skips."""

    can_open = True

    def __init__(self, rules: Rules, out: str | os.PathLike[str] | None, owned: Owned) -> None:
        self._rules, self._owned = rules, owned
        self._out = os.path.realpath(out) if out is not None and os.path.isdir(out) else None
        self._owned_by = lru_cache(64)(self._files_of)  # needed for a folder and then for the folders in it
        self._user = os.geteuid()
        self._named: dict[str, bool] = {}  # path → whether it is a folder

    def find(self, spec: str, found: Sources) -> Sources:
        """Return `found` with the files that a path, a folder or a pattern names."""
        if not spec:
            raise UsageError("a source is an empty text", hint=NAME_ONE)
        if "\0" in spec:
            raise UsageError("a source's name holds a NUL character", place=repr(spec))
        before, form = len(found), self._rules.input_format
        walk = Walk(self, self._rules)
        is_folder = os.path.isdir(spec)
        if not is_folder and (os.path.lexists(spec) or not glob.has_magic(spec)):
            found.append(_single(spec, form))
        else:
            if is_folder:
                files = walk.files(spec)
            else:
                files = self._rules.matching(self._matches(spec), spec, _hint_for_texts(spec))
            found.extend(Source(path, path, size, str(changed), form) for path, size, changed in files)
        self._note_named(spec, is_folder)
        return self._without_misfits(found, before, walk)

    def _without_misfits(self, found: Sources, before: int, walk: Walk) -> Sources:
        """Leave out the JSON and CSV files of a folder that hold no records, if most of its files are others.

        If they are not, the run stops at them, since they may be what the user means. `before`: sources of other specs.
        """
        if not walk.misfits or 2 * len(walk.misfits) >= len(found) - before:
            return found
        numbers = [before + number for number in walk.misfits]
        skipped = self._rules.skipped
        for number in numbers:
            name = found[number].name
            skipped.add("JSON file" if endings(name)[0] == "json" else "CSV file", name)
        skipped.note(
            f"JSON and CSV files without `{self._rules.look.text_field}` are skipped, since most files of the folder "
            "are others (`--input-format text` reads them as text)"
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
            self._rules.skipped.warn(f"`{spec}` is read twice{inside or ', since it is named twice'}")
        self._named[path] = is_folder

    def listing(self, folder: str, below: str, markers: set[str]) -> Iterator[Entry]:
        return sorted_rows(self._entries(folder, below, markers))

    def names(self, folder: str) -> Iterator[tuple[str, bool]]:
        with os.scandir(folder) as entries:
            yield from ((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)

    def changed(self, path: str) -> int:
        return os.stat(path).st_mtime_ns

    def beginning(self, path: str) -> str:
        try:
            with open(path, "rb") as file:
                return file.read(CARD_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def is_copy(self, folder: str, markers: Collection[str]) -> bool:
        prefix = os.path.join(folder, "")
        return (
            (CARD in markers and is_card(self.beginning(prefix + CARD)))
            or (".gitattributes" in markers and "*.parquet filter=lfs" in self.beginning(prefix + ".gitattributes"))
            or "dataset_infos.json" in markers
        )

    def shown(self, folder: str) -> str:
        return folder

    def _entries(self, folder: str, below: str, markers: set[str]) -> Iterator[Entry]:
        """The folders and files in a folder, in no order."""
        rules, owned, user = self._rules, self._owned_in(folder), self._user
        # By most names a file is read, which is found out in a tenth of the time.
        sure = rules.look.sure if not rules.choice.given else frozenset[str]()
        prefix = os.path.join(folder, "")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    link = entry.is_symlink()
                    is_folder = not link and entry.is_dir()
                    if is_folder or name[0] in "._" or name[name.rfind(".") + 1 :] not in sure:
                        kind = rules.kind(name, below, is_folder)
                    else:
                        kind = ""
                    if not kind and owned and _is_owned(prefix + name, owned):
                        kind = UNCOUNTED if self._is_in_out(folder) else "dataset file"
                    if name in MARKERS or "train" in name:
                        note_marker(name, kind, markers)
                    if kind == UNCOUNTED or (is_folder and self._is_out(prefix + name)):
                        continue
                    if kind:
                        is_linked = link and name[0] not in "._" and os.path.isdir(prefix + name)
                        yield name, 0, 0, "linked folder" if is_linked else kind
                        continue
                    status = _status(prefix + name, entry)
                    # No access list changes what the owner may do, so `os.access` is not needed.
                    mine = status.st_uid == user and status.st_mode & stat.S_IRUSR and not link
                    if (mine and stat.S_ISREG(status.st_mode)) or self._is_source(prefix + name, status, link):
                        yield name, status.st_size, status.st_mtime_ns, ""
                    elif not stat.S_ISREG(status.st_mode):
                        yield name, 0, 0, "linked folder" if stat.S_ISDIR(status.st_mode) else "special file"
        except PermissionError as error:
            raise UsageError("no permission to list the folder", place=folder) from error
        except OSError as error:
            raise SourceError(f"the folder cannot be listed: {error.strerror}", place=folder) from error

    def _is_source(self, path: str, status: os.stat_result, link: bool) -> bool:
        """Whether a file found in a folder or by a pattern is a source; raises UsageError when it may not be read."""
        if not stat.S_ISREG(status.st_mode) or (link and self._is_in_out(path)):
            return False
        _check_access(path)
        return True

    def _matches(self, pattern: str) -> Iterator[Entry]:
        # glob itself skips hidden names unless the pattern spells the dot, as a shell does.
        fixed = os.path.dirname(pattern[: next(i for i, c in enumerate(pattern) if c in "*?[")])
        length = len(os.path.join(fixed, "")) if fixed else 0
        choice = self._rules.choice
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
                    yield path, 0, 0, "dataset file"
                continue
            if choice.given and not choice.wants(path[length:]):
                if not os.path.isdir(path):
                    yield path, 0, 0, "excluded file"
                continue
            status = _status(path)
            if self._is_source(path, status, link=not inside and self._out is not None and os.path.islink(path)):
                yield path, status.st_size, status.st_mtime_ns, ""
            elif stat.S_ISDIR(status.st_mode) and "**" not in pattern:
                yield path, 0, 0, "matching folder"
            elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                yield path, 0, 0, "special file"

    def _is_out(self, path: str) -> bool:
        out = self._out
        return out is not None and os.path.basename(path) == os.path.basename(out) and os.path.realpath(path) == out

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


def _single(path: str, input_format: str) -> Source:
    """A path that is named itself is read whatever it is: the size of a pipe or a device is unknown."""
    status = _status(path)
    _check_access(path)
    if stat.S_ISREG(status.st_mode):
        return Source(path, path, status.st_size, str(status.st_mtime_ns), input_format)
    return Source(path, path, None, "", input_format)


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
