"""The rows of an index are those that `pack` writes, token by token, in every batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange import pack_index
from shardmill.errors import DamageError, MismatchError, UsageError
from shardmill.options import FORMATS
from tests.meter import metered_command

pytestmark = pytest.mark.thorough

TEXTS = [f"text {i}: " + f"{i} and " * (i * 7 % 50) + "the end " * (i % 13 == 0) * 60 for i in range(400)]
T = 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def flat(batches: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(np.asarray(part).tolist() for part in (*batch[:2], *(batch[2] if len(batch) > 2 else ())))
        for batch in batches
    ]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("eot", [None, "before"])
def test_batches_by_an_index_are_those_of_the_packed_dataset(
    corpus: Path, tmp_path: Path, format: str, eot: str | None
) -> None:
    shardmill.prepare(corpus, tmp_path / "data", val="0.2", shard_tokens=2000, format=format, eot=eot)
    shardmill.pack(tmp_path / "data", tmp_path / "written", block_size=T, seed=3)
    pack_index(tmp_path / "data", block_size=T, seed=3)
    data, written = shardmill.open(tmp_path / "data"), shardmill.open(tmp_path / "written")
    for split in data:
        for more in ({"order": "sequential"}, {"seed": 5, "documents": True}, {"order": "random", "dtype": np.int64}):
            expected = flat(written[split].batches(4, T, **more))
            assert flat(data[split].batches(4, T, pack=True, **more)) == expected
            assert len(expected) > 3


def test_states_and_ranks_work_as_with_files(corpus: Path, tmp_path: Path) -> None:
    shardmill.prepare(corpus, tmp_path / "data", val="0")
    pack_index(tmp_path / "data", tmp_path / "index", block_size=T)
    split = shardmill.open(tmp_path / "data")["train"]
    every = flat(split.batches(4, T, pack=tmp_path / "index", world_size=1))
    batches = split.batches(4, T, pack=str(tmp_path / "index"))
    it = iter(batches)
    begun = flat([next(it), next(it)])
    again = split.batches(4, T, pack=tmp_path / "index")
    again.load_state_dict(batches.state_dict())
    assert begun + flat(again) == every
    halves = [flat(split.batches(2, T, pack=tmp_path / "index", rank=rank, world_size=2)) for rank in (0, 1)]
    rows = [row for x, _ in every for row in x]
    assert sorted(rows) == sorted(row for half in halves for x, _ in half for row in x)
    with pytest.raises(MismatchError):
        split.batches(4, T).load_state_dict(batches.state_dict())


def test_trace_finds_the_documents_of_a_step_and_the_rows_of_a_record(corpus: Path, tmp_path: Path) -> None:
    shardmill.prepare(corpus, tmp_path / "data", val="0")
    shardmill.pack(tmp_path / "data", tmp_path / "written", block_size=T)
    pack_index(tmp_path / "data", block_size=T)
    data, written = shardmill.open(tmp_path / "data"), shardmill.open(tmp_path / "written")
    settings: dict[str, Any] = {"batch_size": 3, "block_size": T, "world_size": 2, "seed": 4}

    def origins(rows: Any) -> list[Any]:
        return [(row.step, row.rank, row.row, row.start, [one.record for one in row.documents]) for row in rows]

    for step in (0, 5, 9):
        assert origins(data.trace(step=step, pack=True, **settings)) == origins(written.trace(step=step, **settings))
    for record in (0, 13, 26, 77):  # of which some have several rows
        found = data.trace(source=str(corpus), record=record, pack=True, **settings)
        expected = written.trace(source=str(corpus), record=record, **settings)
        assert origins(found) == origins(sorted(set_of(expected), key=place))
    call = [sys.executable, "-m", "shardmill", "trace", str(tmp_path / "data"), "--step", "5", "--batch-size", "3"]
    call += ["--block-size", str(T), "--pack", str(tmp_path / "data" / "packed" / str(T)), "--json"]
    said = subprocess.run(call, capture_output=True, text=True, check=True, timeout=120)
    assert len(json.loads(said.stdout)) == 3


def place(row: Any) -> tuple[int, int, int]:
    return row.step, row.rank, row.row


def set_of(rows: Any) -> list[Any]:
    """Each row once: a record that became several pieces of a row is traced to it several times in a packed dataset."""
    return list({place(row): row for row in rows}.values())


def test_runs_on_disk_give_the_same_index(tmp_path: Path) -> None:
    from shardmill.arrange import LEAST_MEMORY, PackedPieces, PieceEntries, Sorter

    random = np.random.default_rng(1)
    lines = (json.dumps({"text": "a b " * int(n)}) for n in random.integers(1, 9, 300_000))
    (tmp_path / "tiny.jsonl").write_text("\n".join(lines))
    shardmill.prepare(tmp_path / "tiny.jsonl", tmp_path / "data", val="0")
    split = shardmill.open(tmp_path / "data")["train"]
    found = []
    for memory in (LEAST_MEMORY, 400 << 20):
        sorter = Sorter(PieceEntries(PackedPieces(split, T, 0)), tmp_path / str(memory), memory)
        sorter.make_runs()
        blocks = list(sorter.blocks())
        found.append([np.concatenate([block.facts[name] for block in blocks]) for name in ("record", "bytes")])
    assert len(list((tmp_path / str(LEAST_MEMORY)).glob("*.keys"))) > 1
    assert all((one == other).all() for one, other in zip(*found, strict=True))


def test_the_command_makes_an_index_and_says_what_it_holds(corpus: Path, tmp_path: Path) -> None:
    shardmill.prepare(corpus, tmp_path / "data", val="0")
    call = [sys.executable, "-m", "shardmill", "pack", str(tmp_path / "data"), "--block-size", str(T), "--index-only"]
    said = subprocess.run([*call, "--json"], capture_output=True, text=True, check=True, timeout=120)
    index = json.loads(said.stdout)
    assert index["block_size"] == T and index["splits"]["train"]["rows"] > 0
    assert index == json.loads((tmp_path / "data" / "packed" / str(T) / "packing.json").read_text())
    assert not shardmill.verify(tmp_path / "data").damage
    metered = metered_command([*call[:-1], "--index-only", "-o", str(tmp_path / "other"), "--memory", "200MB"])
    assert metered.peak <= 200_000_000
    files = {name: (tmp_path / "other" / name).read_bytes() for name in index["files"]}
    assert files == {name: (tmp_path / "data" / "packed" / str(T) / name).read_bytes() for name in index["files"]}
    for wrong, hint in ((["-f", "llmc"], "--format"), (["--shard-tokens", "5"], "--shard-tokens")):
        ended = subprocess.run([*call, *wrong], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2 and hint in ended.stderr
    ended = subprocess.run(call[:-1], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "--out" in ended.stderr


def test_an_index_that_does_not_fit_is_an_error(corpus: Path, tmp_path: Path) -> None:
    shardmill.prepare(corpus, tmp_path / "data", val="0")
    split = shardmill.open(tmp_path / "data")["train"]
    with pytest.raises(UsageError, match="no index") as missing:
        split.batches(4, T, pack=True)
    assert "--index-only" in str(missing.value.hint)
    pack_index(tmp_path / "data", block_size=T)
    with pytest.raises(UsageError, match="not 32"):
        split.batches(4, 32, pack=tmp_path / "data" / "packed" / str(T))
    with pytest.raises(MismatchError, match="another dataset, row size or seed"):
        pack_index(tmp_path / "data", block_size=T, seed=2)
    pack_index(tmp_path / "data", block_size=T, seed=2, overwrite=True)
    shardmill.prepare(corpus, tmp_path / "data", val="0", limit=100, overwrite=True)
    with pytest.raises(MismatchError, match="another dataset"):
        shardmill.open(tmp_path / "data")["train"].batches(4, T, pack=True)
    pack_index(tmp_path / "data", block_size=T, overwrite=True)
    ends = tmp_path / "data" / "packed" / str(T) / "train.ends.npy"
    os.truncate(ends, ends.stat().st_size - 8)
    with pytest.raises(DamageError):
        shardmill.open(tmp_path / "data")["train"].batches(4, T, pack=True)
    with pytest.raises(UsageError, match="True, or the folder"):
        split.batches(4, T, pack=3)  # type: ignore[arg-type]
