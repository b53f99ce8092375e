"""One test for each of the six promises, through the front door; the files beside this one go into depth."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.options import FORMATS
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.crashing import crash_everywhere
from tests.meter import metered
from tests.reference import check, twin

MB = 1_000_000


# With one worker, what an engine has cached is large when its tables double: 64 MB of these words make it 375 MB.
@pytest.mark.parametrize(("memory", "workers", "size"), [(400, 2, 60), (750, 1, 70)])
def test_bounded_the_memory_of_the_process_tree_stays_under_what_was_set(
    tmp_path: Path, memory: int, workers: int, size: int
) -> None:
    # Words that are all new are the worst case: the engines' caches grow by several bytes for each byte of text.
    source = tmp_path / "words.txt"
    source.write_bytes(random_words(size * MB))
    run = metered(
        "prepare", source, "-o", tmp_path / "out", "--separator", r"\n", "--memory", f"{memory}MB", "--workers", workers
    )
    assert run.code == 0, run.err
    assert 100 * MB < run.peak < memory * MB


@pytest.mark.parametrize("what", ["ideographs", "letters"])
def test_bounded_also_where_one_line_without_a_place_to_cut_is_larger_than_the_memory_allows(
    tmp_path: Path, what: str
) -> None:
    first, last = (0x4E00, 0x9FA5) if what == "ideographs" else (0x61, 0x7B)
    codes = np.random.default_rng(0).integers(first, last, 36 * MB // len(chr(first).encode()))
    source = tmp_path / "line.txt"
    source.write_bytes(codes.astype("<u4").tobytes().decode("utf-32-le").encode())
    run = metered("prepare", source, "-o", tmp_path / "out", "--memory", "330MB", "--val", "0")
    assert run.code == 0, run.err
    assert run.peak < 330 * MB


def test_exact_tokens_are_those_of_the_library_on_whole_documents(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(3000))
    shardmill.prepare(source, tmp_path / "out", val=0)
    check(tmp_path / "out", twin(source))


def test_whole_every_document_is_written_empty_or_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(2000))
    with open(source, "a") as file:
        file.write('{"text": null}\nnot json\n{"text": "the last"}\n')
    result = shardmill.prepare(source, tmp_path / "out", val=0.3)
    manifest = check(tmp_path / "out", twin(source))
    written = sum(split["documents"] for split in result.manifest["splits"].values())
    assert written + manifest["empty"] + manifest["rejected"] == 2003
    assert len((tmp_path / "out" / "rejects.jsonl").read_text().splitlines()) == manifest["rejected"] == 2


@pytest.mark.parametrize("form", FORMATS)
def test_same_the_bytes_do_not_depend_on_workers_memory_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(3000))
    settings = [(1, "5GB", 1 << 22), (2, "8GB", 1 << 16), (3, "6GB", 100_003)]
    made = []
    for workers, memory, chunk in settings:
        monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", min(chunk, 1 << 18))
        out = tmp_path / f"out{workers}"
        shardmill.prepare(source, out, format=form, workers=workers, memory=memory, val=0.2, shard_tokens=10_000)
        made.append(contents(out))
    assert made[0] == made[1] == made[2]


def test_resumable_killed_at_every_step_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(1200))
    crash_everywhere(source, tmp_path / "out", every=8, format="shards", shard_tokens=20_000, val=0.2)


def test_honest_names_come_when_files_are_whole_and_the_manifest_last(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    out = tmp_path / "out"
    seen = crash_everywhere(source, out, every=9, format="shards", shard_tokens=5_000, val=0)
    manifest = json.loads((out / "manifest.json").read_text())
    split = manifest["splits"]["train"]
    whole = {f["name"]: f["sha256"] for f in (*split["files"], split["documents_table"])}
    assert seen, "no crash left anything behind: the test would prove nothing"
    for left in seen:
        if "manifest.json" in left:
            assert not [name for name in left if name.endswith(".partial")], "a manifest came before its files"
        for name, digest in left.items():
            if not name.endswith(".partial") and name != "manifest.json":
                assert digest == whole[name], f"{name} bore its name before it was whole"
    for name, digest in whole.items():
        data = (out / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        assert len(data) == 2 * len(np.frombuffer(data, np.uint16))
