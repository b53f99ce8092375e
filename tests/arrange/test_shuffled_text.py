"""`prepare --shuffle` gives what `prepare` and then `shuffle` give, with the manifest of a run over text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.cluster import plan_parts
from shardmill.dataset import verify
from shardmill.errors import MismatchError, UsageError
from shardmill.options import FORMATS
from tests.corpus import contents
from tests.crashing import crash_everywhere, crash_everywhere_in_store
from tests.meter import metered_command
from tests.object_store import Bucket, bucket, s3_server

pytestmark = pytest.mark.thorough
__all__ = ["bucket", "s3_server"]

TEXTS = [f"document {i}: " + "words and numbers " * (i * 7 % 40) + str(i * i) for i in range(300)]
OPTIONS: dict[str, Any] = {"val": "0.2", "shard_tokens": 2000, "name": "web"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[10:10] = ["not JSON", '{"text": ""}']
    path.write_text("\n".join(lines) + "\n")
    return path


def in_two_steps(corpus: Path, folder: Path, **options: Any) -> Path:
    """The slow twin."""
    made = {**OPTIONS, **options}
    formats = made.pop("format", "nanogpt")
    tail = made.pop("tail", "keep")
    first = formats if isinstance(formats, str) else formats[0]
    shardmill.prepare(corpus, folder / "first", format=first, **made)
    seed, shard_tokens = made.get("seed", 0), made["shard_tokens"]
    eot = {"eot": made["eot"]} if "eot" in made else {}
    shardmill.shuffle(
        folder / "first", folder / "second", seed=seed, format=formats, shard_tokens=shard_tokens, tail=tail, **eot
    )
    return folder / "second"


def data_of(folder: Path) -> dict[str, bytes]:
    """All files of a dataset but those about it."""
    return {name: data for name, data in contents(folder).items() if name not in ("manifest.json", "rejects.jsonl")}


def check(corpus: Path, tmp_path: Path, made: Path, **options: Any) -> dict[str, Any]:
    expected = in_two_steps(corpus, tmp_path / "twin", **options)
    assert data_of(made) == data_of(expected)
    assert not verify(made).damage
    assert [path.name for path in made.iterdir() if path.name[0] == "."] == [".shardmill"]
    manifest, first = shardmill.open(made).manifest, shardmill.open(tmp_path / "twin" / "first").manifest
    assert manifest["documents"] == first["documents"] + str(options.get("val")).startswith("first:")  # it cuts one
    for key in ("empty", "rejected", "replaced", "tokenizer", "rejects"):
        assert manifest.get(key) == first.get(key)
    assert list(manifest["sources"]) == list(first["sources"])
    assert manifest["options"]["shuffle"] is True and manifest["fingerprint"] != first["fingerprint"]
    assert manifest["arranged"] == {
        "order": "shuffle", "seed": options.get("seed", 0), "from": first["fingerprint"]
    }  # fmt: skip
    return dict(manifest)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_that_of_prepare_and_then_shuffle(corpus: Path, tmp_path: Path, format: str) -> None:
    result = shardmill.prepare(corpus, tmp_path / "made", shuffle=True, seed=3, format=format, **OPTIONS)
    manifest = check(corpus, tmp_path, tmp_path / "made", seed=3, format=format)
    assert (manifest["documents"], manifest["rejected"], manifest["empty"]) == (len(TEXTS), 1, 1)
    assert result.manifest["fingerprint"] == manifest["fingerprint"]
    again = shardmill.prepare(corpus, tmp_path / "made", shuffle=True, seed=3, format=format, **OPTIONS)
    assert again.already


@pytest.mark.parametrize(
    "options",
    [
        {"format": ["nanogpt", "llmc", "megatron"]},
        {"format": ["llmc", "shards"], "tail": "drop"},
        {"eot": "before"},
        {"eot": "none"},
        {"val": "0"},
        {"val": "first:1001"},
        {"limit": 40},
    ],
)
def test_options_mean_the_same(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    shardmill.prepare(corpus, tmp_path / "made", shuffle=True, **{**OPTIONS, **options})
    check(corpus, tmp_path, tmp_path / "made", **options)


def test_without_documents_there_is_nothing_to_shuffle(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n')
    shardmill.prepare(tmp_path / "none.jsonl", tmp_path / "made", shuffle=True, **OPTIONS)
    check(tmp_path / "none.jsonl", tmp_path, tmp_path / "made")


def test_killed_in_either_step_it_ends_with_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    left = crash_everywhere(corpus, tmp_path / "out", every=11, prepare_shuffled=True, seed=2, **OPTIONS)
    begun = {any("unshuffled" in name for name in names) for names in left}
    assert len(left) > 5 and begun == {True, False}
    check(corpus, tmp_path, tmp_path / "out-whole", seed=2)


def test_a_power_failure_in_either_step_costs_nothing_but_time(corpus: Path, tmp_path: Path) -> None:
    left = crash_everywhere(corpus, tmp_path / "out", every=17, power=1.0, prepare_shuffled=True, **OPTIONS)
    assert len(left) > 3


def test_in_a_store_it_is_the_same_dataset(corpus: Path, tmp_path: Path, bucket: Bucket) -> None:
    options = {"format": "shards", **OPTIONS}  # of which the last runs are on machines that have no work folder
    assert crash_everywhere_in_store(corpus, bucket, tmp_path, every=13, prepare_shuffled=True, **options) > 5


def command(*call: Any) -> list[str]:
    return [sys.executable, "-m", "shardmill", "prepare", *map(str, call)]


FLAGS = ["--val", "0.2", "--shard-tokens", "2000", "--name", "web"]


def test_in_parts_it_is_the_same_dataset(corpus: Path, tmp_path: Path) -> None:
    call = command(corpus, "-o", tmp_path / "made", "--shuffle", "--seed", "5", *FLAGS)
    subprocess.run([*call, "--executor", "local", "--parts", "3"], check=True, timeout=120)
    check(corpus, tmp_path, tmp_path / "made", seed=5)
    said = subprocess.run(call, check=True, timeout=120, capture_output=True, text=True).stderr
    assert "Nothing to do" in said


def test_what_is_not_possible_is_said(corpus: Path, tmp_path: Path, bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="cannot be shuffled on the way") as refused:
        plan_parts(corpus, tmp_path / "planned", shuffle=True)
    assert "shardmill shuffle" in str(refused.value.hint)
    for more, said in ((["--keep-parts"], "--keep-parts"), ([], "only in a folder")):
        out = bucket.url("parts") if not more else tmp_path / "kept"
        call = command(corpus, "-o", out, "--shuffle", "--executor", "local", *more)
        ended = subprocess.run(call, timeout=120, capture_output=True, text=True)
        assert ended.returncode == 2 and said in ended.stderr
    shardmill.prepare(corpus, tmp_path / "made", shuffle=True, **OPTIONS)
    with pytest.raises(UsageError, match="another order"):
        verify(tmp_path / "made", source=True)
    with pytest.raises(MismatchError, match="shuffle was `True` and is now not given"):
        shardmill.prepare(corpus, tmp_path / "made", **OPTIONS)
    assert not shardmill.prepare(corpus, tmp_path / "made", overwrite=True, **OPTIONS).already


def test_both_steps_stay_below_the_limit(tmp_path: Path) -> None:
    words = "alpha beta gamma delta of the and zeta " * 4000
    with open(tmp_path / "big.jsonl", "w") as file:
        file.writelines(json.dumps({"text": f"{i} " + words}) + "\n" for i in range(400))
    call = command(tmp_path / "big.jsonl", "-o", tmp_path / "made", "--shuffle", "--val", "0", "--json")
    assert metered_command([*call, "--memory", "300MB"]).peak <= 300_000_000
    assert not verify(tmp_path / "made").damage
