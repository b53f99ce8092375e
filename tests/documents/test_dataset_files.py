"""Of a dataset's files the same ones are read, whether it lies in a folder, at the hub or in a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardmill.source_list import Sources
from shardmill.sources import find_sources
from shardmill.sources.cards import Config, configs_in
from tests.documents.away import REPO
from tests.hub import Hub

ATTRIBUTES = "*.parquet filter=lfs diff=lfs merge=lfs -text\n"
CONFIGS = """---
license: mit
configs:
- config_name: de
  data_files:
  - split: train
    path: de/train-*
- config_name: en  # the one that people mean
  data_files:
    - split: train
      path:
      - "en/train-*"
      - en/more.jsonl
    - {split}: test
      path: ['en/test-*']
  default: true
dataset_info:
  features:
  - name: text
---
# A dataset
"""
SHARDS = {
    f"{config}/{split}-0000{i}-of-00002.jsonl": ""
    for config in ("de", "en")
    for split in ("train", "test")
    for i in (0, 1)
}
EN = ["en/more.jsonl", "en/train-00000-of-00002.jsonl", "en/train-00001-of-00002.jsonl"]


def found_at(kind: str, files: dict[str, str], folder: Path, hub: Hub, **options: Any) -> tuple[list[str], Sources]:
    """The names of what is read of a dataset with these files, and all that was found."""
    content = {name: (text or "{}\n").encode() for name, text in files.items()}
    if kind == "folder":
        for name, data in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        root = f"{folder}/"
    elif kind == "hub":
        root = f"hf://datasets/{REPO}@{hub.add(REPO, content)}/"
    else:
        hub.objects["bucket"] = {f"d/{name}": data for name, data in content.items()}
        root = "s3://bucket/d/"
    found = find_sources([root.rstrip("/")], **options)
    return [source.name.removeprefix(root) for source in found], found


@pytest.fixture
def stores(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    for name, value in hub.store_environment.items():
        monkeypatch.setenv(name, value)
    return hub


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_of_several_configs_the_default_by_the_card_is_read(kind: str, tmp_path: Path, stores: Hub) -> None:
    card = CONFIGS.replace("{split}", "split")
    files = {"README.md": card, ".gitattributes": ATTRIBUTES, **SHARDS, "en/more.jsonl": "", "fr/x.jsonl": ""}
    names, found = found_at(kind, files, tmp_path, stores)
    assert names == EN
    assert found.skipped.kinds == {"other-config file": 5, "test-split file": 2, "dataset card": 1}
    said = " ".join(found.skipped.notes)
    assert "only the config `en` is read" in said and "`--include '/de/train-*'`" in said
    assert "only the split `train` is read, not: `test`" in said
    again, _ = found_at(kind, files, tmp_path, stores, include=["/de/train-*"])
    assert again == [name for name in SHARDS if name.startswith("de/train")]


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_several_configs_without_a_default_are_a_warning(kind: str, tmp_path: Path, stores: Hub) -> None:
    card = CONFIGS.replace("{split}", "split").replace("  default: true\n", "")
    names, found = found_at(kind, {"README.md": card, **SHARDS}, tmp_path, stores)
    assert names == [name for name in SHARDS if "/train-" in name]
    [warning] = found.skipped.warnings
    assert "`de`, `en`" in warning and "--include '/de/train-*'" in warning


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_a_card_that_names_other_files_is_not_followed(kind: str, tmp_path: Path, stores: Hub) -> None:
    card = "---\nconfigs:\n- config_name: default\n  data_files: gone/*.parquet\n---\n"
    names, found = found_at(kind, {"README.md": card, "data/train.jsonl": "", "data/test.jsonl": ""}, tmp_path, stores)
    assert names == ["data/train.jsonl"]
    assert found.skipped.kinds == {"dataset card": 1, "test-split file": 1}


@pytest.mark.parametrize("kind", ["folder", "hub", "bucket"])
def test_of_shards_that_datasets_has_written_the_split_train_is_read(kind: str, tmp_path: Path, stores: Hub) -> None:
    names, found = found_at(kind, dict(SHARDS), tmp_path, stores)
    assert names == [name for name in SHARDS if "/train-" in name]
    assert found.skipped.kinds == {"test-split file": 4}
    assert found.skipped.notes and not found.skipped.warnings


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize(
    ("files", "excluded"),
    [
        (["train.jsonl", "test.jsonl", "validation.jsonl"], ["test.jsonl", "validation.jsonl"]),
        (["wiki.train.txt", "wiki.valid.txt"], ["wiki.valid.txt"]),
        (["train_0.csv", "train_1.csv", "test_0.csv"], ["test_*"]),
        (["train/a.jsonl", "test/a.jsonl"], ["test"]),
    ],
)
def test_splits_side_by_side_are_all_read_with_a_warning_that_names_the_way_out(
    kind: str, files: Sequence[str], excluded: list[str], tmp_path: Path, stores: Hub
) -> None:
    names, found = found_at(kind, dict.fromkeys(files, ""), tmp_path, stores)
    assert sorted(names) == sorted(files)
    [warning] = found.skipped.warnings
    patterns = [part.split("'")[1] for part in warning.split("--exclude ")[1:]]
    assert [pattern.lstrip("/") for pattern in patterns] == excluded
    names, found = found_at(kind, dict.fromkeys(files, ""), tmp_path, stores, exclude=patterns)
    assert names == [name for name in sorted(files) if "train" in name]
    assert not found.skipped.warnings


ALIKE: dict[str, tuple[list[str], list[str], dict[str, int]]] = {
    "a saved Dataset": (
        ["d/dataset_info.json", "d/state.json", "d/cache-1.arrow", "d/data-00000-of-00001.arrow"],
        ["d/data-00000-of-00001.arrow"],
        {"metadata file": 2, "derived file": 1},
    ),
    "a saved DatasetDict": (
        ["x/dataset_dict.json", "x/train/state.json", "x/train/dataset_info.json", "x/train/a.arrow",
         "x/test/state.json", "x/test/dataset_info.json", "x/test/a.arrow"],
        ["x/train/a.arrow"],
        {"metadata file": 3, "test-split folder": 1},
    ),
    "the hub's cache": (
        ["c/blobs/0123", "c/refs/main", "c/snapshots/abc/a.txt", "c/snapshots/abc/b.txt", "c/snapshots/bcd/a.txt"],
        ["c/snapshots/abc/a.txt", "c/snapshots/abc/b.txt"],
        {"older snapshot folder": 1},
    ),
    "names of all kinds": (
        ["a.txt", "a.txt.gz", "b.png", "b/c.txt", "b-/c.txt", ".git/config", ".hidden/x.txt", "_y.txt",
         "models--m/x.txt", "no_ending", "sums/MD5SUMS", "deep/er/z.jsonl", "out/x.zip", "__pycache__/x.txt"],
        ["a.txt", "a.txt.gz", "b/c.txt", "b-/c.txt", "deep/er/z.jsonl", "no_ending"],
        {"hidden folder": 1, "hidden file": 1, "model folder": 1, "picture": 1, "checksum": 1, "archive": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("shape", ALIKE)
def test_a_bucket_is_read_by_the_rules_for_folders(kind: str, shape: str, tmp_path: Path, stores: Hub) -> None:
    files, expected, kinds = ALIKE[shape]
    arrow = "ARROW1\0\0"
    content = {name: arrow if name.endswith(".arrow") else "abc" if name.endswith("main") else "x" for name in files}
    names, found = found_at(kind, content, tmp_path, stores)
    assert names == expected
    assert found.skipped.kinds == kinds
    assert any("the same name twice" in one for one in found.skipped.warnings) == ("a.txt.gz" in files)


@pytest.mark.parametrize("kind", ["folder", "hub", "bucket"])
@pytest.mark.parametrize("marker", ["dataset_dict.json", "README.md"])
def test_a_dataset_without_the_split_train_is_read_whole_with_a_warning(
    kind: str, marker: str, tmp_path: Path, stores: Hub
) -> None:
    files = {marker: "---\nlicense: mit\n---\n", ".gitattributes": ATTRIBUTES}
    names, found = found_at(kind, {**files, "dev/a.jsonl": "", "test/a.jsonl": ""}, tmp_path, stores)
    assert names == ["dev/a.jsonl", "test/a.jsonl"]
    [warning] = found.skipped.warnings
    assert "has no split `train`; all its files are read, of: " in warning


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_prose_about_training_and_tests_is_no_split(kind: str, tmp_path: Path, stores: Hub) -> None:
    files = ["how-to-train-a-dog.txt", "test-flight.txt", "a/dev.txt", "train.py", "test.py"]
    names, found = found_at(kind, dict.fromkeys(files, "text"), tmp_path, stores)
    assert sorted(names) == sorted(files) and not found.skipped.warnings


@pytest.mark.parametrize(
    "card",
    [
        "no card",
        "---\nlicense: mit\n---\n",
        "---\nconfigs:\n- config_name: default\n---\n",
        "---\nconfigs: &a\n- config_name: x\n  data_files: x\n---\n",
        "---\nconfigs:\n- config_name: x\n  data_files: {train: x}\n---\n",
        "---\nconfigs:\n- config_name: x\n   data_files: x\n---\n",
        "---\nconfigs:\n- - - -\n---\n",
        "---\nconfigs:\n- x\n- y\n---\n",
    ],
)
def test_a_card_without_configs_or_in_other_yaml_names_none(card: str) -> None:
    assert configs_in(card) == []


def test_the_forms_in_which_a_config_names_its_files_are_read() -> None:
    text = """---
configs:
- config_name: one
  data_files: "a/*.csv"
- config_name: list
  data_files: [b.csv, 'c.csv']
  data_dir: d
- config_name: map
  data_files:
    train: e.csv
    test:
    - f.csv
    - g.csv
---"""
    assert configs_in(text) == [
        Config("one", {"train": ["a/*.csv"]}, False),
        Config("list", {"train": ["d/b.csv", "d/c.csv"]}, False),
        Config("map", {"train": ["e.csv"], "test": ["f.csv", "g.csv"]}, False),
    ]
    yaml = pytest.importorskip("yaml", reason="the slow twin of the parser is not installed")
    listed = yaml.safe_load(text.strip("-\n"))["configs"]
    assert [one["config_name"] for one in listed] == [one.name for one in configs_in(text)]
