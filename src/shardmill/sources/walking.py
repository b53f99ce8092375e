"""Goes through a folder and chooses what is read, by one set of rules for this machine, the hub and buckets."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from shardmill.errors import UsageError
from shardmill.source_list import Skipped
from shardmill.sources.cards import CARD
from shardmill.sources.dataset_files import METADATA
from shardmill.sources.first_look import FirstLook, Twins
from shardmill.sources.layouts import Copy, Layout, check_splits, copy_in, layout_of
from shardmill.sources.names import SHARD, UNCOUNTED, Choice, is_housekeeping, kind_of
from shardmill.storage import sorted_rows
from shardmill.units import plural

MARKERS = METADATA | {"snapshots", "blobs", "refs", "hub", "token", CARD, ".gitattributes", "train"}
"""Names of files and folders by which a layout is recognised."""
FOLDER = "/"
"""The kind of a folder that is entered."""
_NO_CHOICE = "`--include` and `--exclude` leave nothing"

Entry = tuple[str, int, int | str, str]
"""A name or a path, its size and version, and why it is not read, as a kind: empty if it is read."""
Found = tuple[str, int, int | str]
"""Path, size and version of a file that is read."""


class Rules:
    """What a name alone says, and what was asked for; counts what is skipped."""

    def __init__(
        self, input_format: str, text_field: str, include: Sequence[str], exclude: Sequence[str], skipped: Skipped
    ) -> None:
        self.input_format, self.skipped = input_format, skipped
        self.choice, self.look, self.twins = Choice(include, exclude), FirstLook(input_format, text_field), Twins()

    def kind(self, name: str, below: str, is_folder: bool) -> str:
        """Why a file or folder is not read, as a kind. `below`: the path of its folder below the source."""
        choice = self.choice
        if name[0] in "._":
            if is_housekeeping(name):
                return UNCOUNTED
            return "hidden folder" if is_folder else "hidden file"
        if is_folder:
            if choice.given and choice.excludes(below + name):
                return "excluded folder"
            return "model folder" if name.startswith(("models--", "spaces--")) else FOLDER
        if choice.given and not choice.wants(below + name):
            return "excluded file"
        return "" if choice.include or self.look.is_readable_name(name) else kind_of(name)

    def matching(self, entries: Iterable[Entry], pattern: str, hint: str | None = None) -> Iterator[Found]:
        """Yield the files among those that match a pattern. `hint`: for the error if there are none."""
        last, found = "", 0
        for path, size, version, kind in sorted_rows(entries):
            if path == last:  # `**` may give one twice
                continue
            last = path
            if kind:
                self.skipped.add(kind, path)
                continue
            found += 1
            folder, slash, name = path.rpartition("/")
            self.twins.check(folder + slash, name)
            yield path, size, version
        if not found:
            hint = _NO_CHOICE if last and self.choice.given else hint
            raise UsageError("nothing matches the pattern", place=pattern[:300], hint=hint)

    def nothing_readable(self, folder: str, count: int) -> UsageError:
        """`count`: the files of this folder that were skipped."""
        said = self.skipped.sentence() if count == self.skipped.files else plural(count, "file")
        said = f" ({said})" if count else ""
        return UsageError(
            f"the folder holds nothing that can be read{said}",
            place=folder,
            hint=_NO_CHOICE
            if self.choice.given
            else "text, JSON Lines, parquet, Arrow and CSV files are taken, also as .gz .zst .bz2 .xz; "
            "files and folders whose names begin with `.` or `_` are skipped",
        )


def note_marker(name: str, kind: str, markers: set[str]) -> None:
    """Remember a name by which a layout or a split may be recognised."""
    if name in MARKERS:
        markers.add(name)
    if not kind and "train" in name:
        markers.add(SHARD if name.startswith(SHARD) else "train")


class Tree(ABC):
    """A folder and all below it, on this machine or in a list of files."""

    can_open = False
    """Whether a file can be opened where its name is not enough."""

    @abstractmethod
    def listing(self, folder: str, below: str, markers: set[str]) -> Iterator[Entry]:
        """Return what a folder holds, in the order of names, after `note_marker` was called with all of it."""

    @abstractmethod
    def names(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield all names in a folder, and whether each is a folder."""

    @abstractmethod
    def changed(self, path: str) -> int:
        """When a file or folder was changed; 0 if that is unknown."""

    @abstractmethod
    def beginning(self, path: str) -> str:
        """The beginning of a small text file; empty if it cannot be read."""

    @abstractmethod
    def is_copy(self, folder: str, markers: Collection[str]) -> bool:
        """Whether a folder is the root of a copy of a dataset of the hub, or the hub's own."""

    @abstractmethod
    def shown(self, folder: str) -> str:
        """What users call a folder."""


