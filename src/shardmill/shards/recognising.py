"""Token files that other tools have made: their format, their splits, and where EOT is in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.output_formats import FORMATS
from shardmill.shards.format import Format, Recognised, format_named
from shardmill.shards.token_files import DocumentIndex, TokenFiles
from shardmill.storage import AnyPath, RemotePath

_SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_TOKEN_FILES = (".bin", ".npy", ".ds", ".idx", ".parquet")  # whose first bytes are read
_SAMPLE = 1 << 16
_DOCUMENTS = 16  # of each split that are looked at


@dataclass(frozen=True)
class Foreign:
    """Token files of one format, by split."""

    format: Format
    dtype: np.dtype[Any]
    splits: dict[str, TokenFiles]
    indices: dict[str, DocumentIndex]
    paths: list[AnyPath]

    def find_eot(self, eot: int) -> str:
        """Detect where the end-of-text token is: after, before or none. The files themselves do not say it."""
        firsts, lasts, inside = [], [], False
        for split, tokens in self.splits.items():
            index = self.indices.get(split)
            bounds = [(0, len(tokens))] if index is None else map(index.bounds, range(min(len(index), _DOCUMENTS)))
            for start, end in bounds:
                if end > start:
                    firsts.append(int(tokens.read(start, start + 1)[0]))
                    lasts.append(int(tokens.read(end - 1, end)[0]))
            inside |= bool((tokens.read(0, min(_SAMPLE, len(tokens))) == eot).any())
        before, after = firsts.count(eot), lasts.count(eot)
        if self.indices:
            every = len(firsts) or -1
            return "before" if before == every else "after" if after == every else "none"
        # The stream may be cut into splits anywhere, as build-nanogpt and llm.c do, so that train begins inside a
        # document. The whole of it still begins or ends with the token; else the format's usual place is assumed.
        if before != after:
            return "before" if before > after else "after"
        return self.format.eot if before or inside else "none"


def find_foreign(path: AnyPath, raw: np.dtype[Any]) -> Foreign:
    """Find the token files at a path: a file, or a folder of them. `raw`: the type in files that do not say it.

    Raise UsageError if there are none, or several kinds; DamageError if one is not whole.
    """
    found: dict[AnyPath, tuple[str, Recognised]] = {}
    for one in [path] if path.is_file() else _files_under(path):
        # The default format comes last: it takes what no other format knows.
        for name in reversed(FORMATS):
            if recognised := format_named(name).recognise(one, raw):
                found[one] = (name, recognised)
                break
    if not found:
        raise UsageError(
            f"`{path}` holds no dataset and no token files",
            hint=f"give a folder made by shardmill, or token files of another tool: {', '.join(FORMATS)}",
        )
    kinds = {(name, one.dtype) for name, one in found.values()}
    if len(kinds) > 1:
        listed = ", ".join(sorted(f"{name} of {dtype.name}" for name, dtype in kinds))
        raise UsageError(f"`{path}` holds token files of several kinds: {listed}", hint="give each kind a folder")
    ((name, dtype),) = kinds
    kind = format_named(name)
    splits: dict[str, list[Any]] = {}
    for one, (_, recognised) in found.items():
        splits.setdefault(_split_of(one, path), []).append(recognised.file)
    tokens = {split: kind.tokens(splits[split], dtype) for split in sorted(splits)}
    indices = {split: index for split, part in tokens.items() if (index := kind.index(part)) is not None}
    return Foreign(kind, dtype, tokens, indices, list(found))


def _files_under(folder: AnyPath) -> list[AnyPath]:
    """The files of a folder, and of the folders of splits in it."""
    inside: list[Any] = sorted(folder.iterdir()) if folder.is_dir() else []
    splits = [one for one in inside if one.is_dir() and one.name in _SPLIT_WORDS]
    files = [one for one in (*inside, *(file for split in splits for file in sorted(split.iterdir()))) if one.is_file()]
    if isinstance(folder, RemotePath):
        folder.folder.announce(one.inside for one in files if one.suffix in _TOKEN_FILES)
    return files


def _split_of(path: AnyPath, under: AnyPath) -> str:
    """By the last word of its name that is a split (`medieval_train_000001.npy`: train), else by its folder's name."""
    folder = path.parent.name if path.parent != under and path != under else ""
    words = [word for word in re.split(r"[^a-z]+", f"{folder} {path.stem}".lower()) if word in _SPLIT_WORDS]
    split = _SPLIT_WORDS[words[-1]] if words else "train"
    if split == "test":
        raise UsageError(f"`{path.name}` is neither train nor val", hint="move it away: there are two splits")
    return split
