"""Parts in an object store: the bytes of one run, also with late copies, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.cluster import make_part, merge, missing_parts, plan_parts, processes, read_part_plan, several
from shardmill.cluster.planning import store_parts
from shardmill.errors import OutputError, UsageError
from tests.corpus import contents, documents, write_jsonl
from tests.object_store import Bucket, FaultyWay, bucket, s3_server  # noqa: F401 - fixtures

pytestmark = pytest.mark.thorough

OPTIONS: dict[str, Any] = {"val": 0.1, "format": "shards", "shard_tokens": 20_000}
MEMORY = "8GB"  # more than the tests' own process holds already


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", documents(300, seed=2))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Says on which machine the next step runs: each has a disk of its own."""

    def machine(name: object) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine-{name}"))

    machine(0)
    return machine


def test_parts_of_several_machines_give_the_bytes_of_one(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
) -> None:
    shardmill.prepare(source, tmp_path / "one", memory=MEMORY, **OPTIONS)
    url = bucket.url()
    plan = plan_parts(source, url, parts=3, **OPTIONS)
    for name, number in enumerate((2, 0, 1)):
        machines(name)
        assert missing_parts(read_part_plan(url)) != []
        assert make_part(url, number, memory=MEMORY).made is True
        machines("another")
        assert make_part(url, number, memory=MEMORY).made is False
    assert missing_parts(plan) == []
    machines("last")
    merge(url, memory=MEMORY)
    assert bucket.contents() == contents(tmp_path / "one")
    assert [name for name in bucket.names() if name.startswith(".parts")] == [] and bucket.uploads() == []


def test_several_processes_of_one_run_write_to_a_store_as_one_does(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shardmill.prepare(source, tmp_path / "one", memory=MEMORY, **OPTIONS)
    monkeypatch.setattr(processes, "LEAST_TEXT", 1)
    monkeypatch.setattr(processes, "SMALLEST_PART", 20_000)
    url, planned = bucket.url(), list[int]()
    monkeypatch.setattr(several, "store_parts", lambda *plan: planned.append(1) or store_parts(*plan))
    shardmill.prepare(source, url, workers=20, memory=MEMORY, **OPTIONS)
    assert planned and bucket.contents() == contents(tmp_path / "one")
    assert [name for name in bucket.names() if name.startswith(".parts")] == [] and bucket.uploads() == []
    assert shardmill.prepare(source, url, workers=20, memory=MEMORY, **OPTIONS).already


def test_a_late_copy_of_a_part_changes_nothing_and_leaves_nothing(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shardmill.cluster.place import Place

    url = bucket.url()
    plan_parts(source, url, parts=2, **OPTIONS)
    publish, woken = Place.publish, list[str]()

    def late(self: Place, name: str, folder: Path, manifest: Any, **more: Any) -> bool:
        if not woken:
            woken.append(name)
            machines("faster")
            assert make_part(url, int(name), memory=MEMORY).made is True
        return publish(self, name, folder, manifest, **more)

    monkeypatch.setattr(Place, "publish", late)
    assert make_part(url, 1, memory=MEMORY).made is False
    owners = {name.split("/")[2] for name in bucket.names() if name.startswith(".parts/00001/") and name.count("/") > 2}
    assert len(owners) == 1
    make_part(url, 0, memory=MEMORY)
    merge(url, memory=MEMORY)
    shardmill.prepare(source, tmp_path / "one", memory=MEMORY, **OPTIONS)
    assert bucket.contents() == contents(tmp_path / "one")


def test_missing_and_damaged_parts_are_named(source: Path, bucket: Bucket, machines: Callable[[object], None]) -> None:  # noqa: F811
    url = bucket.url()
    plan_parts(source, url, parts=2, **OPTIONS)
    make_part(url, 0, memory=MEMORY)
    with pytest.raises(UsageError, match="1 of 2 parts are missing: 1"):
        merge(url, memory=MEMORY)
    make_part(url, 1, memory=MEMORY)
    (name,) = [name for name in bucket.names() if name.startswith(".parts/00001/") and name.endswith("train.bin")]
    data = bucket.read(name)
    bucket.put(name, bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(OutputError, match="part 1 is damaged"):
        merge(url, memory=MEMORY)
    bucket.put(name, data)
    assert merge(url, memory=MEMORY).manifest["documents"] > 0


@pytest.mark.parametrize("format", ["shards", "mds"])
def test_kept_parts_are_uploaded_under_their_final_names(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
    format: str,
) -> None:
    options: dict[str, Any] = {**OPTIONS, "format": format, "keep_parts": True, "parts": 3}
    plan_parts(source, tmp_path / "here", **options)
    url = bucket.url()
    plan_parts(source, url, **options)
    for number in (2, 0, 1, 2):
        make_part(tmp_path / "here", number, memory=MEMORY)
        machines(number)
        make_part(url, number, memory=MEMORY)
    merge(tmp_path / "here")
    machines("last")
    merge(url, keep_parts=True)
    assert bucket.contents() == contents(tmp_path / "here")
    assert [name for name in bucket.names() if name.startswith(".parts")] == [] and bucket.uploads() == []


def test_a_kept_shard_that_is_gone_from_the_store_is_named(
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
) -> None:
    url = bucket.url()
    plan_parts(source, url, parts=2, keep_parts=True, **OPTIONS)
    for number in range(2):
        make_part(url, number, memory=MEMORY)
    [lost, *_] = [name for name in bucket.names() if name.startswith("train_100001")]
    data = bucket.read(lost)
    bucket.delete(lost)
    with pytest.raises(OutputError, match=lost):
        merge(url)
    bucket.put(lost, data)
    assert merge(url).manifest["documents"] > 0


def test_a_complete_dataset_counts_also_where_its_parts_cannot_be_deleted(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shardmill.prepare(source, tmp_path / "one", memory=MEMORY, **OPTIONS)
    url = bucket.url()
    plan_parts(source, url, parts=2, **OPTIONS)
    for number in range(2):
        make_part(url, number, memory=MEMORY)

    complete = list[str]()

    def refused(method: str, path: str) -> int | None:
        if method == "PUT" and path.partition("?")[0].endswith("/out/manifest.json"):
            complete.append(path)
        return 403 if complete and (method == "DELETE" or (method == "POST" and "delete" in path)) else None

    with FaultyWay(bucket.server, refused) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        assert merge(url, memory=MEMORY).manifest["documents"] > 0
    assert "cannot be deleted" in caplog.text
    there = {name: data for name, data in bucket.contents().items() if not name.startswith(".parts/")}
    assert there == contents(tmp_path / "one")


def test_parts_are_made_in_the_cache_that_was_given_and_killed_copies_are_removed(
    tmp_path: Path,
    source: Path,
    bucket: Bucket,  # noqa: F811
    machines: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shardmill.cluster.place import Place

    url, cache, made_in = bucket.url(), tmp_path / "cache", list[Path]()
    plan_parts(source, url, parts=2, **OPTIONS)
    killed = Place(url, cache).work("00001", 0)
    (killed / "train.bin.partial").write_bytes(b"12")
    make_part(url, 1, memory=MEMORY)
    publish = Place.publish

    def seen(self: Place, name: str, folder: Path, manifest: Any, **more: Any) -> bool:
        made_in.append(folder)
        return publish(self, name, folder, manifest, **more)

    monkeypatch.setattr(Place, "publish", seen)
    make_part(url, 0, memory=MEMORY, cache=str(cache))
    assert made_in and made_in[0].is_relative_to(cache) and not killed.exists()