class _Frame(NamedTuple):
    """A folder that is being walked through."""

    prefix: str
    entries: Iterator[Entry]
    layout: Layout | None
    copy: Copy | None
    is_plain: bool
    """It has no layout in which files are chosen."""


class Walk:
    """Goes through a tree, and counts what it skips."""

    def __init__(self, tree: Tree, rules: Rules) -> None:
        self._tree, self._rules = tree, rules
        self.misfits = array("q")
        """The numbers of files that seem to hold no records."""

    def files(self, root: str) -> Iterator[Found]:
        """Yield the files below a folder that are read, in the order of their names."""
        look, skipped = self._rules.look, self._rules.skipped
        before, found, length = skipped.files, 0, len(os.path.join(root, ""))
        sure, check_twins = look.sure, self._rules.twins.check
        # Folders may be nested a thousand deep, so this is not recursive.
        frames = [self._frame(root, "", None)]
        while frames:
            frame = frames[-1]
            prefix, is_plain = frame.prefix, frame.is_plain
            for name, size, version, kind in frame.entries:  # continues where it was left
                path = prefix + name
                # Most names are enough, and then nothing more is asked.
                if kind or not is_plain or name[name.rfind(".") + 1 :] not in sure:
                    kind = kind or self._kind_if_skipped(frame, path, size)
                    if kind == FOLDER and not (kind := self._layout(frame).folder(name)):
                        frames.append(self._frame(path, path[length:] + "/", frame.copy))
                        break
                    if kind:
                        if kind != UNCOUNTED:
                            skipped.add(kind, path)
                        continue
                    if look.is_misfit:
                        self.misfits.append(found)
                        look.is_misfit = False
                check_twins(prefix, name)
                found += 1
                yield path, size, version
            else:
                frames.pop()
        if not found:
            raise self._rules.nothing_readable(self._tree.shown(root), skipped.files - before)

    def _frame(self, folder: str, below: str, copy: Copy | None) -> _Frame:
        """List a folder. `below`: its path below the source, with a slash at its end. `copy`: the one that it is in."""
        tree, choice, skipped = self._tree, self._rules.choice, self._rules.skipped
        markers = set[str]()
        entries = tree.listing(folder, below, markers)
        layout = layout_of(tree, folder, markers, skipped)
        if layout is None and copy is None and self._rules.input_format == "auto" and not choice.include:
            copy = copy_in(tree, folder, markers, skipped)
        if layout is None and copy is None and markers & {"train", SHARD}:
            check_splits(tree, folder, below, choice, skipped)
        prefix, is_plain = os.path.join(folder, ""), layout is None and copy is None
        return _Frame(prefix, entries, layout, copy, is_plain)

    def _layout(self, frame: _Frame) -> Layout:
        """What the layout of a folder leaves out; `--include` overrides a choice between splits."""
        layout = frame.layout
        return Layout() if layout is None or (layout.by_split and self._rules.choice.include) else layout

    def _kind_if_skipped(self, frame: _Frame, path: str, size: int) -> str:
        """Why a file is not read, where its name alone is not enough, as a kind; empty: it is read."""
        kind = self._layout(frame).file(path[len(frame.prefix) :])
        if not kind and frame.copy is not None:
            kind = frame.copy.files.kind_if_skipped(path[len(frame.copy.root) :])
        return kind or (self._rules.look.kind_if_skipped(path, size) if self._tree.can_open else "")
