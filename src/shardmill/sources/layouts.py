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
from typing import NamedTuple

from shardmill.source_list import Skipped
from shardmill.sources.cards import CARD, CARD_BYTES, is_card
from shardmill.sources.dataset_files import (
    METADATA,
    DatasetFiles,
    is_data_name,
    only_train,
    splits_beside_train,
    warn_of_splits,
)
from shardmill.sources.names import Choice, is_readable_name
from shardmill.storage import endings

MARKERS = METADATA | {"snapshots", "blobs", "refs", "hub", "token", CARD, ".gitattributes", "train"}
"""Names of files and folders by which a layout is recognised."""
SHARD = "train-"
"""In place of names that begin so, which are a marker too. `train` stands for other names in which that word is."""
UNCOUNTED = "uncounted"
"""The kind of what is not counted: another copy of what is read."""
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


def layout_of(folder: str, found: Collection[str], skipped: Skipped) -> Layout | None:
    """The layout of a folder of this machine in which these markers were found; None: an ordinary one."""
    above, name = os.path.split(os.path.normpath(folder))
    if "snapshots" in found and ("blobs" in found or "refs" in found):
        # The files of a snapshot are links to blobs.
        return Layout(lambda name: "metadata file", lambda name: "" if name == "snapshots" else UNCOUNTED)
    if name == "snapshots" and any(os.path.isdir(os.path.join(above, other)) for other in ("blobs", "refs")):
        newest = _snapshot(above)
        return Layout(folder=lambda name: "" if name == newest else "older snapshot folder")
    if "hub" in found and ("token" in found or name == "huggingface"):
        return Layout(lambda name: "metadata file", lambda name: "" if name == "hub" else "cache folder")
    if "dataset_dict.json" in found:
        return _saved_splits(folder, skipped)
    if {"state.json", "dataset_info.json"} <= set(found):
        return Layout(_kind_beside_arrow)
    if "dataset_info.json" in found:
        return _prepared(folder, skipped)
    if _VERSION.fullmatch(name):
        return _versions(folder)
    if name == "datasets" and os.path.basename(above) == "huggingface":
        return Layout(folder=lambda name: "download folder" if name == "downloads" else "")
    return None


def copy_in(folder: str, found: Collection[str], skipped: Skipped) -> Copy | None:
    """The copy of a repository of the hub whose root is this folder; None: it is none.

    It is told by its card, by the attributes that the hub writes, or by the names that `datasets` gives to shards.
    """
    card = _beginning(os.path.join(folder, CARD)) if CARD in found else ""
    is_copy = (
        is_card(card)
        or (".gitattributes" in found and "*.parquet filter=lfs" in _beginning(os.path.join(folder, ".gitattributes")))
        or "dataset_infos.json" in found
    )
    if not is_copy and SHARD not in found:
        return None
    files = DatasetFiles(_readable_below(folder), card)
    if not is_copy and not (files.is_sharded and files.other_splits):
        return None
    files.say(skipped, f"`{folder}`")
    return Copy(os.path.join(folder, ""), files)


def check_splits(folder: str, below: str, choice: Choice, skipped: Skipped) -> None:
    """Warn where an ordinary folder holds other splits beside `train`, as files or as folders. `below`: its path."""

    def wanted() -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = below + entry.name
                if entry.is_dir():
                    if not choice.excludes(path):
                        yield entry.name
                elif is_data_name(entry.name) and choice.wants(path):
                    yield entry.name

    warn_of_splits(f"`{folder}`", splits_beside_train(wanted()), skipped)


