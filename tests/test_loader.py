"""Batches: every block once over all ranks, in any order, resumed anywhere, in constant memory."""

from __future__ import annotations

import gc
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardmill
from shardmill.dataset.dataset import Split
from shardmill.dataset.loader import Batches
from shardmill.errors import MismatchError, UsageError
from shardmill.options import FORMATS
from shardmill.permutation import Permutation
from tests.datasets import EOT, make_dataset, random_documents, with_eot

BLOCK = 16


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """A split whose tokens are their own positions."""
    folder = tmp_path_factory.mktemp("counted") / "out"
    made = {"train": [np.arange(20_001, dtype=np.uint16)]}
    return shardmill.open(make_dataset("shards", folder, made, eot="none"))["train"]


@given(st.integers(1, 3000), st.integers(), st.integers(0, 5))
def test_the_permutation_has_every_number_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


def test_the_permutation_is_another_one_for_every_seed_and_epoch_and_looks_random() -> None:
    size = 10_000
    orders = [Permutation(size, seed, epoch)(np.arange(size)) for seed in range(3) for epoch in range(3)]
    for i, order in enumerate(orders):
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
        assert all((order == other).mean() < 0.01 for other in orders[:i])


def test_a_place_far_out_in_a_huge_order_is_found_without_making_the_order() -> None:
    permutation = Permutation(10**15, 1)
    places = np.array([0, 5 * 10**14, 10**15 - 1])
    assert len(set(permutation(places).tolist())) == 3 and permutation(places).max() < 10**15


