"""Folders that Hugging Face's libraries write: which of their files are the text that a person means.

HOME/hub/datasets--OWNER--NAME/{blobs,refs,snapshots/COMMIT}   the hub's cache: one snapshot is read
HOME/datasets/NAME/CONFIG/VERSION/HASH/NAME-train.arrow        the cache of `datasets`: the train split
README.md .gitattributes data/train-00000-of-00001.parquet     a copy of a repository: the train split
dataset_dict.json train/ test/                                 a saved DatasetDict: the train split
dataset_info.json state.json data-00000-of-00001.arrow         a saved Dataset: the Arrow files
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from shardmill.source_list import Skipped
from shardmill.sources.cards import CARD
from shardmill.sources.dataset_files import (
    DatasetFiles,
    is_data_name,
    say_splits,
    splits_beside_train,
    warn_of_splits,
)
from shardmill.sources.names import SHARD, UNCOUNTED, Choice, is_readable_name
from shardmill.storage import endings

if TYPE_CHECKING:
    from shardmill.sources.walking import Tree

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_PREPARED = re.compile(r".*?-([A-Za-z_]\w*?)(?:-\d{5}-of-\d{5})?\.arrow")


class Layout(NamedTuple):
    """What is left out in a folder: each function returns a kind for a name, or an empty text if it is taken."""

    file: Callable[[str], str] = lambda name: ""
    folder: Callable[[str], str] = lambda name: ""
    by_split: bool = False
    """It is a choice between splits, which `--include` overrides."""


class Copy(NamedTuple):
    """A copy of a dataset of the hub: its root, and the files below it that are taken."""

    root: str
    files: DatasetFiles


def layout_of(tree: Tree, folder: str, found: Collection[str], skipped: Skipped) -> Layout | None:
    """The layout of a folder in which these markers were found; None: an ordinary one."""
    above, name = os.path.split(os.path.normpath(folder))
    if "snapshots" in found and ("blobs" in found or "refs" in found):
        # The files of a snapshot are links to blobs.
        return Layout(lambda name: "metadata file", lambda name: "" if name == "snapshots" else UNCOUNTED)
    if name == "snapshots" and any(one in ("blobs", "refs") for one, _ in tree.names(above)):
        newest = _snapshot(tree, above)
        return Layout(folder=lambda name: "" if name == newest else "older snapshot folder")
    if "hub" in found and ("token" in found or name == "huggingface"):
        return Layout(lambda name: "metadata file", lambda name: "" if name == "hub" else "cache folder")
    if "dataset_dict.json" in found:
        return _saved_splits(tree, folder, skipped)
    if {"state.json", "dataset_info.json"} <= set(found):
        return Layout(_kind_beside_arrow)
    if "dataset_info.json" in found:
        return _prepared(tree, folder, skipped)
    if _VERSION.fullmatch(name):
        return _versions(tree, folder)
    if name == "datasets" and os.path.basename(above) == "huggingface":
        return Layout(folder=lambda name: "download folder" if name == "downloads" else "")
    return None


def copy_in(tree: Tree, folder: str, found: Collection[str], skipped: Skipped) -> Copy | None:
    """The copy of a repository of the hub whose root is this folder; None: it is none.

    It is told by what the hub writes into it, or by the names that `datasets` gives to shards.
    """
    is_copy = tree.is_copy(folder, found)
    if not is_copy and SHARD not in found:
        return None
    card = tree.beginning(os.path.join(folder, CARD)) if CARD in found else ""
    files = DatasetFiles(_readable_below(tree, folder), card)
    if not is_copy and not (files.is_sharded and files.other_splits):
        return None
    files.say(skipped, f"`{tree.shown(folder)}`")
    return Copy(os.path.join(folder, ""), files)


def check_splits(tree: Tree, folder: str, below: str, choice: Choice, skipped: Skipped) -> None:
    """Warn where an ordinary folder holds other splits beside `train`, as files or as folders. `below`: its path."""
    wanted = (
        name
        for name, is_folder in tree.names(folder)
        if (not choice.excludes(below + name) if is_folder else is_data_name(name) and choice.wants(below + name))
    )
    warn_of_splits(f"`{tree.shown(folder)}`", splits_beside_train(wanted), skipped)


def _snapshot(tree: Tree, repository: str) -> str:
    """The name of the snapshot that `main` names, or of the newest one."""
    below = os.path.join(repository, "snapshots")
    commits = _folders(tree, below)
    commit = tree.beginning(os.path.join(repository, "refs", "main")).strip()
    return commit if commit in commits else max(commits, key=lambda one: _age(tree, below, one), default="")


def _age(tree: Tree, folder: str, name: str) -> tuple[int, str]:
    return tree.changed(os.path.join(folder, name)), name


def _saved_splits(tree: Tree, folder: str, skipped: Skipped) -> Layout:
    splits = set(_folders(tree, folder))
    others = sorted(one for one in splits if one != "train" and one[0] not in "._")
    say_splits(f"`{tree.shown(folder)}`", others, skipped, has_train="train" in splits)
    if "train" not in splits:
        return Layout(lambda name: "metadata file")
    return Layout(
        lambda name: "metadata file", lambda name: "" if name == "train" else f"{name}-split folder", by_split=True
    )


def _kind_beside_arrow(name: str) -> str:
    if endings(name)[0] != "arrow":
        return "metadata file"
    return "derived file" if name.startswith("cache-") else ""


def _prepared(tree: Tree, folder: str, skipped: Skipped) -> Layout | None:
    """A folder in the cache of `datasets`; None if there are no Arrow files in it."""
    names = [name for name, _ in tree.names(folder) if not _kind_beside_arrow(name)]
    splits = {name: found[1] for name in names if (found := _PREPARED.fullmatch(name))}
    if not splits:
        return None
    has_train = "train" in splits.values()
    others = sorted(set(splits.values()) - {"train"})
    say_splits(f"`{tree.shown(folder)}`", others, skipped, has_train=has_train)

    def kind(name: str) -> str:
        split = splits.get(name, "train")
        return _kind_beside_arrow(name) or (f"{split}-split file" if has_train and split != "train" else "")

    return Layout(kind, by_split=True)


def _versions(tree: Tree, folder: str) -> Layout | None:
    """A folder in the cache of `datasets` with a folder for each revision of the same data: the newest is read."""
    info = "dataset_info.json"
    revisions = [one for one in _folders(tree, folder) if (info, False) in tree.names(os.path.join(folder, one))]
    if not revisions:
        return None
    newest = max(revisions, key=lambda one: _age(tree, folder, os.path.join(one, info)))
    return Layout(folder=lambda name: "" if name == newest else "older version folder")


def _folders(tree: Tree, folder: str) -> list[str]:
    return [name for name, is_folder in tree.names(folder) if is_folder]


def _readable_below(tree: Tree, root: str) -> Iterator[str]:
    """The paths of all files below a folder that may be read, relative to it, in no order."""
    folders = [""]
    while folders:
        below = folders.pop()
        for name, is_folder in tree.names(os.path.join(root, below)):
            if name[0] in "._":
                continue
            if is_folder:
                folders.append(f"{below}{name}/")
            elif is_readable_name(name):
                yield below + name
