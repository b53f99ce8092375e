"""A plan cut into parts, made in any order and merged: the bytes of one run, for every kind of source and format."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.cluster import make_part, merge, merging, missing_parts, plan_parts, read_part_plan
from shardmill.cluster.merging import merge_parts
from shardmill.cluster.part import LoadedTokenizer
from shardmill.dataset import verify
from shardmill.errors import MismatchError, OutputError, ShardmillError, UsageError
from shardmill.options import FORMATS
from shardmill.tokens import Tokenizer
from shardmill.write import Progress, Result
from tests.corpus import contents, documents, write_jsonl
from tests.crashing import parts_of_this_process
from tests.meter import SHARDMILL, metered_command
from tests.tokens.vocabularies import rank_file

TEXTS = documents(700, seed=6)
MEMORY = "8GB"  # more than the tests' own process holds already


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write_jsonl(folder / "a.jsonl", TEXTS)
    lines = (folder / "a.jsonl").read_text().splitlines(keepends=True)
    lines[::97] = ["{bad\n"] * len(lines[::97])
    (folder / "bad.jsonl").write_text("".join(lines))
    (folder / "b.txt").write_text("\n\n".join(TEXTS))
    (folder / "tiny").mkdir()
    for i, text in enumerate(TEXTS[:120]):
        (folder / "tiny" / f"{i:04}.txt").write_text(text)
    pq.write_table(pa.table({"text": TEXTS}), folder / "c.parquet", row_group_size=50)
    return folder


CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "json lines, some bad": (["bad.jsonl"], {"max_bad": "any", "val": 0.1}),
    "text without a separator": (["b.txt", "b.txt"], {"val": 0.3}),
    "text with a separator": (["b.txt"], {"separator": r"\n\n", "val": 0.2}),
    "lines of text": (["b.txt"], {"separator": r"\n", "val": 0.2}),
    "no validation split": (["b.txt"], {"val": 0}),
    "the first tokens": (["c.parquet"], {"val": "first:9k"}),
    "the end of each file": (["b.txt", "b.txt"], {"val": "tail:0.3"}),
    "tiny files": (["tiny"], {"val": 0.2}),
    "parquet": (["c.parquet"], {"val": 0.2}),
    "a number of documents": (["a.jsonl", "c.parquet"], {"limit": 900}),
    "a number of tokens": (["a.jsonl", "c.parquet"], {"limit": "60k tokens"}),
    "all kinds": (["bad.jsonl", "tiny", "b.txt", "c.parquet"], {"max_bad": "any", "format": ["nanogpt", "llmc"]}),
}


def made_in_parts(names: Any, out: Path, parts: int, seed: int = 0, **options: Any) -> Result:
    plan = plan_parts(names, out, parts=parts, **options)
    numbers = [part.number for part in plan.parts]
    random.Random(seed).shuffle(numbers)
    for number in [*numbers, numbers[0]]:
        make_part(out, number, memory=MEMORY)
    assert missing_parts(read_part_plan(out)) == []
    return merge(out, memory=MEMORY)


@pytest.mark.parametrize("counts", [(7,), pytest.param((1, 2, 3, 40), marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_parts_gives_the_bytes_of_one_run(
    sources: Path, tmp_path: Path, case: str, counts: tuple[int, ...]
) -> None:
    listed, options = CASES[case]
    names = [sources / name for name in listed]
    shardmill.prepare(names, tmp_path / "one", memory=MEMORY, **options)
    expected = contents(tmp_path / "one")
    for parts in counts:
        out = tmp_path / str(parts)
        made_in_parts(names, out, parts, seed=parts, **options)
        assert contents(out) == expected, f"{parts} parts"
        shutil.rmtree(out)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_can_be_made_in_parts(sources: Path, tmp_path: Path, format: str) -> None:
    options: dict[str, Any] = {"format": format, "val": 0.1, "shard_tokens": 20_000}
    shardmill.prepare(sources / "a.jsonl", tmp_path / "one", memory=MEMORY, **options)
    made_in_parts(sources / "a.jsonl", tmp_path / "out", 5, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.parametrize("format", ["megatron", "litdata"])
def test_a_format_with_a_type_of_its_own_for_ids_can_be_made_in_parts(
    sources: Path, tmp_path: Path, format: str
) -> None:
    """Ids of 32 bits are unsigned in a part, and signed in these formats."""
    tokenizer = str(rank_file("cl100k_base.tiktoken"))
    options: dict[str, Any] = {"format": format, "val": 0.1, "shard_tokens": 20_000, "tokenizer": tokenizer}
    shardmill.prepare(sources / "a.jsonl", tmp_path / "one", memory=MEMORY, **options)
    made_in_parts(sources / "a.jsonl", tmp_path / "out", 3, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.fixture
def parts(sources: Path, tmp_path: Path) -> Path:
    """A plan whose four parts are all made."""
    out = tmp_path / "out"
    for part in plan_parts(sources / "a.jsonl", out, parts=4, val=0.1).parts:
        make_part(out, part.number, memory=MEMORY)
    return out


def test_the_same_plan_again_changes_nothing_and_another_is_refused(sources: Path, parts: Path) -> None:
    def state() -> dict[Path, bytes]:
        return {path: hashlib.sha256(path.read_bytes()).digest() for path in parts.rglob("*") if path.is_file()}

    before = state()
    plan_parts(sources / "a.jsonl", parts, parts=4, val=0.1)
    assert make_part(parts, 2).made is False
    assert state() == before
    for count, val in ((5, 0.1), (4, 0.2)):
        with pytest.raises(MismatchError):
            plan_parts(sources / "a.jsonl", parts, parts=count, val=val)


@pytest.mark.parametrize("number", [0, 3])
def test_a_missing_part_is_named(parts: Path, number: int) -> None:
    shutil.rmtree(parts / ".parts" / f"{number:05}")
    assert missing_parts(read_part_plan(parts)) == [number]
    with pytest.raises(UsageError, match=f"1 of 4 parts are missing: {number}") as caught:
        merge(parts, memory=MEMORY)
    assert f"--part {number}" in caught.value.hint
    assert not (parts / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *itertools.product(["train.bin", "val.bin", "documents/train.npy"], ["shorter", "in the middle", "at the end"]),
        ("documents/val.npy", "at the end"), ("manifest.json", "shorter"), ("manifest.json", "at the end"),
    ],
)  # fmt: skip
def test_a_damaged_part_is_named_and_can_be_made_again(
    sources: Path, parts: Path, tmp_path: Path, name: str, how: str
) -> None:
    (path,) = (parts / ".parts" / "00002").rglob(name)
    data = path.read_bytes()
    at = len(data) // 2 if how == "in the middle" else len(data) - 2
    path.write_bytes(data[: len(data) // 2] if how == "shorter" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(ShardmillError, match="part 2") as caught:
        merge(parts, memory=MEMORY)
    assert isinstance(caught.value, (OutputError, MismatchError)) and "--part 2" in caught.value.hint
    assert not (parts / "manifest.json").exists()
    shutil.rmtree(parts / ".parts" / "00002")
    make_part(parts, 2, memory=MEMORY)
    merge(parts, memory=MEMORY)
    shardmill.prepare(sources / "a.jsonl", tmp_path / "one", memory=MEMORY, val=0.1)
    assert contents(parts) == contents(tmp_path / "one")


def test_a_part_of_another_plan_is_named(sources: Path, parts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    plan_parts(sources / "a.jsonl", other, parts=4, val=0.2)
    make_part(other, 1, memory=MEMORY)
    shutil.rmtree(parts / ".parts" / "00001")
    shutil.copytree(other / ".parts" / "00001", parts / ".parts" / "00001")
    with pytest.raises(MismatchError, match="part 1 is of another plan"):
        merge(parts, memory=MEMORY)


@pytest.mark.parametrize("merged", [False, True])
def test_a_second_copy_that_comes_late_changes_nothing(
    sources: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    """One that had begun before its part was published elsewhere; also where all was merged meanwhile."""
    from shardmill.cluster.place import Place

    out = tmp_path / "late"
    plan_parts(sources / "a.jsonl", out, parts=4, val=0.1)
    publish = Place.publish

    def asleep(self: Place, name: str, folder: Path, manifest: Any, **more: Any) -> bool:
        for other in range(4):
            shutil.copytree(parts / ".parts" / f"{other:05}", out / ".parts" / f"{other:05}")
        if merged:
            merge(out, memory=MEMORY)
        return publish(self, name, folder, manifest, **more)

    monkeypatch.setattr(Place, "publish", asleep)
    assert make_part(out, 2, memory=MEMORY).made is False
    merge(out, memory=MEMORY)
    merge(parts, memory=MEMORY)
    assert contents(out) == contents(parts)


def test_a_disk_that_is_too_small_for_the_merge_is_said_with_what_helps_here(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(parts))
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 0, -1))  # the merge needs no more than the parts
        with pytest.raises(OutputError, match="the output would take") as error:
            merge(parts)
    assert error.value.hint == "free some space and run the same command again"
    assert merge(parts).manifest["documents"]


def test_the_engines_of_a_part_are_those_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, new_engine = [], Tokenizer.engine

    def counted(tokenizer: Tokenizer) -> Any:
        made.append(new_engine(tokenizer))
        return made[-1]

    monkeypatch.setattr(Tokenizer, "engine", counted)
    source = tmp_path / "long.jsonl"
    source.write_bytes(write_jsonl(tmp_path / "short.jsonl", TEXTS).read_bytes() * 300)
    plan, loaded = plan_parts(source, tmp_path / "out", parts=4), LoadedTokenizer()
    for number in missing_parts(plan):
        make_part(tmp_path / "out", number, workers=2, memory=MEMORY, loaded=loaded)
    assert 1 <= len(made) <= 2
    assert {id(engine) for engine in loaded.engines} == {id(engine) for engine in made}


def test_there_is_no_such_part(parts: Path) -> None:
    with pytest.raises(UsageError, match="there is no part 4"):
        make_part(parts, 4)


def test_without_a_plan_nothing_can_be_made_or_merged(tmp_path: Path) -> None:
    for call in (lambda: make_part(tmp_path, 0), lambda: merge(tmp_path)):
        with pytest.raises(UsageError, match="no plan"):
            call()


def test_a_merged_dataset_says_so_when_it_is_merged_again(parts: Path) -> None:
    first = merge(parts, memory=MEMORY)
    assert not first.already and merge(parts).already
    assert not (parts / ".parts").exists()
    assert json.loads((parts / "manifest.json").read_text())["documents"] == first.manifest["documents"]


def rolling(source: Path, out: Path, parts: int, **options: Any) -> Any:
    """Merge parts that are made as the merge comes to them; return them."""
    plan = plan_parts(source, out, parts=parts, **options)
    made = parts_of_this_process(plan, MEMORY)
    made.left = []
    manifest = made.manifest

    def asked(number: int) -> Any:
        made.left.append([path.parent.name for path in sorted((out / ".parts").glob("0*/train.bin"))])
        return manifest(number)

    made.manifest = asked
    merge_parts(made, plan, Progress(), memory=MEMORY)
    return made


def test_parts_are_used_and_removed_while_others_are_still_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_USED", 1)
    source = write_jsonl(tmp_path / "a.jsonl", documents(400, seed=5))
    options: dict[str, Any] = {"format": "shards", "shard_tokens": 4_000, "val": 0.02}
    shardmill.prepare(source, tmp_path / "alone", **options)
    parts = rolling(source, tmp_path / "out", 8, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert parts.made == list(range(8)) and parts.left[-1] == []


@pytest.mark.parametrize("limit", ["30", "2000 tokens"])
def test_parts_behind_the_limit_are_not_made(tmp_path: Path, limit: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400, seed=5))
    shardmill.prepare(source, tmp_path / "alone", limit=limit)
    parts = rolling(source, tmp_path / "out", 8, limit=limit)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert parts.made[0] == 0 and len(parts.made) < 8


LONG = "words of a document that is longer than a chunk " * 6_000
SMALL_CHUNKS: dict[str, dict[str, Any]] = {
    "text with a separator": {"separator": r"\n\n"},
    "a stream of text": {},
    "text files": {},
    "one huge document": {"separator": r"\x1e"},
    "json lines": {},
    "parquet": {},
    "compressed": {},
    "compressed text": {},
    "tiny files": {},
}


def write_kind(folder: Path, kind: str) -> None:
    texts = [*TEXTS[:80], LONG, *TEXTS[80:160], LONG[::-1], ""]
    if kind in ("text files", "tiny files"):
        for i, text in enumerate(texts if kind == "text files" else TEXTS[:160]):
            (folder / f"{i:04}.txt").write_text(text)
    elif kind == "parquet":
        pq.write_table(pa.table({"text": texts}), folder / "a.parquet", row_group_size=30)
    elif kind in ("json lines", "compressed"):
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        (folder / "a.jsonl").write_bytes(data) if kind == "json lines" else (folder / "a.jsonl.gz").write_bytes(
            gzip.compress(data)
        )
    elif kind == "compressed text":
        for name in ("a", "b"):
            (folder / f"{name}.txt.gz").write_bytes(gzip.compress(name.encode() + LONG.encode()))
    else:
        (folder / "a.txt").write_text(LONG if kind == "one huge document" else "\n\n".join(texts))


@pytest.mark.parametrize("val", [0, 0.4, "first:20k"])
@pytest.mark.parametrize("kind", SMALL_CHUNKS)
def test_the_manifest_of_parts_is_that_of_one_run_also_for_documents_of_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, val: Any
) -> None:
    (tmp_path / "in").mkdir()
    write_kind(tmp_path / "in", kind)
    options = {"val": val, **SMALL_CHUNKS[kind]}
    shardmill.prepare(tmp_path / "in", tmp_path / "one", memory=MEMORY, **options)
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
    made_in_parts([tmp_path / "in"], tmp_path / "parts", 3, **options)
    one, parts = (json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("one", "parts"))
    assert parts == one
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")
    assert verify(tmp_path / "parts").damage == []


def test_a_merge_stays_within_its_memory(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*["a"] * 300_000, "word " * 4_000_000, *["b"] * 100_000])
    plan = plan_parts(source, tmp_path / "out", parts=3, val="0", format=["npy", "mds"])
    for part in plan.parts:
        make_part(tmp_path / "out", part.number, memory=MEMORY)
    call = [*SHARDMILL, "merge", str(tmp_path / "out")]
    assert metered_command([*call, "--memory", "20MB"]).code == 1
    made = metered_command([*call, "--memory", "120MB"])
    assert made.code == 0 and made.peak <= 120_000_000, made.err
    assert not verify(tmp_path / "out").damage
