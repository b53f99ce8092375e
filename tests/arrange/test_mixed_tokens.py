"""The loader of a mixture gives the tokens that the written mixture has, from any place on."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.errors import MismatchError, UsageError
from tests.arrange.test_mix import MIXTURES, made

__all__ = ["made"]  # a fixture


def mixture(made: Path, kind: str, out: Path | None = None, seed: int = 5) -> Any:
    settings = dict(MIXTURES[kind])
    weights = {made / name: weight for name, weight in settings.pop("weights").items()}
    return shardmill.mix(weights, out, seed=seed, **settings)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_tokens_at_every_place_are_those_of_the_written_mixture(
    made: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture(made, kind, tmp_path / "out")
    expected = shardmill.open(tmp_path / "out")["train"][:]
    for ahead in (1 << 20, 100):
        monkeypatch.setattr("shardmill.arrange.mixed_tokens._AHEAD_TOKENS", ahead)
        monkeypatch.setattr("shardmill.arrange.mixed_tokens._EVERY", 1024 if ahead > 100 else 7)
        mixed = mixture(made, kind)
        assert len(mixed) == len(expected)
        assert mixed[:].tolist() == expected.tolist()
        random = np.random.default_rng(1)
        for start in random.integers(0, len(expected), 60).tolist():
            stop = start + int(random.integers(0, 300))
            assert mixed[start:stop].tolist() == expected[start:stop].tolist()


@pytest.mark.parametrize(("order", "world_size"), [("sequential", 1), ("sequential", 3), ("shuffled", 2)])
def test_batches_are_those_of_the_written_mixture_and_go_on_with_other_ranks(
    made: Path, tmp_path: Path, order: str, world_size: int
) -> None:
    mixture(made, "repeated", tmp_path / "out")
    written = shardmill.open(tmp_path / "out")["train"]
    settings: dict[str, Any] = {"batch_size": 4, "block_size": 64, "order": order}
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        expected = list(written.batches(**settings, **ranks))
        mixed = mixture(made, "repeated")
        found = mixed.batches(**settings, **ranks)
        steps = iter(found)
        for x, y in expected[:7]:
            got = next(steps)
            assert got[0].tolist() == x.tolist() and got[1].tolist() == y.tolist()
        again = pickle.loads(pickle.dumps(mixture(made, "repeated").batches(**settings, **ranks)))
        again.load_state_dict(found.state_dict())
        rest = list(again)
        assert [x.tolist() for x, _ in rest] == [x.tolist() for x, _ in expected[7:]]
    other = mixture(made, "repeated").batches(batch_size=2, block_size=64, order=order)
    other.load_state_dict(found.state_dict())
    there = written.batches(batch_size=2, block_size=64, order=order)
    there.load_state_dict({**found.state_dict(), "data": there.state_dict()["data"]})
    assert [x.tolist() for x, _ in other] == [x.tolist() for x, _ in there]


def test_a_mixture_says_where_documents_begin_and_refuses_the_state_of_another(made: Path) -> None:
    first = mixture(made, "repeated")
    x, _, packed = next(iter(first.batches(batch_size=2, block_size=128, documents=True)))
    assert packed.document.shape == x.shape and packed.position[0][0] == 0
    state = first.batches(batch_size=2, block_size=128).state_dict()
    with pytest.raises(MismatchError, match="data"):
        mixture(made, "repeated", seed=6).batches(batch_size=2, block_size=128).load_state_dict(state)
    with pytest.raises(UsageError):
        first[3]
