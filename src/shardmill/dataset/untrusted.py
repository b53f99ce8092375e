"""A manifest may come from an untrusted place: it is checked before anything is done with it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards import FORMATS
from shardmill.write import MANIFEST as NAME
from shardmill.write import SourceLines, each_output, tables_in

_TEXT = (str, type(None))
_FILE = {"name": str, "tokens": int, "bytes": int, "sha256": str, "role?": str}
_OTHER_FILE = {"name": str, "bytes": int, "sha256": str}
_SPLIT = {
    "tokens": int, "documents": int, "bytes": int, "files": [_FILE], "dropped?": int, "documents_table?": _OTHER_FILE
}  # fmt: skip
_OUTPUT = {"format": str, "dtype": str, "eot": str, "splits": {"train?": _SPLIT, "val?": _SPLIT}}
_MANIFEST: dict[str, Any] = {
    **_OUTPUT,
    "fingerprint": str,
    "documents": int,
    "empty": int,
    "rejected": int,
    "options": {
        "tokenizer?": str,
        "pattern?": _TEXT,
        "specials?": str,
        "delimiter?": _TEXT,
        "separator?": _TEXT,
        "name?": _TEXT,
    },
    "sources": (list, SourceLines),
    "tokenizer": {"name": str, "sha256": str, "vocab_size": int, "eot": (int, type(None))},
    "also?": [_OUTPUT],
    "rejects?": _OTHER_FILE,
}
_SOURCE = {
    "name": str, "bytes": (int, type(None)), "unit?": str, "documents": int, "empty": int, "rejected": int,
    "tokens?": int
}  # fmt: skip
_UNITS = ("byte", "line", "row", "document", "token")
_VALUES = {
    "format": FORMATS,
    "dtype": ("uint16", "uint32", "int32"),
    "eot": ("after", "before", "none"),
}


def check_manifest(manifest: dict[str, Any], place: str) -> None:
    """Raise DamageError when a manifest lacks something, or names files outside its folder."""
    wrong = _misfit(manifest, _MANIFEST, "")
    if wrong:
        raise DamageError(f"{NAME} is not one of shardmill's: {wrong}", place=place)
    files = [manifest["rejects"] | {"tokens": 0}] if "rejects" in manifest else []
    for described in each_output(manifest):
        for key, known in _VALUES.items():
            if described[key] not in known:
                raise DamageError(f"{NAME} has an unknown {key}: `{described[key]}`", place=place)
        if others := set(described["splits"]) - {"train", "val"}:
            raise DamageError(f"{NAME} has unknown splits: {', '.join(sorted(others))}", place=place)
        width = np.dtype(described["dtype"]).itemsize
        for split in described["splits"].values():
            files += [file | {"tokens": file["tokens"] * width} for file in split["files"]]
            files += [table | {"tokens": 0} for table in tables_in(split)]
    for file in files:
        path = PurePath(file["name"])
        if not path.parts or path.is_absolute() or path.drive or ".." in path.parts or "\0" in file["name"]:
            raise DamageError(f"{NAME} names a file outside the dataset's folder: `{file['name']}`", place=place)
        if not 0 <= file["tokens"] <= file["bytes"]:
            raise DamageError(f"{NAME} says that `{file['name']}` has more tokens than bytes", place=place)


def check_source(source: Any, number: int) -> None:
    """Raise DamageError when the manifest does not describe a source as shardmill does."""
    wrong = _misfit(source, _SOURCE, f"sources[{number}]")
    if not wrong and source.get("unit", _UNITS[0]) not in _UNITS:
        wrong = f"`sources[{number}].unit` is {source['unit']!r}"
    if wrong:
        raise DamageError(f"{NAME}: a source is not described as shardmill does it: {wrong}")


def _misfit(value: Any, shape: Any, where: str) -> str | None:
    """A sentence about how a value differs from a shape: in keys (those with a `?` are optional), elements, types."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"`{where}` is not an object"
        if missing := [key for key in shape if key not in value and not key.endswith("?")]:
            return f"`{where or NAME}` has no `{missing[0]}`"
        named = [(key.rstrip("?"), part) for key, part in shape.items()]
        parts = [(f"{where}.{key}".lstrip("."), value[key], part) for key, part in named if key in value]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return f"`{where}` is not a list"
        parts = [(f"{where}[{i}]", one, shape[0]) for i, one in enumerate(value)]
    else:
        right = isinstance(value, shape) and not isinstance(value, bool) and (not isinstance(value, int) or value >= 0)
        return None if right else f"`{where}` is {value!r}"
    return next(filter(None, (_misfit(one, part, name) for name, one, part in parts)), None)
