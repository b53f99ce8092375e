"""Many sources: what a run keeps of them is small, and what it writes of them is what it always was."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import DamageError
from shardmill.source_list import Sources
from shardmill.storage import FolderStore, Source
from shardmill.storage.source import sorted_rows
from shardmill.write.facts import SourceFacts, differences, facts_json, fingerprint, read_facts
from shardmill.write.manifest import SourceLines, json_line, manifest_json, parse_manifest
from tests.meter import metered

NASTY = ['], "tokenizer": {"name": 1', '"', "\\", "\udcff", "a\nb", "é", "💡", "], [", "\x7f", '"sources": [', " ]"]


def some_sources(count: int) -> Iterator[Source]:
    draw = random.Random(count)
    for i in range(count):
        name = f"folder/{i:05}{draw.choice(NASTY)}.txt" if i % 3 else f"s3://bucket/{i}"
        yield Source(name, name, draw.choice([None, 0, i, 1 << 40]), draw.choice(["", str(10**18 + i), '"etag"']))


def facts_of(rows: list[tuple[Any, ...]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts as a plan has them, and the same as plain data."""
    others = {"tokenizer": {"name": "gpt2", "eot": 50256}, "options": {"val": "0", "format": ["npy"], "name": None}}
    return {"sources": SourceFacts(lambda: iter(rows)), **others}, {"sources": [list(row) for row in rows], **others}


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 3000])
def test_a_packed_list_of_sources_is_that_list(count: int) -> None:
    plain = list(some_sources(count))
    packed = Sources(plain)
    assert list(packed) == plain and len(packed) == count
    for start in {0, 1, 5, 1023, 1024, 1025, count - 1, count}:
        assert list(packed.iter_from(max(0, start))) == plain[max(0, start) :]
        assert packed[start : start + 3] == plain[start : start + 3]
    assert all(packed[i] == plain[i] for i in range(-count, count, 97))
    with pytest.raises(IndexError):
        packed[count]
    assert packed.remote == any(source.remote for source in plain)
    sizes = [source.size for source in plain]
    assert packed.total_bytes == (None if None in sizes else sum(size or 0 for size in sizes))
    assert packed.bytes_before(count // 2) == sum(size or 0 for size in sizes[: count // 2])


@pytest.mark.parametrize("count", [0, 9, 10, 11, 95])
def test_rows_are_sorted_in_batches_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("shardmill.storage.source._BATCH", 10)
    rows = [(f"{random.Random(i).random()}", i) for i in range(count)]
    assert list(sorted_rows(rows)) == sorted(rows)


@pytest.mark.parametrize("count", [0, 1, 1024, 3000])
def test_the_fingerprint_and_the_plan_are_those_of_plain_data(tmp_path: Path, count: int) -> None:
    facts, plain = facts_of([(s.name, s.size, s.version) for s in some_sources(count)])
    written = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    assert fingerprint(facts) == hashlib.sha256(written).hexdigest()
    path = tmp_path / "plan.json"
    path.write_bytes(b"".join(facts_json(facts)))
    assert json.loads(path.read_bytes()) == plain
    back = read_facts(FolderStore(path.parent), path.name)
    assert back is not None
    assert [list(row) for row in back["sources"]] == plain["sources"]
    assert {**back, "sources": 0} == {**plain, "sources": 0}
    assert fingerprint(back) == fingerprint(facts)
    path.write_text(json.dumps(plain, indent=1))  # by another hand
    again = read_facts(FolderStore(path.parent), path.name)
    assert again is not None and fingerprint(again) == fingerprint(facts)


def test_a_plan_is_read_in_batches_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, plain = facts_of([(s.name, s.size, s.version) for s in some_sources(60)])
    path = tmp_path / "plan.json"
    for size in (1, 2, 59, 60, 61):
        monkeypatch.setattr("shardmill.write.facts._BATCH", size)
        path.write_bytes(b"".join(facts_json(facts)))
        back = read_facts(FolderStore(path.parent), path.name)
        assert back is not None and [list(row) for row in back["sources"]] == plain["sources"]


def test_a_plan_that_was_cut_off_is_none(tmp_path: Path) -> None:
    facts, _ = facts_of([("a", 1, "")])
    path = tmp_path / "plan.json"
    for size in range(len(b"".join(facts_json(facts)))):
        path.write_bytes(b"".join(facts_json(facts))[:size])
        assert read_facts(FolderStore(path.parent), path.name) is None


def slow_differences(before: list[tuple[str, Any, str]], now: list[tuple[str, Any, str]]) -> list[str]:
    """With all names in sets. A name may occur twice: addresses that differ in their query have the same."""
    names_before, names = {name for name, _, _ in before}, {name for name, _, _ in now}
    differ = [name for name, *rest in now if (name, *rest) not in before]
    found = [f"source `{name}` {'has changed' if name in names_before else 'is new'}" for name in differ]
    found += [f"source `{name}` is gone" for name, _, _ in before if name not in names]
    if not found and before != now:
        found.append("the order of the sources has changed")
    return found if len(found) <= 5 else [*found[:5], f"and {len(found) - 5:,} more"]


@pytest.mark.parametrize("seed", range(60))
def test_differences_of_sources_are_those_of_the_slow_twin(seed: int) -> None:
    draw = random.Random(seed)
    before = [(draw.choice("abcdefgh"), draw.choice([1, 2]), "v") for _ in range(draw.randrange(6))]
    now = [row if draw.random() < 0.6 else (draw.choice("abcxyz"), 1, "v") for row in before if draw.random() < 0.8]
    draw.shuffle(now) if seed % 3 == 0 else None
    told = differences(facts_of(before)[0], facts_of(now)[0])
    assert [words.split(" (")[0] for words in told] == slow_differences(before, now)


@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
def test_a_manifest_is_written_and_read_in_pieces_as_it_would_be_whole(count: int) -> None:
    sources = [{"name": f"{i}{NASTY[i % len(NASTY)]}", "bytes": i, "documents": 1} for i in range(count)]
    manifest: Any = {
        "fingerprint": "f",
        "format": "nanogpt",
        "dtype": "uint16",
        "eot": "after",
        "splits": {},
        "documents": count,
        "empty": 0,
        "rejected": 0,
        "options": {"sources": []},
        "tokenizer": {"name": "x", "sha256": "y", "vocab_size": 9, "eot": None},
        "sources": SourceLines(map(json_line, sources)),
    }
    written = b"".join(manifest_json(manifest))
    assert json.loads(written) == {**manifest, "sources": sources, "sha256": json.loads(written)["sha256"]}
    back = parse_manifest(written, "here")
    assert back == manifest and back["sources"] == sources and len(back["sources"]) == count
    assert back["sources"][count // 2 : count // 2 + 2] == sources[count // 2 : count // 2 + 2]
    assert b"".join(manifest_json(back)) == written
    assert parse_manifest(json.dumps({**manifest, "sources": sources}).encode(), "here") == manifest  # by another hand


def test_a_damaged_line_of_a_source_is_damage(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    shardmill.prepare(tmp_path / "a.txt", tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"documents": 1, "empty": 0, "rejected"', b'"documents": 1, "empty'))
    with pytest.raises(DamageError, match=r"manifest.json is damaged"):
        list(shardmill.open(tmp_path / "out").manifest["sources"])
    assert any("does not match its own checksum" in one for one in verify(tmp_path / "out").damage)


def test_another_plan_of_many_sources_is_refused_by_name(tmp_path: Path) -> None:
    source = write(tmp_path / "in", 3000)
    result = shardmill.prepare(source, tmp_path / "out")
    assert shardmill.prepare(source, tmp_path / "out").already
    assert [os.path.basename(one["name"]) for one in result.manifest["sources"]] == sorted(os.listdir(source))
    (source / "0001234.txt").write_text("something else")
    (source / "new.txt").write_text("new")
    with pytest.raises(shardmill.ShardmillError, match=r"0001234.txt` has changed .*; source `.*new.txt` is new"):
        shardmill.prepare(source, tmp_path / "out")


def write(
    folder: Path,
    count: int,
    text: bytes = b"The quick brown fox jumps over the lazy dog, and then it sleeps.\n",
    first: int = 0,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(first, count):
        file = os.open(f"{folder}/{i:07}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, text)
        os.close(file)
    return folder


def test_a_source_takes_few_bytes_of_memory_and_the_report_of_the_most_is_true(tmp_path: Path) -> None:
    options = ("--memory", "400MB", "--workers", "1", "--json")
    source = write(tmp_path / "in", 10_000, b"a\n")
    few = metered("prepare", source, "-o", tmp_path / "few", *options)
    write(source, 30_000, b"a\n", first=10_000)
    many = metered("prepare", source, "-o", tmp_path / "many", *options)
    assert few.code == many.code == 0, many.err
    assert (many.peak - few.peak) / 20_000 < 400  # 97; with an object for each source it was 947
    for run in (few, many):
        assert run.peak <= json.loads(run.out)["peak_memory"] * 1.01


@pytest.mark.slow
def test_a_million_tiny_files_stay_within_400_mb(tmp_path: Path) -> None:
    for i in range(1000):
        write(tmp_path / "in" / f"{i:03}", 1000)
    run = metered("prepare", tmp_path / "in", "-o", tmp_path / "out", "--memory", "400MB", "--workers", "2", "--json")
    assert run.code == 0, run.err
    assert run.peak < 400_000_000
    assert json.loads(run.out)["documents"] == 1_000_000
    again = metered("prepare", tmp_path / "in", "-o", tmp_path / "out", "--memory", "400MB", "--json")
    assert again.code == 0 and again.peak < 400_000_000, again.err
    (tmp_path / "in" / "new.txt").write_text("new")
    refused = metered("prepare", tmp_path / "in", "-o", tmp_path / "out", "--memory", "400MB")
    assert refused.code == 1 and "new.txt` is new" in refused.err and refused.peak < 400_000_000
    for command in (["verify", tmp_path / "out"], ["inspect", tmp_path / "in"]):
        assert metered(*command).peak < 400_000_000
