"""The configs of a dataset, as its card says: a README.md of the hub begins with YAML.

---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
---

Only this much of YAML is read: maps and lists in lines, texts, and lists in brackets. `datasets` writes no more.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, NamedTuple

CARD = "README.md"
CARD_BYTES = 1 << 20
"""Bytes of a card that are looked at; with a thousand configs it begins with several hundred kilobytes of YAML."""
_KEYS = re.compile(
    r"(?m)^(license|language|task_categories|task_ids|size_categories|dataset_info|configs|pretty_name"
    r"|annotations_creators|source_datasets)\s*:"
)
_KEY = re.compile(r"([\w.-]+):(?:\s+(.*))?")
_Lines = deque[tuple[int, str]]
"""Each line's indentation, and its text."""


class Config(NamedTuple):
    """One of the datasets in a repository."""

    name: str
    splits: dict[str, list[str]]
    """The patterns of the files of each split."""
    is_default: bool


def is_card(text: str) -> bool:
    """Whether a README.md begins with the data that cards of the hub begin with."""
    return _KEYS.search(_front_matter(text)) is not None


def configs_in(text: str) -> list[Config]:
    """Return the configs that a card names, if it names their files; none if it is written in another way."""
    found = re.search(r"(?m)^configs\s*:[ \t]*\n((?:(?:[ -].*)?\n)+)", _front_matter(text) + "\n")
    if found is None:
        return []
    lines = [line.rstrip() for line in found[1].splitlines() if line.strip() and not line.lstrip().startswith("#")]
    parts = deque((len(line) - len(line.lstrip()), line.lstrip()) for line in lines)
    try:
        listed = _value(parts, -1)
        return [config for entry in listed if (config := _config(entry)).splits] if not parts else []
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def chosen(configs: list[Config]) -> Config | None:
    """Return the config that is meant if none is named; None: the card does not say."""
    defaults = [one for one in configs if one.is_default] or [one for one in configs if one.name == "default"]
    return defaults[0] if defaults else configs[0] if len(configs) == 1 else None


def _front_matter(text: str) -> str:
    begun = re.match(r"\ufeff?---\r?\n(.*?)\n---", text, re.DOTALL)
    return begun[1].replace("\r", "") if begun else ""


def _config(entry: dict[str, Any]) -> Config:
    folder = str(entry.get("data_dir") or "").strip("/")
    files = entry.get("data_files") or []
    rows = [{"split": split, "path": path} for split, path in files.items()] if isinstance(files, dict) else files
    splits: dict[str, list[str]] = {}
    for row in [rows] if isinstance(rows, str) else rows:
        split, paths = ("train", row) if isinstance(row, str) else (row.get("split", "train"), row["path"])
        for path in [paths] if isinstance(paths, str) else paths:
            splits.setdefault(split, []).append(f"{folder}/{path}".lstrip("/").removeprefix("./"))
    return Config(str(entry.get("config_name", "default")), splits, entry.get("default") == "true")


def _value(lines: _Lines, above: int) -> Any:
    """What is indented more than the line above; a list may be indented as its key is."""
    if lines and lines[0][1].startswith("-") and lines[0][0] >= above:
        return _list(lines, lines[0][0])
    return _map(lines, lines[0][0]) if lines and lines[0][0] > above else ""


def _list(lines: _Lines, indent: int) -> list[Any]:
    found = []
    while lines and lines[0][0] == indent and lines[0][1].startswith("-"):
        _, text = lines.popleft()
        item = text[1:].lstrip()
        if not item:
            found.append(_value(lines, indent))
        elif _KEY.fullmatch(item):
            inner = indent + len(text) - len(item)
            lines.appendleft((inner, item))
            found.append(_map(lines, inner))
        else:
            found.append(_scalar(item))
    return found


def _map(lines: _Lines, indent: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("-"):
        match = _KEY.fullmatch(lines.popleft()[1])
        if match is None:
            raise ValueError
        found[match[1]] = _scalar(match[2]) if match[2] else _value(lines, indent)
    return found


def _scalar(text: str) -> Any:
    if text[0] in "\"'":
        if len(text) < 2 or text[-1] != text[0]:
            raise ValueError(text)
        return text[1:-1]
    if text[0] == "[":
        if text[-1] != "]":
            raise ValueError(text)
        return [_scalar(one.strip()) for one in text[1:-1].split(",") if one.strip()]
    if text[0] in "{|>&*!":
        raise ValueError(text)
    return text.partition(" #")[0].rstrip()
