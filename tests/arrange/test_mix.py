"""A mixture has each dataset's share of the tokens at every place, whole documents, and the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange import DocumentsOfSplit, TokensBefore, plan_mixture
from shardmill.dataset import verify
from shardmill.errors import BudgetError, MismatchError, UsageError
from shardmill.options import FORMATS
from shardmill.permutation import Permutation
from shardmill.shards import TRAINERS
from tests.corpus import contents
from tests.crashing import crash_everywhere
from tests.meter import metered_command

SIZES = {"web": 300, "code": 90, "books": 25}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets of documents of other lengths."""
    folder = tmp_path_factory.mktemp("made")
    for number, (name, size) in enumerate(SIZES.items()):
        texts = [f"{name} {i}: " + "some words " * (i * (7 + 30 * number) % (20 + 90 * number)) for i in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        shardmill.prepare(folder / f"{name}.jsonl", folder / name, val="0.1", shard_tokens=3000)
    return folder


def listed(folder: Path, split: str) -> list[tuple[bytes, Any]]:
    """Each document with the place that it came from."""
    documents = shardmill.open(folder)[split].documents
    return [(np.asarray(documents[i], np.int64).tobytes(), documents.origin(i)) for i in range(len(documents))]


def due_at(tokens: Fraction, stages: list[tuple[int, list[Fraction]]], source: int) -> Fraction:
    """The token of the mixture at which so many tokens of a source are due: the slow twin, one stage at a time."""
    had = Fraction(0)
    for number, (start, weights) in enumerate(stages):
        share = weights[source] / sum(weights)
        end = stages[number + 1][0] if number + 1 < len(stages) else None
        more = None if end is None else (end - start) * share
        if share and (more is None or had + more > tokens):
            return start + (tokens - had) / share
        had += more or 0
    return Fraction(1 << 62)


def expected(
    folders: list[Path], stages: list[tuple[int, list[Fraction]]], end: Fraction, seed: int
) -> list[tuple[bytes, Any]]:
    """The slow twin: all documents of all epochs with the tokens at which their middles are due, sorted."""
    found: list[tuple[int, int, int, tuple[bytes, Any]]] = []
    for source, folder in enumerate(folders):
        documents, before = listed(folder, "train"), 0
        for epoch in count():
            order = Permutation(len(documents), seed, "mix", source, epoch)(np.arange(len(documents))).tolist()
            for place, number in enumerate(order):
                length = len(documents[number][0]) // 8 + 1
                key = due_at(before + Fraction(length, 2), stages, source)
                if key < end:
                    found.append((int(key * 65536), source, epoch * len(order) + place, documents[number]))
                before += length
            if due_at(Fraction(before), stages, source) >= end:
                break
    return [document for *_, document in sorted(found, key=lambda one: one[:3])]


MIXTURES: dict[str, dict[str, Any]] = {
    "to the end of the first": {"weights": {"web": "0.7", "code": "0.3"}},
    "one alone": {"weights": {"web": 1}},
    "repeated": {"weights": {"web": "0.5", "code": "0.25", "books": "0.25"}, "tokens": 20_000, "max_epochs": 3},
    "stages": {
        "weights": {"web": "0.9", "code": "0.1", "books": 0},
        "stages": {"2000": {"web": "0.5", "code": "0.5"}, "4k": {"books": 1}},
        "tokens": 6_000,
    },
    "a tiny weight": {"weights": {"web": "0.9999", "books": "0.0001"}, "tokens": 6_000},
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_documents_come_where_their_middles_are_due(made: Path, tmp_path: Path, kind: str) -> None:
    settings = dict(MIXTURES[kind])
    weights = settings.pop("weights")
    folders = [made / name for name in weights]
    result = shardmill.mix({made / name: weight for name, weight in weights.items()}, tmp_path / "out", seed=5,
                           **settings)  # fmt: skip
    stages = [(0, [Fraction(str(weight)) for weight in weights.values()])]
    for start, changed in settings.get("stages", {}).items():
        stages.append((int(start.replace("k", "000")), [Fraction(changed.get(name, 0)) for name in weights]))
    plan = plan_mixture({made / name: weight for name, weight in weights.items()}, **settings)
    end = Fraction(plan.end, 65536)
    assert listed(tmp_path / "out", "train") == expected(folders, stages, end, 5)
    vals = [document for folder in folders for document in listed(folder, "val")]
    order = Permutation(len(vals), 5, "val")(np.arange(len(vals))).tolist()
    assert listed(tmp_path / "out", "val") == [vals[i] for i in order]
    assert not verify(tmp_path / "out").damage
    assert result.manifest["arranged"]["order"] == "mix"
    if "tokens" not in settings:  # one dataset is used up, each document once
        found = listed(tmp_path / "out", "train")
        assert any(
            sorted(map(repr, listed(folder, "train"))) == sorted(repr(one) for one in found if folder.name in one[1][0])
            for folder in folders
        )


def test_every_share_is_within_the_bound_after_every_document(made: Path, tmp_path: Path) -> None:
    weights = {made / "web": "0.6", made / "code": "0.3", made / "books": "0.1"}
    plan = plan_mixture(weights, tokens=9_000, max_epochs=4)
    shardmill.mix(weights, tmp_path / "out", tokens=9_000, max_epochs=4)
    table = shardmill.open(tmp_path / "out")["train"].table
    assert table is not None
    lengths = np.diff(table.table["end"], prepend=0)
    for source in range(3):
        mine = np.cumsum(np.where(table.table["source"] == source, lengths, 0))
        share = float(plan.mixture.shares(source)[0])
        assert np.abs(mine - share * np.cumsum(lengths)).max() <= plan.mixture.bound(source, plan.longest)


@pytest.mark.parametrize("format", FORMATS)
def test_a_mixture_may_have_any_format(made: Path, tmp_path: Path, format: str) -> None:
    weights = {made / "web": 2, made / "code": 1}
    shardmill.mix(weights, tmp_path / "first", seed=1)
    shardmill.mix(weights, tmp_path / "out", seed=1, format=format)
    assert listed(tmp_path / "out", "train") == listed(tmp_path / "first", "train")
    assert not verify(tmp_path / "out").damage


def test_memory_formats_and_shards_of_the_inputs_cannot_change_the_bytes(made: Path, tmp_path: Path) -> None:
    found = []
    settings: list[dict[str, Any]] = [{}, {"format": "npy"}, {"format": "shards", "shard_tokens": 700}]
    for number, options in enumerate(settings):
        folders = []
        for name in ("web", "books"):
            folders.append(tmp_path / f"{name}{number}")
            shardmill.convert(made / name, folders[-1], **{"eot": "after", **options})
        call = ["mix", f"{folders[0]}:0.8", f"{folders[1]}:0.2", "-o", str(tmp_path / f"out{number}"), "-f", "nanogpt"]
        memory = f"{180 + 200 * number}MB"
        call += ["--tokens", "7k", "--max-epochs", "2", "--memory", memory, "--quiet"]
        subprocess.run([sys.executable, "-m", "shardmill", *call], check=True, timeout=120)
        found.append({name: data for name, data in contents(tmp_path / f"out{number}").items() if "json" not in name})
    assert found[0] == found[1] == found[2]


def test_killed_at_any_step_it_ends_with_the_same_bytes(made: Path, tmp_path: Path) -> None:
    weights = {str(made / "web"): 1, str(made / "books"): 1}
    left = crash_everywhere(made, tmp_path / "out", every=9, mix=weights, format="shards", max_epochs=2)
    assert len(left) > 3


def test_the_memory_of_the_whole_command_stays_below_the_limit(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = np.array(["alpha ", "beta ", "gamma ", "delta ", "of ", "the ", "and\n", "zeta-"])
    for name, texts in (("a", 50), ("b", 30)):
        with open(tmp_path / f"{name}.jsonl", "w") as file:
            for i in range(texts):
                text = "".join(words[random.integers(0, len(words), 4_000_000 if i == 20 else 400_000)].tolist())
                file.write(json.dumps({"text": text}) + "\n")
        shardmill.prepare(tmp_path / f"{name}.jsonl", tmp_path / name, val="0")
    call = [sys.executable, "-m", "shardmill", "mix", f"{tmp_path}/a:1", f"{tmp_path}/b:1", "-o", str(tmp_path / "out")]
    assert metered_command([*call, "--max-epochs", "2", "--memory", "200MB"]).peak <= 200_000_000
    assert not list((tmp_path / "out").glob(".sorted*"))
    assert not verify(tmp_path / "out", sample=2).damage


@pytest.mark.parametrize("memory", [8, 999, 1 << 20])
def test_tokens_before_a_place_are_counted_within_any_memory(made: Path, tmp_path: Path, memory: int) -> None:
    documents = DocumentsOfSplit(shardmill.open(made / "web")["train"])
    order, lengths = Permutation(len(documents), 5), documents.facts(0, len(documents))["length"]
    expected = np.cumsum(lengths[order(np.arange(len(documents)))])
    before = TokensBefore(tmp_path, memory)
    for _ in range(2):
        before.count(documents, order)
        places = np.random.default_rng(3).permutation(len(documents))
        assert (before[places] == np.append(0, expected)[places]).all()
    assert before.memory(10**12) <= memory
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_work_is_an_error_that_names_the_way_out(made: Path, tmp_path: Path) -> None:
    web, code = made / "web", made / "code"
    with pytest.raises(UsageError, match=r"web` would be read \d+\.\d\d times") as refused:
        shardmill.mix({web: 0.5, code: 0.5}, tmp_path / "out", tokens=50_000)
    assert "--max-epochs" in str(refused.value.hint) and "--tokens" in str(refused.value.hint)
    assert not (tmp_path / "out").exists()
    hint = str(refused.value.hint).split("--tokens ")[1].split("`")[0]
    assert plan_mixture({web: 0.5, code: 0.5}, tokens=hint).tokens == int(hint)
    with pytest.raises(UsageError, match="its own folder"):
        shardmill.mix({web: 1, code: 1}, web)
    with pytest.raises(UsageError, match="named twice"):
        shardmill.mix({web: 1, str(web): 1}, tmp_path / "out")
    with pytest.raises(UsageError, match="no weight"):
        shardmill.mix({web: "much"}, tmp_path / "out")
    with pytest.raises(UsageError, match="none of the datasets"):
        shardmill.mix({web: 1}, tmp_path / "out", stages={5: {"other": 1}})
    with pytest.raises(BudgetError, match="does not suffice"):
        shardmill.mix({web: 1, code: 1}, tmp_path / "out", memory="20MB")
    shardmill.mix({web: 1, code: 1}, tmp_path / "out", seed=1)
    assert shardmill.mix({web: 1, code: 1}, tmp_path / "out", seed=1).already
    assert shardmill.mix({web: 2, code: 2}, tmp_path / "out", seed=1).already, "only the ratio counts"
    with pytest.raises(MismatchError, match="mixture"):
        shardmill.mix({web: 1, code: 2}, tmp_path / "out", seed=1)


def test_datasets_that_do_not_fit_together_are_refused_with_the_difference(made: Path, tmp_path: Path) -> None:
    shardmill.convert(made / "code", tmp_path / "before", format="llmc")
    with pytest.raises(MismatchError, match="end-of-text after and before each document") as refused:
        shardmill.mix({made / "web": 1, tmp_path / "before": 1}, tmp_path / "out")
    assert "shardmill convert" in str(refused.value.hint)
    shardmill.prepare(made / "code.jsonl", tmp_path / "wide", tokenizer="p50k_base")
    with pytest.raises(MismatchError, match=r"tokenizer `gpt2` .* and `p50k_base`"):
        shardmill.mix({made / "web": 1, tmp_path / "wide": 1}, tmp_path / "out")


def test_a_mixture_can_be_shuffled_converted_and_mixed_again(made: Path, tmp_path: Path) -> None:
    shardmill.mix({made / "web": 1, made / "code": 1}, tmp_path / "out")
    before = sorted(map(repr, listed(tmp_path / "out", "train")))
    shardmill.shuffle(tmp_path / "out", tmp_path / "shuffled", seed=3)
    shardmill.convert(tmp_path / "shuffled", tmp_path / "back", format="npy")
    assert sorted(map(repr, listed(tmp_path / "back", "train"))) == before
    shardmill.mix({tmp_path / "out": 1, made / "books": 1}, tmp_path / "again")
    assert not verify(tmp_path / "again").damage
    names = {Path(origin.source).name for _, origin in listed(tmp_path / "again", "train")}
    assert names == {"web.jsonl", "code.jsonl", "books.jsonl"}


def test_the_command_shows_the_table_first_and_then_mixes(made: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "shardmill", "mix", "web:0.7", "code:0.3", "--stage", "2k:web=0.5,code=0.5"]

    def said(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*call, *more], capture_output=True, text=True, cwd=made, timeout=120, check=True)

    table = said().stdout
    assert "70 % → 50 %" in table and "epochs" in table and "off by at most" in table
    assert json.loads(said("--json").stdout)["sources"][0]["shares"] == [0.7, 0.5]
    out = str(tmp_path / "out")
    assert table.splitlines()[1] in said("-o", out).stderr
    data = json.loads(said("-o", out, "--json").stdout)
    assert data["already"] and max(one["epochs"] for one in data["mixture"]["sources"]) == 1


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_blend_names_the_files_that_the_trainer_reads_and_the_shares(
    made: Path, tmp_path: Path, trainer: str
) -> None:
    format = {"nanotron": "datatrove", "levanter": "nanogpt"}.get(trainer, trainer)
    for name in ("web", "code"):
        shardmill.convert(made / name, tmp_path / name, format=format)
    text = plan_mixture({tmp_path / "web": 3, tmp_path / "code": 1}).blend(trainer)
    assert "0.75" in text and "0.25" in text and text.index("web") < text.index("code")
    if trainer == "megatron":
        words = text.split()
        assert words[:3:2] == ["--train-data-path", str(tmp_path / "web" / "web-train_text_document")]
        assert all(Path(word + ".idx").exists() for word in words if word.startswith("/"))
    elif trainer == "olmo":
        compile(text, "settings", "eval")
    if trainer != "levanter":
        with pytest.raises(UsageError, match="does not read"):
            plan_mixture({made / "web": 1}).blend(trainer)
    with pytest.raises(UsageError, match="export each stage alone"):
        plan_mixture({tmp_path / "web": 1}, stages={5: {"web": 1}}).blend(trainer)
