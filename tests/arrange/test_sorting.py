"""Sorting documents by key gives the order that a list in memory would have, whatever the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.arrange import FACTS, LEAST_MEMORY, LEFT_OUT, Block, Sorter
from shardmill.errors import UsageError

MB = 1 << 20


class InMemory:
    """Documents in an array, with a count of the tokens that were read."""

    def __init__(self, lengths: list[int], dtype: str = "<u2") -> None:
        self.dtype, self.lengths = np.dtype(dtype), np.array(lengths, np.int64)
        self.tokens = np.random.default_rng(5).integers(0, 60_000, int(self.lengths.sum())).astype(self.dtype)
        self.read = 0
        self.order = np.arange(len(lengths)).astype(np.uint64)

    def by(self, keys: NDArray[Any]) -> InMemory:
        self.order = keys.astype(np.uint64)
        return self

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        return self.order[first : first + len(facts)]

    def __len__(self) -> int:
        return len(self.lengths)

    def facts(self, first: int, last: int) -> NDArray[Any]:
        found = np.zeros(last - first, FACTS)
        found["length"], found["record"] = self.lengths[first:last], np.arange(first, last)
        found["source"], found["bytes"] = 7, found["record"] * 3
        return found

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        out[:] = self.tokens[start : start + len(out)]
        self.read += len(out)

    def sorted(self, keys: NDArray[np.uint64]) -> list[tuple[int, bytes]]:
        """The slow twin: one document after the other."""
        ends = np.cumsum(self.lengths)
        order = sorted((i for i in range(len(self)) if keys[i] != LEFT_OUT), key=lambda i: int(keys[i]))
        return [(i, self.tokens[ends[i] - self.lengths[i] : ends[i]].tobytes()) for i in order]


def documents_of(blocks: list[Block]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    open_document = b""
    for block in blocks:
        if block.begins and block.ends:
            ends = np.cumsum(block.facts["length"])
            for facts, end in zip(block.facts, ends, strict=True):
                found.append((int(facts["record"]), block.tokens[end - facts["length"] : end].tobytes()))
            continue
        assert len(block.facts) == 1
        open_document = (b"" if block.begins else open_document) + block.tokens.tobytes()
        if block.ends:
            found.append((int(block.facts["record"][0]), open_document))
    return found


SHAPES = {
    "one": [5],
    "tiny": [2] * 300_000,
    "mixed": [*range(1, 2000)] * 6,
    "long among short": [10, 9_000_000, 3, 11_000_000, 1, 8, 30_000_000, 2],
    "long alone": [40_000_000],
    "none": [],
}


@pytest.mark.parametrize("memory", [LEAST_MEMORY, 48 * MB, 200 * MB])
@pytest.mark.parametrize("shape", SHAPES)
def test_documents_come_in_the_order_of_their_keys_for_any_memory(tmp_path: Path, shape: str, memory: int) -> None:
    documents = InMemory(SHAPES[shape])
    keys = np.random.default_rng(1).permutation(len(documents)).astype(np.uint64)
    sorter = Sorter(documents.by(keys), tmp_path, memory)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks())) == documents.sorted(keys)


def test_wide_tokens_and_equal_keys_keep_their_order(tmp_path: Path) -> None:
    documents = InMemory([3, 1, 2] * 40_000, "<u4")
    keys = (np.arange(len(documents)) % 5).astype(np.uint64)
    sorter = Sorter(documents.by(keys), tmp_path, LEAST_MEMORY)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks())) == documents.sorted(keys)


@pytest.mark.parametrize("every", [2, 1000, 5_000_000])
def test_documents_that_are_left_out_are_in_no_run(tmp_path: Path, every: int) -> None:
    documents = InMemory([*range(1, 2000)] * 12 + [9_000_000, 5])
    keys = np.random.default_rng(4).permutation(len(documents)).astype(np.uint64)
    keys[np.arange(len(keys)) % every != every // 2] = LEFT_OUT
    sorter = Sorter(documents.by(keys), tmp_path, LEAST_MEMORY)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks())) == documents.sorted(keys)
    assert sorter.count == np.count_nonzero(keys != LEFT_OUT)


def test_a_later_call_goes_on_with_the_runs_that_are_there_and_other_memory(tmp_path: Path) -> None:
    documents = InMemory([*range(1, 4000)] * 6)
    keys = np.random.default_rng(2).permutation(len(documents)).astype(np.uint64)

    class Killed(BaseException):
        pass

    def stop(sorted_documents: int) -> None:
        raise Killed

    for memory in (LEAST_MEMORY, 40 * MB, 64 * MB):
        with pytest.raises(Killed):
            Sorter(documents.by(keys), tmp_path, memory).make_runs(stop)
    with open(tmp_path / "runs.jsonl", "a") as log:
        log.write('["boot", "9", 12')  # torn by a kill
    sorter = Sorter(documents.by(keys), tmp_path, 48 * MB)
    sorter.make_runs()
    assert documents.read == len(documents.tokens), "a run that is there is not made again"
    assert documents_of(list(sorter.blocks())) == documents.sorted(keys)


@pytest.mark.parametrize("first", [1, 777, 11_993, 11_994])
def test_it_begins_at_any_place_of_the_order(tmp_path: Path, first: int) -> None:
    documents = InMemory([*range(1, 2000)] * 6)
    keys = np.random.default_rng(3).permutation(len(documents)).astype(np.uint64)
    sorter = Sorter(documents.by(keys), tmp_path, LEAST_MEMORY)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks(first))) == documents.sorted(keys)[first:]


def test_facts_stay_with_their_documents(tmp_path: Path) -> None:
    documents = InMemory([4, 2, 9])
    sorter = Sorter(documents.by(9 - np.arange(len(documents))), tmp_path, LEAST_MEMORY)
    sorter.make_runs()
    (block,) = sorter.blocks()
    assert block.facts["record"].tolist() == [2, 1, 0]
    assert block.facts["bytes"].tolist() == [6, 3, 0] and block.facts["source"].tolist() == [7, 7, 7]


def test_too_little_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not suffice"):
        Sorter(InMemory([4, 2, 9]), tmp_path, LEAST_MEMORY - 1)


def test_what_fits_into_the_memory_is_written_nowhere(tmp_path: Path) -> None:
    documents = InMemory([4, 9_000_000, 2, 9])
    keys = np.array([3, 1, 0, 2], np.uint64)
    sorter = Sorter(documents.by(keys), tmp_path, 48 * MB)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks(1))) == documents.sorted(keys)[1:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", ["0.keys", "1.ends", "1.facts", "0.tokens", "2.tokens", "system"])
def test_runs_that_a_crash_of_the_system_has_taken_are_made_again(tmp_path: Path, lost: str) -> None:
    documents = InMemory([*range(1, 4000)] * 6)
    keys = np.random.default_rng(6).permutation(len(documents)).astype(np.uint64)
    Sorter(documents.by(keys), tmp_path, LEAST_MEMORY).make_runs()
    log = tmp_path / "runs.jsonl"
    if lost == "system":
        first = json.loads(log.read_text().splitlines()[0])[0]
        log.write_text(log.read_text().replace(first, "an earlier start of it"))
        for path in tmp_path.glob("*.tokens"):
            path.write_bytes(bytes(path.stat().st_size))  # the names and sizes are there, and not what was written
    else:
        os.truncate(tmp_path / lost, (tmp_path / lost).stat().st_size // 2)
    sorter = Sorter(documents.by(keys), tmp_path, LEAST_MEMORY)
    sorter.make_runs()
    assert documents_of(list(sorter.blocks())) == documents.sorted(keys)
