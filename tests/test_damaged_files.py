"""Damaged heads, indices and manifests end in an error with its place, never in a traceback or a huge allocation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import DamageError, ShardmillError
from shardmill.options import FORMATS
from tests.datasets import make_dataset, random_documents
from tests.foreign import FOREIGN

pytestmark = pytest.mark.thorough

DOCUMENTS = random_documents(5, count=12, longest=30)
HEAD = 48  # bytes that are damaged at every place; of what follows only some


def harmed(data: bytes, random: np.random.Generator) -> Iterator[bytes]:
    """The file cut at every length, and with bytes flipped at every place of its head."""
    lengths = {*range(min(len(data), HEAD)), *random.integers(0, len(data) + 1, 8).tolist(), len(data) - 1}
    yield from (data[:length] for length in sorted(lengths) if 0 <= length < len(data))
    places = [*range(min(len(data), HEAD)), *random.integers(0, len(data), 16).tolist()] if data else []
    for place in places:
        for flip in (0xFF, 1 << int(random.integers(8))):
            yield data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]


def read_all(folder: Path) -> None:
    """Everything that reads, as far as the damage lets it come."""
    data = shardmill.open(folder)
    for split in data:
        assert len(data[split][:]) == len(data[split])
        documents = data[split].documents
        _ = [documents[i] for i in range(len(documents))], list(documents)


def told(use: Callable[..., object], *given: Any, **more: Any) -> bool:
    """Whether a call ends in an error; only an expected one, which says where."""
    error = None
    try:
        use(*given, **more)
    except ShardmillError as why:
        error = why
    assert error is None or error.place or error.hint, error
    return error is not None


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_file_of_a_dataset_is_an_error_with_its_place(format: str, tmp_path: Path) -> None:
    folder = make_dataset(format, tmp_path / "out", DOCUMENTS, shard_tokens=200)
    manifest, random = json.loads((folder / "manifest.json").read_text()), np.random.default_rng(0)
    entries = manifest["splits"]["train"]["files"]
    for entry in {entry["name"].rpartition(".")[2]: entry for entry in entries}.values():
        path, size = folder / entry["name"], entry["bytes"]
        data = path.read_bytes()
        for harm in harmed(data, random):
            path.write_bytes(harm)
            # The manifest does not give it away, as if it had been made for this very file.
            entry["bytes"] = len(harm)
            (folder / "manifest.json").write_text(json.dumps(manifest))
            told(read_all, folder)
        path.write_bytes(data)
        entry["bytes"] = size


@pytest.mark.parametrize("format", FORMATS)
def test_damage_that_the_manifest_gives_away_is_found_by_verify(format: str, tmp_path: Path) -> None:
    folder = make_dataset(format, tmp_path / "out", DOCUMENTS, shard_tokens=200)
    random = np.random.default_rng(0)
    for entry in json.loads((folder / "manifest.json").read_text())["splits"]["train"]["files"][:3]:
        data = (folder / entry["name"]).read_bytes()
        for harm in list(harmed(data, random))[::9]:
            (folder / entry["name"]).write_bytes(harm)
            assert any(entry["name"] in line for line in verify(folder, sample=0).damage)
        (folder / entry["name"]).write_bytes(data)


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if "cut" not in kind])
def test_a_damaged_file_of_another_tool_is_converted_or_refused(kind: str, tmp_path: Path) -> None:
    theirs, random = tmp_path / "theirs", np.random.default_rng(0)
    theirs.mkdir()
    FOREIGN[kind](theirs)
    refused = 0
    for path in {path.suffix: path for path in sorted(theirs.iterdir())}.values():
        data = path.read_bytes()
        for harm in list(harmed(data, random))[:: 2 if path.suffix == ".idx" else 7]:
            path.write_bytes(harm)
            refused += told(shardmill.convert, theirs, tmp_path / "out", format="megatron", overwrite=True)
        path.write_bytes(data)
    assert refused


def test_a_megatron_index_of_five_bytes_is_not_whole(tmp_path: Path) -> None:
    FOREIGN["megatron"](tmp_path)
    index = next(tmp_path.glob("*.idx"))
    index.write_bytes(index.read_bytes()[:5])
    with pytest.raises(DamageError, match="not a whole Megatron index") as error:
        shardmill.convert(tmp_path, tmp_path / "out", format="npy")
    assert index.name in error.value.place


NAMES = ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "", ".", "x\0y"]


@pytest.mark.parametrize("where", ["files", "also", "rejects"])
@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_that_names_files_elsewhere_is_refused(name: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"1234")
    folder = make_dataset("nanogpt", tmp_path / "out", DOCUMENTS)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = {"name": name, "tokens": 2, "bytes": 4, "sha256": "0"}
    if where == "files":
        manifest["splits"]["train"]["files"][0] = entry
    elif where == "rejects":
        manifest["rejects"] = entry
    else:
        split = {"tokens": 2, "documents": 1, "bytes": 0, "files": [entry]}
        manifest["also"] = [{"format": "shards", "dtype": "uint16", "eot": "after", "splits": {"train": split}}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for use in (shardmill.open, verify, lambda folder: shardmill.convert(folder, tmp_path / "new")):
        with pytest.raises(DamageError, match="outside the dataset's folder"):
            use(folder)


@pytest.mark.skipif(os.name == "nt", reason="links need a right there that not everybody has")
@pytest.mark.parametrize("format", FORMATS)
def test_links_are_followed_since_caches_and_full_disks_have_them(format: str, tmp_path: Path) -> None:
    folder = make_dataset(format, tmp_path / "out", DOCUMENTS)
    name = json.loads((folder / "manifest.json").read_text())["splits"]["train"]["files"][0]["name"]
    (folder / name).rename(folder / "kept")
    (folder / name).symlink_to(folder / "kept")
    (tmp_path / "link").symlink_to(folder)
    read_all(tmp_path / "link")
    assert not verify(tmp_path / "link", sample=0).damage
    (folder / "kept").rename(tmp_path / "elsewhere")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    read_all(folder)
    assert not verify(folder, sample=0).damage


def values(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a manifest."""
    yield path
    for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from values(inner, (*path, key))


CHANGES: tuple[Any, ...] = (None, "x", -1, 1 << 70, [], {}, True, "gone")


def test_a_manifest_with_anything_missing_or_of_another_type_is_refused_or_does_no_harm(tmp_path: Path) -> None:
    folder = make_dataset("shards", tmp_path / "out", DOCUMENTS, shard_tokens=200)
    whole = (folder / "manifest.json").read_text()
    for path in list(values(json.loads(whole)))[1:]:
        for change in CHANGES:
            manifest = json.loads(whole)
            inner = manifest
            for key in path[:-1]:
                inner = inner[key]
            if change == "gone":
                del inner[path[-1]]
            else:
                inner[path[-1]] = change
            (folder / "manifest.json").write_text(json.dumps(manifest))
            for use in (read_all, lambda folder: verify(folder, sample=0)):
                told(use, folder)
