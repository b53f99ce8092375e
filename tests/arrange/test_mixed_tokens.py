"""The loader of a mixture gives the tokens that the written mixture has, from any place on."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange.mixed_tokens import MixedTokens
from shardmill.errors import DamageError, MismatchError, UsageError
from shardmill.options import FORMATS
from tests.arrange.test_mix import MIXTURES, made
from tests.meter import metered_command

__all__ = ["made"]  # a fixture


def mixture(made: Path, kind: str, out: Path | None = None, seed: int = 5) -> Any:
    settings = dict(MIXTURES[kind])
    weights = {made / name: weight for name, weight in settings.pop("weights").items()}
    return shardmill.mix(weights, out, seed=seed, **settings)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_tokens_at_every_place_are_those_of_the_written_mixture(made: Path, tmp_path: Path, kind: str) -> None:
    mixture(made, kind, tmp_path / "out")
    expected = shardmill.open(tmp_path / "out")["train"][:]
    whole = mixture(made, kind)
    for mixed in (whole.tokens, MixedTokens(whole.plan, 5, every=7, ahead_documents=2)):
        assert len(mixed) == len(expected)
        assert mixed.read(0, len(mixed)).tolist() == expected.tolist()
        random = np.random.default_rng(1)
        for size in (0, 1, 30, 300):
            starts = random.integers(0, len(expected) - size, 40)
            for rows in (starts, np.sort(starts)):
                assert mixed.read_rows(rows, size).tolist() == [expected[at : at + size].tolist() for at in rows]


@pytest.mark.parametrize("format", FORMATS)
def test_many_stretches_are_read_at_once_from_any_format(made: Path, tmp_path: Path, format: str) -> None:
    shardmill.convert(made / "web", tmp_path / "out", format=format, shard_tokens=500)
    tokens = shardmill.open(tmp_path / "out")["train"].tokens
    expected = tokens.read(0, len(tokens))
    random = np.random.default_rng(2)
    for count in (0, 1, 90):
        lengths = random.integers(0, 70, count)
        starts, ends = random.integers(0, len(tokens) - 70, count), np.cumsum(lengths)
        out = np.empty(int(lengths.sum()), tokens.dtype)
        tokens.gather(starts, lengths, ends - lengths, out)
        parts = [expected[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        assert out.tolist() == np.concatenate([out[:0], *parts]).tolist()


def test_a_file_that_ends_too_early_is_damage(made: Path, tmp_path: Path) -> None:
    shardmill.convert(made / "web", tmp_path / "out", format="nanogpt")
    tokens = shardmill.open(tmp_path / "out")["train"].tokens
    os.truncate(tmp_path / "out" / "train.bin", 100)
    with pytest.raises(DamageError, match="ends too early"):
        tokens.gather(np.array([0, 45]), np.array([10, 10]), np.array([0, 10]), np.empty(20, tokens.dtype))


@pytest.mark.parametrize("length", [6, 60_000])
def test_the_memory_of_a_mixture_does_not_grow_with_documents_or_their_length(tmp_path: Path, length: int) -> None:
    """Read in order and anywhere: what is mapped, kept or looked up would count here."""
    documents = 2_400_000 // length if length > 1000 else 400_000
    for name in "ab":
        with open(tmp_path / f"{name}.jsonl", "w") as file:
            texts = (f"{name}{i} " + "word " * (length - 3) for i in range(documents))
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        shardmill.prepare(tmp_path / f"{name}.jsonl", tmp_path / name, val="0")
    program = """if True:
        import sys, shardmill
        mixed = shardmill.mix({sys.argv[1]: 0.7, sys.argv[2]: 0.3})
        if sys.argv[3] == "all":
            for x, y in mixed.batches(batch_size=8, block_size=256): pass
            for number, _ in enumerate(mixed.batches(batch_size=8, block_size=256, order="shuffled")):
                if number == 20: break
        else:
            next(iter(shardmill.open(sys.argv[1])["train"].batches(batch_size=8, block_size=256)))
        """
    call = [sys.executable, "-c", program, str(tmp_path / "a"), str(tmp_path / "b")]
    one, mixed = metered_command([*call, "one"]), metered_command([*call, "all"])
    assert not one.code and not mixed.code, one.err + mixed.err
    assert mixed.peak - one.peak < 24_000_000


@pytest.mark.parametrize(("order", "world_size"), [("sequential", 1), ("sequential", 3), ("shuffled", 2)])
def test_batches_are_those_of_the_written_mixture_and_go_on_with_other_ranks(
    made: Path, tmp_path: Path, order: str, world_size: int
) -> None:
    mixture(made, "repeated", tmp_path / "out")
    written = shardmill.open(tmp_path / "out")["train"]
    settings: dict[str, Any] = {"batch_size": 4, "block_size": 64, "order": order}
    for rank in range(world_size):
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
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
