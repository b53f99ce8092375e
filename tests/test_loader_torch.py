"""Batches in torch's DataLoader, with and without workers; skipped where torch is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset.dataset import Split
from shardmill.dataset.loader import Batches
from tests.datasets import make_dataset

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own


@pytest.fixture(scope="module")
def torch() -> Any:
    """Imported by the process that runs these tests, and by no other."""
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = tmp_path_factory.mktemp("counted") / "out"
    made = {"train": [np.arange(20_001, dtype=np.uint16)]}
    return shardmill.open(make_dataset("shards", folder, made, eot="none"))["train"]


def rows(batches: Iterable[Any]) -> list[Any]:
    return [x.tolist() for x, _ in batches]


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (3, "fork"), (2, "spawn")])
def test_a_data_loader_with_any_workers_gives_the_same_batches_in_the_same_order(
    split: Split, torch: Any, workers: int, context: str | None
) -> None:
    batches = split.batches(5, 128, rank=1, world_size=2, seed=3, epochs=2)
    assert isinstance(batches, torch.utils.data.IterableDataset)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert len(loader) == len(batches)
    expected = rows(split.batches(5, 128, rank=1, world_size=2, seed=3, epochs=2))
    assert rows(loader) == expected


@pytest.mark.parametrize("world", [3, 8])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_all_ranks_get_equally_many_batches_from_workers_that_stay(
    split: Split, torch: Any, workers: int, world: int
) -> None:
    """Over three passes, of which each begins with the blocks that the one before could not share equally."""
    passes: list[list[Any]] = []
    for rank in range(world):
        batches = split.batches(2, 900, rank=rank, world_size=world, seed=1)
        loader = torch.utils.data.DataLoader(
            batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )
        passes.append([rows(loader) for _ in range(3)])
    assert all([len(one) for one in own] == [len(one) for one in passes[0]] for own in passes)
    seen = [row[0] for own in passes for one in own for batch in one for row in batch]
    assert len(seen) == 3 * 22 // world * world
    assert max(seen.count(number * 900) for number in range(22)) == 3
    assert sum(3 - seen.count(number * 900) for number in range(22)) == 3 * 22 % world


def test_workers_that_stay_give_the_next_epoch_when_asked_again(split: Split, torch: Any) -> None:
    batches = split.batches(4, 300, seed=1)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=True)
    assert rows(loader) + rows(loader) == rows(split.batches(4, 300, seed=1, epochs=2))


def test_a_training_run_under_a_data_loader_is_resumed_by_counting_its_steps(split: Split, torch: Any) -> None:
    def loader(state: dict[str, Any] | None = None) -> tuple[Batches, Any]:
        batches = split.batches(4, 200, seed=1, epochs=3)
        if state:
            batches.load_state_dict(state)
        return batches, torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2)

    batches, whole = loader()
    expected = rows(whole)
    for steps in (1, 25, 26, 40):
        assert rows(loader(batches.state_after(steps))[1]) == expected[steps:]


def test_the_state_of_each_worker_is_its_own(split: Split, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchdata's StatefulDataLoader does it: every worker's state is saved, and given back to it."""
    from types import SimpleNamespace

    expected = rows(split.batches(4, 200, epochs=2))

    def worker(
        i: int, state: dict[str, Any] | None = None, stop: int | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(num_workers=3, id=i))
        batches = split.batches(4, 200, epochs=2)
        if state:
            batches.load_state_dict(state)
        got = [x.tolist() for _, (x, _) in zip(range(stop or 10**9), batches, strict=False)]
        return got, batches.state_dict()

    for stop in (1, 8, 9, 12):
        before, states = zip(*(worker(i, stop=stop) for i in range(3)), strict=True)
        after = [worker(i, states[i])[0] for i in range(3)]
        joined = [first + rest for first, rest in zip(before, after, strict=True)]
        assert [joined[n % 3][n // 3] for n in range(len(expected))] == expected


def test_tensors_are_given_when_they_are_asked_for(split: Split, torch: Any) -> None:
    x, y = next(iter(split.batches(2, 16, order="sequential", tensors=True)))
    assert x.dtype == y.dtype == torch.int64 and torch.equal(y, x + 1)
    x, _ = next(iter(split.batches(2, 16, tensors=True, dtype="int32")))
    assert x.dtype == torch.int32
