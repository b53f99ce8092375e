"""What a survey finds in a dataset is what a loop over its documents finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.dataset import Dataset
from shardmill.options import FORMATS
from shardmill.reporting import survey as module
from shardmill.reporting.duplicates import Duplicates
from shardmill.reporting.survey import (
    EXACT,
    LENGTHS,
    OUTLIERS,
    PER_OCTAVE,
    DocumentRows,
    SplitSurvey,
    survey,
    token_bytes,
)
from shardmill.tokens import load_tokenizer
from tests.datasets import EOT, make_dataset, random_documents


@pytest.fixture(scope="module")
def sizes() -> np.ndarray:
    return token_bytes(load_tokenizer("gpt2"))


def look(
    data: Dataset,
    sizes: np.ndarray,
    split: str = "train",
    *,
    most: int = 10**9,
    seed: int = 0,
    draws: int = 5,
    outliers: int = 2,
) -> SplitSurvey:
    return survey(
        data, split, sizes, Duplicates(list(data)), max_tokens=most, seed=seed, draws=draws, outliers=outliers
    )


def test_token_bytes_are_those_of_each_token_alone_and_none_for_end_of_text(sizes: np.ndarray) -> None:
    decode = load_tokenizer("gpt2").decode
    assert [int(sizes[i]) for i in (0, 464, 50255, EOT)] == [*(len(decode(np.array([i]))) for i in (0, 464, 50255)), 0]


@pytest.mark.parametrize("block", [1, 57, 1 << 20])
@pytest.mark.parametrize("format", FORMATS)
def test_a_survey_counts_what_a_loop_over_the_documents_counts(
    format: str, block: int, sizes: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    data = shardmill.open(make_dataset(format, tmp_path / "out", random_documents(1, 24, 90), shard_tokens=700))
    found = look(data, sizes)
    documents = list(data["train"].documents)
    lengths = [len(document) for document in documents]
    assert (found.documents_read, found.tokens_read) == (len(documents), len(data["train"]))
    assert int(found.lengths @ LENGTHS) == sum(lengths)
    assert not found.sampled and found.separated
    assert np.array_equal(found.counts, np.bincount(data["train"][:], minlength=len(sizes)))
    assert np.array_equal(np.flatnonzero(found.lengths), np.unique(lengths))
    assert int(found.octaves().sum()) == int(found.ratios.sum()) == len(documents)
    assert found.quantile(0.5) == sorted(lengths)[(len(lengths) - 1) // 2]
    assert [one.tokens for one in found.outliers["longest"]] == sorted(lengths)[:-3:-1]
    assert [one.tokens for one in found.outliers["shortest"]] == sorted(lengths)[:2]
    for one in [*found.random, *(one for kind in OUTLIERS for one in found.outliers[kind])]:
        document, there = documents[one.number], data["train"][one.start : one.stop]
        assert np.array_equal(there[there != EOT], document)
        assert (one.tokens, one.bytes) == (len(document), len(data.tokenizer.decode(document)))
    ratios = sorted(len(data.tokenizer.decode(one)) / len(one) for one in documents if len(one) >= module.LEAST_TOKENS)
    assert [one.bytes / one.tokens for one in found.outliers["most compressible"]] == ratios[:-3:-1]
    assert [one.bytes / one.tokens for one in found.outliers["least compressible"]] == ratios[:2]
    content = [sum(lengths), sum(len(data.tokenizer.decode(document)) for document in documents)]
    assert found.by_position.sum(axis=1).tolist() == content


def test_the_documents_that_are_drawn_depend_on_the_seed_and_not_on_the_blocks(
    sizes: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", random_documents(2, 50)))
    first, other = look(data, sizes).random, look(data, sizes, seed=1).random
    monkeypatch.setattr(module, "BLOCK", 33)
    assert look(data, sizes).random == first != other
    assert len(first) == 5 == len({one.number for one in first})


def test_a_large_split_is_sampled_and_every_document_in_the_sample_is_a_whole_one(
    sizes: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRETCH", 500)
    monkeypatch.setattr(module, "BLOCK", 64)
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", random_documents(3, 400, 60)))
    bounds = {data["train"].documents.bounds(i): len(data["train"].documents[i]) for i in range(400)}
    found = look(data, sizes, most=4000, draws=1000)
    assert found.sampled and found.tokens_read == 4000 and found.counts.sum() == 4000
    assert found.documents_read == len(found.random) > 50
    for one in found.random:
        # Where end-of-text comes after, a document that was seen ends with it.
        assert bounds[one.start, one.stop - 1] == one.tokens and one.number is None


def test_a_sample_favours_neither_long_documents_nor_short_ones(
    sizes: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRETCH", 200)
    monkeypatch.setattr(module, "BLOCK", 128)
    random = np.random.default_rng(0)
    made = [np.full(n, 5, np.uint16) for n in random.permutation([2] * 900 + [150] * 100)]
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", {"train": made}))
    shares = []
    for seed in range(20):
        found = look(data, sizes, most=3000, seed=seed)
        shares.append((int(found.lengths[150]), found.documents_read))
    long, seen = np.sum(shares, axis=0)
    assert 0.08 < long / seen < 0.12  # 0.1; whole stretches alone would give 0.05


def test_a_split_without_documents_is_counted_and_nothing_is_said_of_documents(
    sizes: np.ndarray, tmp_path: Path
) -> None:
    made = random_documents(4, 20)
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made, eot="none"))
    found = look(data, sizes)
    assert not found.separated and found.documents_read == 0 and found.tokens_read == len(data["train"])
    assert found.random == [] and found.outliers == {}
    assert np.array_equal(found.counts, np.bincount(data["train"][:], minlength=len(sizes)))


def test_a_document_longer_than_many_blocks_is_one_document(
    sizes: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 1000)
    made = {"train": [np.arange(1, 20, dtype=np.uint16), np.arange(1, 40_000, dtype=np.uint16) % 5000 + 1]}
    data = shardmill.open(make_dataset("nanogpt", tmp_path / "out", made))
    found = look(data, sizes)
    assert [one.tokens for one in found.outliers["longest"]] == [39_999, 19]


@pytest.mark.parametrize("length", [1, 2, 3, 1000, EXACT - 2, EXACT, 1 << 40])
def test_a_quantile_is_exact_for_lengths_below_65536_and_within_a_bin_above(length: int) -> None:
    found = SplitSurvey("train", 0, 0)
    three = np.full(3, length)
    found.count(
        DocumentRows(starts=three, stops=three, tokens=three, bytes=three, hashes=three.astype(np.uint64), number=0)
    )
    said = found.quantile(0.5)
    assert said == length if length < EXACT else length / 2 ** (1 / PER_OCTAVE) <= said <= length
    (octave,) = np.flatnonzero(found.octaves())
    assert 2 ** (octave / PER_OCTAVE) <= length * 1.000001 and length < 2 ** ((octave + 1) / PER_OCTAVE)
