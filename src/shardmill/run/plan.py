"""What is to be done: sources in order, tokenizer, options; and a fingerprint of all that can change the bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.options import Options
    from shardmill.storage import Source
    from shardmill.tokens import Tokenizer


@dataclass(frozen=True)
class Plan:
    """Everything that the bytes of a dataset are a function of."""

    sources: list[Source]
    tokenizer: Tokenizer
    options: Options

    def facts(self) -> dict[str, Any]:
        """The plan as JSON-able data; two plans with the same facts give the same bytes."""
        return {
            "sources": [[s.name, s.size, s.version] for s in self.sources],
            "tokenizer": self.tokenizer.describe(),
            "options": self.options.shaping(),
        }

    @property
    def name(self) -> str:
        """Prefix of shard names: as given, or from the first source."""
        if self.options.name:
            return self.options.name
        first = PurePath(self.sources[0].name.rstrip("/")).name.split(".")[0] if self.sources else ""
        kept = "".join(c if c.isalnum() or c in "-_" else "_" for c in first)
        return kept if kept.strip("_-") else "data"

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all sources; None when one is a stream of unknown size."""
        sizes = [s.size for s in self.sources]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def fingerprint(facts: dict[str, Any]) -> str:
    """A hash of the plan's facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two plans' facts, in words; the first few."""
    found = []
    for name, value in now["options"].items():
        was = before["options"].get(name)
        if was != value:
            found.append(f"--{name.replace('_', '-')} was {_said(was)} and is now {_said(value)}")
    if before["tokenizer"] != now["tokenizer"]:
        was, new = before["tokenizer"], now["tokenizer"]
        keys = [key for key in new if was.get(key) != new[key]]
        found.append(f"the tokenizer was `{was.get('name')}` and is now `{new['name']}` ({', '.join(keys)} differ)")
    were = {name: (size, version) for name, size, version in before["sources"]}
    for name, size, version in now["sources"]:
        if name not in were:
            found.append(f"source `{name}` is new")
        elif were[name] != (size, version):
            found.append(f"source `{name}` has changed ({_change(were[name], (size, version))})")
    names = {name for name, _, _ in now["sources"]}
    found += [f"source `{name}` is gone" for name in were if name not in names]
    if not found and before != now:
        found.append("the order of the sources has changed")
    return found if len(found) <= 5 else [*found[:5], f"and {len(found) - 5:,} more"]


def _said(value: Any) -> str:
    return "not given" if value is None else f"`{','.join(value) if isinstance(value, list) else value}`"


def _change(was: tuple[int | None, str], now: tuple[int | None, str]) -> str:
    return (
        f"{was[0]:,} bytes, now {now[0]:,}" if was[0] != now[0] and None not in (was[0], now[0]) else "another version"
    )
