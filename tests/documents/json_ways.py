"""How lines of JSON are parsed: by the core with and without vector instructions, and each line by Python alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from shardmill import core
from shardmill.documents import jsonl

WAYS = ("core", "plain C", "line by line")


def take_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lines be parsed in this way."""
    if way == "plain C":
        monkeypatch.setattr(jsonl, "json_lines", partial(core.json_lines, simd=False))
    elif way == "line by line":
        monkeypatch.setattr(jsonl, "json_lines", all_left)


def all_left(raw: bytes, path: Sequence[str]) -> core.JsonLines:
    """No line is taken, so that Python's parser judges each of them."""
    starts = np.cumsum([0, *map(len, raw.split(b"\n"))]) + np.arange(raw.count(b"\n") + 2)
    starts[-1] = len(raw)
    if len(starts) > 1 and starts[-1] == starts[-2]:
        starts = starts[:-1]
    verdicts = np.full(len(starts) - 1, core.LEFT, np.uint8)
    return core.JsonLines(np.empty(0, np.uint8), np.zeros(len(starts), np.int64), verdicts, starts.astype(np.int64))