def kinds_by_names(
    paths: Collection[str], where: str, choice: Choice, skipped: Skipped, *, hub: bool, card: str = ""
) -> Callable[[str], str]:
    """Say why a file in a list is skipped, as a kind, by names alone. The paths are relative to the folder named.

    `hub`: it is a repository of the hub; otherwise one is recognised by its card beside the hub's attributes.
    """
    metadata = {path for path in paths if path.rpartition("/")[2] in METADATA}
    below = {path.rpartition("/")[0] for path in metadata if path.endswith("state.json")}
    saved = {folder for folder in below if f"{folder}/dataset_info.json".lstrip("/") in metadata}
    dicts = {path.removesuffix("dataset_dict.json") for path in metadata if path.endswith("dataset_dict.json")}
    dicts = {folder for folder in dicts if any(path.startswith(f"{folder}train/") for path in paths)}
    for folder in sorted(dicts):
        splits = {path[len(folder) :].partition("/")[0] for path in paths if path.startswith(folder)}
        others = sorted(one for one in splits if one not in ("train", "dataset_dict.json"))
        if others:
            skipped.note(only_train(where, others))
    is_copy = hub or all(name in paths for name in (CARD, ".gitattributes"))
    files = DatasetFiles((path for path in paths if is_taken_by_name(path)), card)
    is_copy = not saved and not dicts and (is_copy or (files.is_sharded and bool(files.other_splits)))
    if is_copy:
        files.say(skipped, where)
    elif files.has_train and files.other_splits and not saved and not dicts:
        wanted = (path for path in paths if is_taken_by_name(path) and is_data_name(path) and choice.wants(path))
        warn_of_splits(where, splits_beside_train(wanted), skipped)

    def kind(path: str) -> str:
        folder, _, name = path.rpartition("/")
        for one in dicts:
            if path.startswith(one) and not path.startswith(f"{one}train/"):
                split, slash, _ = path[len(one) :].partition("/")
                return f"{split}-split file" if slash else "metadata file"
        if folder in saved:
            return _kind_beside_arrow(name)
        return files.kind_if_skipped(path) if is_copy else ""

    return kind


def is_taken_by_name(path: str) -> bool:
    """Whether a file in a list may be read: no name in its path is hidden, and its ending is known."""
    return not any(segment[:1] in "._" for segment in path.split("/")) and is_readable_name(path)


def _snapshot(repository: str) -> str:
    """The name of the snapshot that `main` names, or of the newest one."""
    commit = _beginning(os.path.join(repository, "refs", "main")).strip()
    below = os.path.join(repository, "snapshots")
    if commit and "/" not in commit and os.path.isdir(os.path.join(below, commit)):
        return commit
    return max(((os.stat(one.path).st_mtime_ns, one.name) for one in _folders(below)), default=(0, ""))[1]


def _saved_splits(folder: str, skipped: Skipped) -> Layout:
    splits = sorted(one.name for one in _folders(folder) if one.name[0] not in "._")
    if "train" not in splits:
        skipped.warn(f"`{folder}` has no split `train`; all are read: {', '.join(splits)}")
        return Layout(lambda name: "metadata file")
    if len(splits) > 1:
        skipped.note(only_train(f"`{folder}`", [one for one in splits if one != "train"]))
    return Layout(
        lambda name: "metadata file", lambda name: "" if name == "train" else f"{name}-split folder", by_split=True
    )


def _kind_beside_arrow(name: str) -> str:
    if endings(name)[0] != "arrow":
        return "metadata file"
    return "derived file" if name.startswith("cache-") else ""


def _prepared(folder: str, skipped: Skipped) -> Layout | None:
    """A folder in the cache of `datasets`; None if there are no Arrow files in it."""
    with os.scandir(folder) as entries:
        names = [one.name for one in entries if not _kind_beside_arrow(one.name)]
    splits = {name: found[1] for name in names if (found := _PREPARED.fullmatch(name))}
    if not splits:
        return None
    others = sorted(set(splits.values()) - {"train"})
    if "train" in splits.values() and others:
        skipped.note(only_train(f"`{folder}`", others))
    elif others:
        skipped.warn(f"`{folder}` has no split `train`; all are read: {', '.join(others)}")

    def kind(name: str) -> str:
        split = splits.get(name, "train")
        is_other = "train" in splits.values() and split != "train"
        return _kind_beside_arrow(name) or (f"{split}-split file" if is_other else "")

    return Layout(kind, by_split=True)


def _versions(folder: str) -> Layout | None:
    """A folder in the cache of `datasets` with a folder for each revision of the same data: the newest is read."""
    infos = [(one.name, os.path.join(one.path, "dataset_info.json")) for one in _folders(folder)]
    revisions = [(os.stat(info).st_mtime_ns, name) for name, info in infos if os.path.isfile(info)]
    if not revisions:
        return None
    newest = max(revisions)[1]
    return Layout(folder=lambda name: "" if name == newest else "older version folder")


def _beginning(path: str) -> str:
    """The first bytes of a small text file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _folders(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def _readable_below(root: str) -> Iterator[str]:
    """The paths of all files below a folder that may be read, relative to it, in no order."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] not in "._"]
        below = os.path.relpath(folder, root).replace(os.sep, "/")
        for name in names:
            if name[0] not in "._" and is_readable_name(name):
                yield name if below == "." else f"{below}/{name}"
