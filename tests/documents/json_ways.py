"""The ways in which blocks of JSON Lines are parsed."""

from __future__ import annotations

import pytest

from shardmill import core
from shardmill.documents import json_blocks

WAYS = ("core", "pyarrow", "line by line")


def take_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks be parsed in this way."""
    if way == "core":
        if not core.available():
            pytest.skip(f"no core: {core.why_not()}")
        return
    monkeypatch.setattr(core, "available", lambda: False)
    if way == "line by line":
        monkeypatch.setattr(json_blocks, "_LARGEST", 0)
