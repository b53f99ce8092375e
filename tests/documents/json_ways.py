"""The ways in which blocks of JSON Lines are parsed."""

from __future__ import annotations

import pytest

from shardmill import core
from shardmill.documents import json_blocks

WAYS = ("core", "pyarrow", "line by line")


def take_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks be parsed in this way, whatever their size."""
    if way == "core":
        if not core.available():
            pytest.skip(f"no core: {core.why_not()}")
        return
    monkeypatch.setattr(core, "available", lambda: False)
    monkeypatch.setattr(json_blocks, "LITTLE", 0 if way == "pyarrow" else 1 << 40)
    monkeypatch.setattr(json_blocks, "FEW", 1)
