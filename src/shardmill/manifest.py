"""`manifest.json`: what a dataset is, with checksums. It comes last; a folder without one is not a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardmill.errors import DamageError, UsageError

NAME = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """UsageError when there is none, DamageError when it cannot be read."""
    path = folder / NAME
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        unfinished = (folder / ".shardmill").is_dir()
        raise UsageError(
            f"`{folder}` is not a dataset: it has no {NAME}",
            hint="its run has not finished: run the same `shardmill prepare` again"
            if unfinished
            else "make one with `shardmill prepare SOURCE -o DIR`",
        ) from None
    except ValueError as why:
        raise DamageError(f"{NAME} cannot be read: {why}", place=str(path)) from None
    if not isinstance(manifest, dict) or "fingerprint" not in manifest or "splits" not in manifest:
        raise DamageError(f"{NAME} is not one of shardmill's", place=str(path))
    return manifest


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The file's content: the same bytes for the same dataset. A source is a line: there may be a million."""
    head = {**manifest, "sources": []}
    whole = json.dumps(head, ensure_ascii=False, indent=1)
    lines = ",\n".join("  " + json.dumps(source, ensure_ascii=False) for source in manifest["sources"])
    if lines:
        whole = whole.replace('\n "sources": []', f'\n "sources": [\n{lines}\n ]', 1)
    return whole.encode() + b"\n"
