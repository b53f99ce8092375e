"""Every command on what every other has made: all formats, kinds of tokenizers and splits, and files of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from shardmill.cli import shardmill as command
from shardmill.options import FORMATS
from shardmill.shards import format_named
from tests.corpus import documents, write_jsonl
from tests.crashing import DIFFERENT
from tests.datasets import TOGETHER
from tests.foreign import FOREIGN
from tests.shards.readers import read_stream
from tests.test_golden_bytes import TOKENIZERS, _tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "fraction": {"val": 0.3},
    "first": {"val": "first:2500"},
    "none": {"val": 0},
    "drop": {"val": 0.3, "tail": "drop"},
    "bare": {"val": 0.3, "eot": "none"},
    "before": {"val": 0.3, "eot": "before"},
}
# Of these every format is made with every test; of the others those whose files end in different ways.
ALWAYS = ("fraction", "drop", "bare", "before")
CELLS: list[Any] = [
    pytest.param(format, "gpt2", shape, marks=[] if shape in ALWAYS or format in DIFFERENT else pytest.mark.slow)
    for format in FORMATS
    for shape in SHAPES
]
# A tokenizer of another kind takes a second to load, and every command loads it.
QUICK = list(zip(FORMATS[1:], TOKENIZERS[1:], strict=False))
CELLS += [
    pytest.param(format, tokenizer, "fraction", marks=[] if (format, tokenizer) in QUICK else pytest.mark.slow)
    for format in FORMATS
    for tokenizer in TOKENIZERS[1:]
]
NEXT = dict(zip(FORMATS, FORMATS[1:] + FORMATS[:1], strict=True))
"""So that every format is converted from and to."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("source") / "a.jsonl", documents(60))


def said(*words: object) -> str:
    """What a command prints; it must not fail."""
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def look_at(folder: Path, sample: int = 20) -> dict[tuple[str, str], np.ndarray]:
    """All commands that read a dataset; gives its tokens by split."""
    manifest = json.loads((folder / "manifest.json").read_text())
    report = json.loads(said("verify", folder, "--sample", sample, "--json"))
    assert not report["damage"] and report["tokens"] == sum(
        split["tokens"] for one in (manifest, *manifest.get("also", ())) for split in one["splits"].values()
    )
    tokens = {}
    for described in (manifest, *manifest.get("also", ())):
        data = shardmill.open(folder, described["format"])
        for name, split in described["splits"].items():
            names = [file["name"] for file in split["files"] if not file.get("role")]
            tokens[described["format"], name] = read_stream(described["format"], folder, names, described["dtype"])
            assert np.array_equal(data[name][:], tokens[described["format"], name])
            if len(data[name]) > 50:
                x, y = next(iter(data[name].batches(2, 16, seed=1)))
                assert x.shape == (2, 16) and np.array_equal(x[:, 1:], y[:, :-1])
    shown = next(name for name, split in manifest["splits"].items() if split["tokens"])
    assert f"{shown}, " in said("show", folder, "--split", shown, "-n", 2)
    assert said("card", folder).startswith("---\n")
    return tokens


@pytest.mark.parametrize(("format", "tokenizer", "shape"), CELLS)
def test_what_prepare_makes_can_be_read_verified_shown_and_converted(
    format: str, tokenizer: str, shape: str, source: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(tokenizer),
        "format": format,
        "shard_tokens": 1500,
        "name": "x",
        **SHAPES[shape],
    }
    shardmill.prepare(source, tmp_path / "made", workers=1, **options)
    made = look_at(tmp_path / "made")
    eot = json.loads((tmp_path / "made" / "manifest.json").read_text())["eot"]
    change = {"format": NEXT[format], "shard_tokens": 1500, "name": "x", "eot": eot}
    shardmill.convert(tmp_path / "made", tmp_path / "other", **change)
    assert list(map(list, look_at(tmp_path / "other").values())) == list(map(list, made.values()))
    said("report", tmp_path / "made", "-o", tmp_path / "page.html")
    again = {"format": format, "shard_tokens": 1500, "name": "x", "eot": eot}
    shardmill.convert(tmp_path / "other", tmp_path / "back", **again)
    assert look_at(tmp_path / "back").keys() == made.keys()
    # Without EOT a stream does not say where files that end with documents were cut.
    if shape not in ("drop", "bare"):
        for entry in json.loads((tmp_path / "made" / "manifest.json").read_text())["splits"].values():
            for file in entry["files"]:
                one, other = (tmp_path / folder / file["name"] for folder in ("made", "back"))
                assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("format", FORMATS)
def test_inspect_expects_what_prepare_then_writes(format: str, source: Path, tmp_path: Path) -> None:
    expected = json.loads(said("inspect", source, "-o", tmp_path / "out", "-f", format, "--json"))
    manifest = shardmill.prepare(source, tmp_path / "out", format=format, val=0.3, workers=1).manifest
    splits = manifest["splits"].values()
    written = sum(file["bytes"] for split in splits for file in (*split["files"], split["documents_table"]))
    inexact = 0.5 if format_named(format).compressed else 0.05  # how well a text is compressed is not known before
    assert abs(expected["output_bytes"][format] - written) < inexact * written + 2000


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_of_other_tools_can_be_converted_and_then_everything_else(kind: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    FOREIGN[kind](tmp_path / "theirs")
    shardmill.convert(tmp_path / "theirs", tmp_path / "ours", format=TOGETHER, shard_tokens=500, name="x")
    tokens = look_at(tmp_path / "ours", sample=0)  # random tokens are not what a library gives for their text
    # Where val was cut inside a document, EOT before or after it falls on another side of the cut.
    assert len({len(tokens[format, "train"]) + len(tokens[format, "val"]) for format in TOGETHER}) == 1
    shardmill.convert(tmp_path / "ours", tmp_path / "again", format="megatron", name="x")
    look_at(tmp_path / "again", sample=0)
    said("report", tmp_path / "again", "-o", tmp_path / "page.html")
