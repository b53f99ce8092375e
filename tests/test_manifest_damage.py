"""A manifest has a checksum of its own: one changed byte is found, wherever it is, and nothing ends in a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.dataset import verify
from shardmill.errors import DamageError, ShardmillError
from shardmill.write import parse_manifest
from tests.corpus import documents, write_jsonl
from tests.object_store import Bucket, bucket, s3_server

pytestmark = pytest.mark.thorough

__all__ = ["bucket", "s3_server"]

OPTIONS: dict[str, dict[str, Any]] = {
    "two formats": {"format": ["shards", "nanogpt"], "val": 0.3, "shard_tokens": 10_000},
    "with an index": {"format": "megatron", "val": "first:3000"},
    "in folders": {"format": "mds", "val": 0.3, "limit": 100},
}


@pytest.fixture(params=OPTIONS)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with rejects, replaced bytes and two sources."""
    source = write_jsonl(tmp_path / "a.jsonl", documents(120))
    with open(source, "a") as file:
        file.write("not json\n")
    (tmp_path / "b.txt").write_bytes(b"not all is \xff UTF-8\n" * 50 + b"but most of this is\n" * 5000)
    shardmill.prepare([source, tmp_path / "b.txt"], tmp_path / "out", **OPTIONS[request.param])
    return tmp_path / "out"


def _flips(whole: bytes) -> Iterator[bytes]:
    """Every byte of a manifest changed: one bit of it, its case or sign, or into what JSON takes for space."""
    for at, byte in enumerate(whole):
        for other in {byte ^ (1 << at % 8), byte ^ 0x20, 0x20, 0x0A, ord("9")} - {byte}:
            yield whole[:at] + bytes([other]) + whole[at + 1 :]


def _assert_found(folder: Path | str, change: str) -> None:
    """`verify` reports damage, or raises an error that is not a traceback."""
    try:
        damage = verify(folder, sample=0).damage
    except ShardmillError as error:
        damage = [str(error)]
    assert damage, change


def test_a_change_of_any_byte_is_found(out: Path) -> None:
    whole = (out / "manifest.json").read_bytes()
    parse_manifest(whole, "here")
    for changed in _flips(whole):
        with pytest.raises(DamageError):
            parse_manifest(changed, "here")


def test_verify_and_open_find_a_changed_byte(out: Path) -> None:
    file = out / "manifest.json"
    whole = file.read_bytes()
    for changed in random.Random(1).sample(list(_flips(whole)), 150):
        file.write_bytes(changed)
        _assert_found(out, repr(changed))
        with pytest.raises(DamageError):
            shardmill.open(out)
    for removed in (whole[:-1], whole + b"\n", whole + b"{}", whole[1:], b"", whole[: len(whole) // 2]):
        file.write_bytes(removed)
        _assert_found(out, repr(removed))


def _damaged_entries(value: Any, edited: Callable[[], str]) -> Iterator[str]:
    """The document with each key renamed, each entry left out and each value of another type, one at a time."""
    holders = [value]
    while holders:
        holder = holders.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            was = holder[key]
            if isinstance(was, (dict, list)):
                holders.append(was)
            for other in (None, "x", -1, 1.5, True, [], {}, [1], {"a": 1}):
                holder[key] = other
                yield edited()
            holder[key] = was
            if isinstance(holder, dict):
                del holder[key]
                yield edited()
                holder[f"{key}x"] = was
                yield edited()
                del holder[f"{key}x"]
                holder[key] = was


@pytest.mark.parametrize("checked", [True, False])
def test_no_damage_to_an_entry_ends_in_a_traceback(out: Path, checked: bool) -> None:
    manifest = json.loads((out / "manifest.json").read_bytes())
    if not checked:  # as earlier releases wrote it: the change may go unnoticed where nothing else says the same
        del manifest["sha256"]
    for edited in random.Random(2).sample(list(_damaged_entries(manifest, lambda: json.dumps(manifest))), 150):
        (out / "manifest.json").write_text(edited)
        if checked:
            _assert_found(out, edited)
            continue
        with suppress(ShardmillError):
            verify(out, sample=5)
        with suppress(ShardmillError):
            shardmill.open(out)


def test_a_manifest_of_an_earlier_release_is_read_without_a_checksum(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert list(manifest)[-1] == "sha256"
    del manifest["sha256"], manifest["skipped"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert not verify(out, sample=0).damage
    assert json.loads(json.dumps(manifest)) == {
        **shardmill.open(out).manifest,
        "sources": list(shardmill.open(out).manifest["sources"]),
    }


def test_a_changed_byte_of_a_manifest_in_a_store_is_found(bucket: Bucket, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(60))
    url = bucket.url("out")
    shardmill.prepare(source, url, val=0.3)
    whole = bucket.read("manifest.json")
    assert not verify(url, sample=0).damage
    for changed in random.Random(3).sample(list(_flips(whole)), 60):
        bucket.put("manifest.json", changed)
        _assert_found(url, repr(changed))


def test_the_manifest_of_a_part_has_a_checksum_too(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    plan_parts(source, tmp_path / "out", parts=2, val=0.3)
    for number in range(2):
        make_part(tmp_path / "out", number, memory="8GB")
    file = next((tmp_path / "out").rglob("00001/manifest.json"))
    whole = file.read_bytes()
    for changed in random.Random(4).sample(list(_flips(whole)), 40):
        file.write_bytes(changed)
        with pytest.raises(ShardmillError):
            merge(tmp_path / "out", memory="8GB")
    file.write_bytes(whole)
    merge(tmp_path / "out", memory="8GB")
    assert not verify(tmp_path / "out").damage