@pytest.mark.parametrize("format", FORMATS)
def test_x_and_y_are_the_split_and_the_split_one_later_in_every_format(format: str, tmp_path: Path) -> None:
    made = random_documents(3)
    data = shardmill.open(make_dataset(format, tmp_path / "out", made))
    expected = np.concatenate([with_eot(d, data.eot) for d in made["train"]])
    batches = data["train"].batches(4, BLOCK, order="sequential")
    pairs = list(batches)
    blocks = (len(expected) - 1) // BLOCK
    assert len(pairs) == len(batches) == -(-blocks // 4)
    assert np.array_equal(np.concatenate([x.ravel() for x, _ in pairs]), expected[: blocks * BLOCK])
    assert np.array_equal(np.concatenate([y.ravel() for _, y in pairs]), expected[1 : blocks * BLOCK + 1])
    assert pairs[0][0].dtype == data.dtype


@given(
    batch=st.integers(1, 9),
    world=st.integers(1, 9),
    block=st.integers(60, 9000),
    epochs=st.integers(1, 6),
    order=st.sampled_from(["sequential", "shuffled"]),
    seed=st.integers(0, 3),
)
def test_all_ranks_get_equally_many_rows_and_every_block_comes_once_an_epoch(
    counted: Split, batch: int, world: int, block: int, epochs: int, order: str, seed: int
) -> None:
    blocks = (len(counted) - 1) // block
    settings: dict[str, Any] = {"world_size": world, "order": order, "seed": seed, "epochs": epochs}
    if blocks * epochs < world:
        with pytest.raises(UsageError, match="too few for one batch on every rank"):
            counted.batches(batch, block, **settings)
        return
    ranks = [counted.batches(batch, block, rank=rank, **settings) for rank in range(world)]
    got = [list(batches) for batches in ranks]
    assert {len(batches) for batches in ranks} == {len(one) for one in got} == {len(got[0])}
    assert all(len({x.shape for x, _ in step}) == 1 for step in zip(*got, strict=True))
    assert all((y == x + 1).all() for one in got for x, y in one)
    # The blocks in the order of the steps, and in each step of the rows over all ranks: epoch after epoch.
    stream = [
        int(x[row, 0]) // block for step in zip(*got, strict=True) for row in range(len(step[0][0])) for x, _ in step
    ]
    single = [int(x[0, 0]) // block for x, _ in counted.batches(1, block, **{**settings, "world_size": 1})]
    assert stream == single[: len(single) // world * world]
    assert all(sorted(single[i * blocks : (i + 1) * blocks]) == list(range(blocks)) for i in range(epochs))
    # The rest comes first when the batches are iterated over again.
    again = [list(batches) for batches in ranks]
    more = [
        int(x[row, 0]) // block for step in zip(*again, strict=True) for row in range(len(step[0][0])) for x, _ in step
    ]
    later = [
        int(x[0, 0]) // block
        for x, _ in counted.batches(1, block, **{**settings, "world_size": 1, "epochs": 2 * epochs})
    ]
    assert stream + more == later[: len(later) // world * world]


@given(
    batch=st.integers(1, 9),
    world=st.integers(1, 9),
    block=st.integers(100, 9000),
    epochs=st.integers(1, 5),
    last=st.sampled_from(["short", "drop"]),
    data=st.data(),
)
def test_the_state_after_any_number_of_steps_is_known_without_taking_them(
    counted: Split, batch: int, world: int, block: int, epochs: int, last: str, data: st.DataObject
) -> None:
    settings: dict[str, Any] = {"world_size": world, "epochs": epochs, "last": last}
    try:
        batches = counted.batches(batch, block, rank=world - 1, **settings)
    except UsageError:
        return
    expected = [x.tolist() for x, _ in batches]
    steps = data.draw(st.integers(0, max(0, len(expected) - 1)))
    resumed = counted.batches(batch, block, rank=world - 1, **settings)
    resumed.load_state_dict(json.loads(json.dumps(resumed.state_after(steps))))
    assert [x.tolist() for x, _ in resumed] == expected[steps:]


@pytest.mark.parametrize("world", [1, 3])
def test_dropping_the_last_gives_every_rank_equally_many_whole_batches(counted: Split, world: int) -> None:
    runs = [list(counted.batches(5, 70, rank=rank, world_size=world, last="drop")) for rank in range(world)]
    assert len({len(run) for run in runs}) == 1
    assert {x.shape for run in runs for x, _ in run} == {(5, 70)}
    seen = np.concatenate([x.ravel() for run in runs for x, _ in run])
    assert len(np.unique(seen)) == len(seen)


@given(
    before=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    after=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    steps=st.integers(0, 40),
    order=st.sampled_from(["sequential", "shuffled", "random"]),
)
def test_a_state_goes_on_exactly_also_with_another_world_and_batch(
    counted: Split, before: tuple[int, int], after: tuple[int, int], steps: int, order: str
) -> None:
    block, seed = 150, 7
    (batch, world), (batch2, world2) = before, after
    settings: dict[str, Any] = {"order": order, "seed": seed, "epochs": 2}
    reference = [x[0].tolist() for x, _ in counted.batches(1, block, **settings)]
    seen: list[Any] = []
    states: list[dict[str, Any]] = []
    for rank in range(world):
        batches = counted.batches(batch, block, rank=rank, world_size=world, **settings)
        for _, (x, _) in zip(range(steps), batches, strict=False):
            seen += x.tolist()
        states.append(json.loads(json.dumps(batches.state_dict())))
    assert all(state == states[0] for state in states)
    for rank in range(world2):
        batches = counted.batches(batch2, block, rank=rank, world_size=world2, **settings)
        batches.load_state_dict(states[0])
        for x, _ in batches if states[0]["epoch"] < 2 else ():
            seen += x.tolist()
    # All but the rest that the last ranks cannot share, and of that every row once.
    left = len(reference) - len(seen)
    assert 0 <= left < max(world, world2)
    assert sorted(seen) == sorted(reference[: len(seen)])


@pytest.mark.parametrize("order", ["sequential", "shuffled", "random"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_resumed_rank_gives_what_it_would_have_given(counted: Split, order: str, rank: int) -> None:
    def make() -> Batches:
        return counted.batches(3, 100, rank=rank, world_size=3, order=order, seed=5, epochs=3)

    straight = [x.tolist() for x, _ in make()]
    for steps in (0, 1, 21, 22, 23, 45, len(straight)):
        first = make()
        iterator = iter(first)
        taken = [next(iterator)[0].tolist() for _ in range(steps)]
        second = make()
        second.load_state_dict(first.state_dict())
        rest = [x.tolist() for x, _ in second] if steps < len(straight) else []
        assert taken + rest == straight


def test_all_ranks_are_in_the_same_state_after_the_same_number_of_steps(counted: Split) -> None:
    states = []
    for rank in range(4):
        batches = counted.batches(6, 130, rank=rank, world_size=4)
        for _ in zip(range(6), batches, strict=False):
            pass
        states.append(batches.state_dict())
    assert all(state == states[0] for state in states)
    assert states[0] == counted.batches(6, 130, rank=1, world_size=4).state_after(6)


def test_a_state_of_other_data_or_another_order_is_refused(counted: Split) -> None:
    state = counted.batches(2, BLOCK, seed=1).state_dict()
    others: list[dict[str, Any]] = [{"block_size": 8, "seed": 1}, {"seed": 2}, {"seed": 1, "order": "random"}]
    for other in others:
        made = counted.batches(2, **{"block_size": BLOCK, **other})
        with pytest.raises(MismatchError, match="the state is of another"):
            made.load_state_dict(state)


def test_to_iterate_again_is_to_have_the_next_epoch(counted: Split) -> None:
    batches = counted.batches(4, 500)
    first, second = ([x.tolist() for x, _ in batches] for _ in range(2))
    assert first != second
    rows = [sorted(row for x in epoch for row in x) for epoch in (first, second)]
    assert rows[0] == rows[1]
    both = [x.tolist() for x, _ in counted.batches(4, 500, epochs=2)]
    assert both == first + second


def test_random_windows_begin_anywhere_and_differ_between_ranks(counted: Split) -> None:
    starts = [
        x[:, 0]
        for rank in range(2)
        for x, _ in counted.batches(8, 64, rank=rank, world_size=2, order="random", epochs=4)
    ]
    found = np.concatenate(starts)
    assert len(np.unique(found)) > 0.9 * len(found)
    assert len(np.unique(found % 64)) == 64
    assert found.min() < 500 and 19_000 < found.max() <= 20_000 - 64
    endless = iter(counted.batches(8, 64, order="random", epochs=None))
    assert len([next(endless) for _ in range(200)]) == 200


@pytest.mark.parametrize("format", ["nanogpt", "npy"])
def test_documents_in_a_batch_are_told_apart(format: str, tmp_path: Path) -> None:
    made = random_documents(4, count=300, longest=40)
    data = shardmill.open(make_dataset(format, tmp_path / "out", made))
    for x, _, where in data["train"].batches(3, 50, documents=True):
        flat = np.zeros(x.size, np.int64)
        for row in range(len(x)):
            document = position = 0
            for column in range(50):
                begins = column > 0 and (x[row, column - 1] == EOT if data.eot == "after" else x[row, column] == EOT)
                document, position = (document + 1, 0) if begins else (document, position)
                assert (where.document[row, column], where.position[row, column]) == (document, position)
                flat[row * 50 + column] = position == 0
                position += 1
        assert where.cu_seqlens.tolist() == [*np.flatnonzero(flat).tolist(), x.size]
        assert where.cu_seqlens.dtype == np.int32


def test_what_cannot_be_is_said(counted: Split, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few for a block"):
        counted.batches(1, 30_000)
    with pytest.raises(UsageError, match="no rank 3"):
        counted.batches(1, 8, rank=3, world_size=3)
    with pytest.raises(UsageError, match="is not an order"):
        counted.batches(1, 8, order="sorted")
    with pytest.raises(UsageError, match="too few for one batch"):
        counted.batches(100, 8000, last="drop")
    bare = shardmill.open(make_dataset("nanogpt", tmp_path / "out", random_documents(5), eot="none"))
    with pytest.raises(UsageError, match="nothing says where documents end"):
        bare["train"].batches(1, 8, documents=True)


def test_batches_go_to_another_process(counted: Split) -> None:
    again = pickle.loads(pickle.dumps(counted.batches(2, 100, seed=3)))
    assert [x.tolist() for x, _ in again] == [x.tolist() for x, _ in counted.batches(2, 100, seed=3)]


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_memory_does_not_grow_over_an_epoch(order: str, tmp_path: Path) -> None:
    folder = make_dataset("shards", tmp_path / "out", {"train": []})
    manifest = json.loads((folder / "manifest.json").read_text())
    os.unlink(folder / "train_000000.bin")
    shard, names = np.random.default_rng(0).integers(0, 50000, 4_000_000).astype(np.uint16).tobytes(), range(16)
    files = []
    for i in names:
        (folder / f"train_{i:06}.bin").write_bytes(shard)
        files.append({"name": f"train_{i:06}.bin", "tokens": 4_000_000, "bytes": 8_000_000, "sha256": ""})
    manifest["splits"]["train"] |= {"tokens": 64_000_000, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    del shard
    batches = iter(shardmill.open(folder)["train"].batches(16, 1024, order=order))
    for _ in range(50):
        next(batches)
    gc.collect()
    before = psutil.Process().memory_info().rss
    highest = max(psutil.Process().memory_info().rss for i, _ in enumerate(batches) if i % 100 == 0)
    assert highest - before < 8_000_000
