"""From a hub into an object store: nothing of a run but its command is on the machine that does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import SourceError
from tests.corpus import contents, documents
from tests.documents.away import REPO, jsonl, point_at
from tests.hub import Fault, Hub
from tests.object_store import Bucket, bucket, s3_server

__all__ = ["bucket", "s3_server"]

OPTIONS: dict[str, Any] = {"format": "shards", "shard_tokens": 200_000, "val": 0.1, "name": "web"}


def test_another_machine_goes_on_with_the_commit_that_a_run_began_with(
    tmp_path: Path, bucket: Bucket, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = jsonl(documents(30_000, seed=1)), jsonl(documents(30_000, seed=2))
    point_at(hub, monkeypatch)
    commit = hub.add(REPO, {"x.jsonl": before})
    source = f"hf://datasets/{REPO}/x.jsonl"
    shardmill.prepare(source, tmp_path / "local", **OPTIONS)
    hub.faults += [
        Fault("/cdn/", skip=2, times=1000, status=404),
        Fault("/resolve/", skip=1, times=1000, status=404),
    ]
    with pytest.raises(SourceError):
        shardmill.prepare(source, bucket.url(), **OPTIONS)
    plan = json.loads(bucket.read(".shardmill/journal.json"))["plan"]
    assert json.loads(bucket.read(plan))["commits"] == {f"hf://datasets/{REPO}@main": commit}
    hub.faults.clear()
    hub.commit(REPO, {"x.jsonl": after, "y.jsonl": after})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    shardmill.prepare(source, bucket.url(), **OPTIONS)
    assert bucket.contents() == contents(tmp_path / "local")
