"""`manifest.json`: what a dataset is, with checksums. It comes last; a folder without one is not a dataset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shardmill.arguments import path
from shardmill.errors import DamageError, UsageError

NAME = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """UsageError when there is none, DamageError when it cannot be read."""
    file = folder / NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        unfinished = (folder / ".shardmill").is_dir()
        raise UsageError(
            f"`{folder}` is not a dataset: it has no {NAME}",
            hint="its run has not finished: run the same `shardmill prepare` again"
            if unfinished
            else "make one with `shardmill prepare SOURCE -o DIR`",
        ) from None
    except OSError as why:
        raise UsageError(f"{NAME} cannot be read: {why.strerror}", place=str(file)) from why
    return parse_manifest(data, str(file))


def parse_manifest(data: bytes, place: str) -> dict[str, Any]:
    """What a manifest says; DamageError when it cannot be read."""
    try:
        manifest = json.loads(data)
    except ValueError as why:
        raise DamageError(f"{NAME} cannot be read: {why}", place=place) from None
    if not isinstance(manifest, dict) or "fingerprint" not in manifest or "splits" not in manifest:
        raise DamageError(f"{NAME} is not one of shardmill's", place=place)
    return manifest


def dataset_folder(named: str | os.PathLike[str]) -> Path:
    """The folder of a dataset; UsageError for the URL of one, which has to be copied first."""
    named = path("folder", named)
    if "://" in named:
        raise UsageError(
            f"`{named}` is not a folder, and this works on folders only",
            hint="copy the dataset down first, with `aws s3 cp --recursive` for example",
        )
    return Path(named)


def manifest_bytes(manifest: dict[str, Any], lines: bytes | None = None) -> bytes:
    """The file's content: the same bytes for the same dataset. A source is a line: there may be a million.

    `lines`: the sources as `json_line` gives them, where they have been written down before.
    """
    if lines is None:
        lines = b"".join(json_line(source) for source in manifest["sources"])
    whole = as_bytes(json.dumps({**manifest, "sources": []}, ensure_ascii=False, indent=1))
    if lines:
        listed = lines.rstrip(b"\n").replace(b"\n", b",\n  ")
        whole = whole.replace(b'\n "sources": []', b'\n "sources": [\n  ' + listed + b"\n ]", 1)
    return whole + b"\n"


def json_line(value: dict[str, Any]) -> bytes:
    """A line that holds one value, as it stands in the manifest and in `rejects.jsonl`."""
    return as_bytes(json.dumps(value, ensure_ascii=False)) + b"\n"


def as_bytes(written: str) -> bytes:
    """JSON in UTF-8. A byte of a file name that is none is `\\udcff` in Python and, spelled out so, in JSON too."""
    return written.encode("utf-8", "backslashreplace")
