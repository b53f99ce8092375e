"""Bounded, from outside: every shape in every container under several limits, on the whole process tree.

A short form runs with every `make test`: each shape and each container at least twice. `make soak` runs all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.meter import Metered, metered
from tests.shapes import CONTAINERS, SEPARATOR, SHAPES

LIMITS = {"400MB": 400_000_000, "512MB": 512_000_000, "1GB": 1_000_000_000}
SLOW = pytest.mark.slow


def _cases() -> Iterator[Any]:
    """All, of which those on two diagonals are short and run always."""
    for i, shape in enumerate(SHAPES):
        for j, container in enumerate(CONTAINERS):
            short = j % len(SHAPES) in (i, (i + 5) % len(SHAPES))
            yield pytest.param(shape, container, id=f"{shape}-{container}", marks=() if short else SLOW)


def prepared(source: Path, out: Path, limit: str) -> Metered:
    """A run with two workers under this limit; BudgetError is answered with the memory that it names."""
    done = metered(
        "prepare", source, "-o", out, "--memory", limit, "--workers", "2", "--val", "0", "--max-bad", "any",
        "--separator", SEPARATOR, "-q",
    )  # fmt: skip
    allowed = LIMITS.get(limit) or int(limit.removesuffix("MB")) * 1_000_000
    assert done.peak <= allowed, f"{done.peak / 1e6:.0f} MB under {limit}\n{done.err}"
    if done.code == 1 and limit in LIMITS:
        named = re.search(r"`--memory (\d+MB)`", done.err)
        assert named, done.err
        assert int(named[1][:-2]) * 1_000_000 > allowed, done.err
        return prepared(source, out, named[1])
    assert done.code == 0, done.err
    return done


def check(shape: str, container: str, scale: int, limits: list[str], folder: Path) -> None:
    source = folder / container
    batches = list(SHAPES[shape](scale))
    CONTAINERS[container](source, batches)
    texts = [text for batch in batches for text in batch.column("text").to_pylist()]
    del batches
    made = set()
    for limit in limits:
        out = folder / limit
        prepared(source, out, limit)
        manifest = json.loads((out / "manifest.json").read_bytes())
        # A null is an empty field in CSV and an empty text in plain text.
        assert manifest["documents"] == sum(1 for text in texts if text)
        assert manifest["documents"] + manifest["empty"] + manifest["rejected"] == len(texts)
        rejects = out / "rejects.jsonl"
        made.add(
            hashlib.sha256(
                (out / "train.bin").read_bytes() + (rejects.read_bytes() if rejects.exists() else b"")
            ).hexdigest()
        )
    assert len(made) == 1


@pytest.mark.parametrize(("shape", "container"), list(_cases()))
def test_no_shape_in_any_container_takes_more_than_the_limit(shape: str, container: str, tmp_path: Path) -> None:
    check(shape, container, 1, ["400MB"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_large_shape_in_any_container_takes_more_than_the_limit(shape: str, container: str, tmp_path: Path) -> None:
    check(shape, container, 6, list(LIMITS), tmp_path)
