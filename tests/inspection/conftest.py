"""Small places, so that some megabytes are much more than a sample; and a count of what is read."""

from __future__ import annotations

import os
from typing import Any

import pytest

from shardmill.documents import delimited
from shardmill.inspection import places
from shardmill.storage import compressed
from shardmill.storage import feeds as storage


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of 32 kB instead of 512, and blocks to match: so some megabytes are much more than a sample."""
    monkeypatch.setattr(places, "UNIT", 1 << 15)
    block = storage.STREAM_BLOCK >> 4
    for module in (storage, compressed):
        monkeypatch.setattr(module, "STREAM_BLOCK", block)
    monkeypatch.setattr(delimited, "BLOCK", delimited.BLOCK >> 4)
    monkeypatch.setattr(compressed, "INPUT_BLOCK", compressed.INPUT_BLOCK >> 4)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many bytes come from files, and how many files are opened."""
    counted = {"bytes": 0, "opened": 0}
    pread, opened = os.pread, os.open

    def count(descriptor: int, n: int, offset: int) -> bytes:
        got = pread(descriptor, n, offset)
        counted["bytes"] += len(got)
        return got

    def count_open(*arguments: Any, **more: Any) -> int:
        counted["opened"] += 1
        return opened(*arguments, **more)

    monkeypatch.setattr(os, "pread", count)
    monkeypatch.setattr(os, "open", count_open)
    return counted
